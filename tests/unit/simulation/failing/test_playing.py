"""Small cases whose every second is known, and what holds of all."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core.errors import ConfigurationError
from quorate.inject.failures import Failure, Failures, failures_from
from quorate.simulation.failing.exchanges import Exchanges
from quorate.simulation.failing.playing import Goodput, play
from quorate.simulation.failing.recovery import Recovery
from quorate.simulation.links import links_from

EVERYTHING = failures_from("mtbf=40s,repair=5s,restart=2s,stop=0.2:3s,slow=0.2:x4:5s,burst=0.2:3")
PARTS = ("goodput", "lost", "down", "stopped", "waiting", "moving", "saving")


def failure_at(time: float, kind: Any, seconds: float, factor: float = 1.0, ranks: range = range(1)) -> Failure:
    return Failure(time, ranks, kind, seconds, factor)


def goodput_of(*schedule: Failure, workers: int = 2, recovery: Recovery | None = None, **others: Any) -> Goodput:
    """The result of 100 s of steps of a second."""
    repair = next((failure.seconds for failure in schedule if failure.kind == "death"), 0.0)
    failures = Failures(mtbf=1e9, repair=repair, restart=others.pop("restart", 0.0))
    return play(failures, workers, seconds=100.0, schedule=schedule, recovery=recovery, **others)


def shares(result: Goodput) -> dict[str, float]:
    """Percent, of the parts that are not 0."""
    return {part: round(100 * getattr(result, part), 6) for part in PARTS if abs(getattr(result, part)) > 1e-12}


def test_all_start_again_from_the_last_checkpoint() -> None:
    recovery = Recovery(detect=10.0, checkpoint=30.0, save=0.0)
    result = goodput_of(failure_at(50.5, "death", 20.0), recovery=recovery, restart=4.5)
    assert shares(result) == {"goodput": 30 + 15, "lost": 20.5, "down": 17.25, "stopped": 17.25}
    assert result.uptime == pytest.approx(0.655)


def test_the_rest_goes_on_and_stops_once_more_when_the_dead_is_back() -> None:
    recovery = Recovery(detect=2.0, reshard=3.0, join=4.0)
    result = goodput_of(
        failure_at(50.5, "death", 20.0), recovery=recovery, settings={"on_death": "continue"}, restart=1.0
    )
    # one step is lost at 50.5; the rest stands until 55.5, steps until 71.5 and stands until 75.5
    assert shares(result) == {"goodput": 50 + 8 + 24.5, "lost": 0.5, "down": 12.5, "stopped": 4.5}


def test_the_only_learner_whose_workers_are_all_dead_goes_back_to_its_checkpoint() -> None:
    recovery = Recovery(detect=2.0, reshard=3.0, join=4.0, checkpoint=30.0, save=0.0)
    both = failure_at(50.5, "death", 20.0, ranks=range(2))
    result = goodput_of(both, recovery=recovery, settings={"on_death": "continue"})
    assert shares(result) == {"goodput": 30 + 29.5, "lost": 20.5, "down": 20.0}


def test_a_learner_that_never_waits_loses_what_it_had_not_handed_in() -> None:
    ways: dict[str, Any] = {"strategy": "decoupled-diloco", "learners": 2}
    result = goodput_of(failure_at(57.0, "death", 20.0), settings={"sync_every": 10, "wait_for": 1}, **ways)
    assert shares(result) == {"goodput": (50 + 23 + 100) / 2, "lost": 3.5, "down": 10.0}
    assert result.uptime == 1.0
    assert goodput_of(failure_at(57.0, "death", 20.0), settings={"sync_every": 10, "wait_for": 2}, **ways).uptime == 0.8
    by_fragment = goodput_of(failure_at(57.0, "death", 20.0), settings={"sync_every": 10, "fragments": 5}, **ways)
    assert shares(by_fragment)["lost"] == (1 + 4) / 2


def test_learners_that_meet_leave_out_one_that_is_gone() -> None:
    ways: dict[str, Any] = {"strategy": "diloco", "learners": 2, "recovery": Recovery(detect=2.0)}
    result = goodput_of(failure_at(15.0, "death", 10.0), settings={"sync_every": 10}, **ways)
    # it is gone at 15, and back at 25, when the others are in the middle of a period; it goes on with them at 30
    assert shares(result) == {"goodput": (10 + 70 + 100) / 2, "lost": 2.5, "down": 5.0, "waiting": 2.5}


def test_learners_that_meet_wait_for_one_that_was_gone_where_a_death_is_not_outlived() -> None:
    ways: dict[str, Any] = {"strategy": "diloco", "learners": 2}
    result = goodput_of(failure_at(15.0, "death", 10.0), settings={"sync_every": 10, "on_death": "stop"}, **ways)
    # from 25 on it does again what it has lost; the other one waits from 20 to 35
    assert shares(result) == {"goodput": 85.0, "lost": 2.5, "down": 5.0, "waiting": 7.5}


def test_a_learner_that_does_not_come_back_is_left_out_to_the_end() -> None:
    ways: dict[str, Any] = {"strategy": "diloco", "learners": 2, "recovery": Recovery(detect=2.0)}
    result = goodput_of(failure_at(15.0, "death", 1000.0), settings={"sync_every": 10}, **ways)
    assert shares(result) == {"goodput": (10 + 100) / 2, "lost": 2.5, "down": 42.5}
    late = goodput_of(
        failure_at(9.0, "death", 1000.0), settings={"sync_every": 5}, **{**ways, "recovery": Recovery(detect=3.0)}
    )
    assert late.waiting == pytest.approx(0.01)  # the other one meets nobody from 10 to 12


@pytest.mark.parametrize(("wait_for", "goodput"), [(1, 97.5), ("all", 95.0)])
def test_a_round_goes_at_the_speed_of_the_last_one_that_it_needs(wait_for: Any, goodput: float) -> None:
    ways: dict[str, Any] = {"strategy": "quorum", "learners": 2, "settings": {"wait_for": wait_for}}
    result = goodput_of(failure_at(10.0, "slow", 10.0, 2.0), **ways)
    assert shares(result) == {"goodput": goodput, "waiting": 100 - goodput}
    assert goodput_of(failure_at(10.0, "slow", 10.0, 2.0)).goodput == pytest.approx(0.95)


def test_a_quorum_of_all_waits_until_the_dead_are_known_to_be() -> None:
    ways: dict[str, Any] = {"strategy": "quorum", "learners": 2, "recovery": Recovery(detect=5.0)}
    result = goodput_of(failure_at(10.0, "death", 20.0), settings={"wait_for": "all"}, **ways)
    assert shares(result) == {"goodput": (80 + 95) / 2, "down": 10.0, "waiting": 2.5}
    assert result.uptime == 0.95
    silent = goodput_of(failure_at(10.0, "stop", 4.0), settings={"wait_for": "all"}, **ways)
    assert shares(silent) == {"goodput": 96.0, "down": 2.0, "waiting": 2.0}


def test_who_is_silent_for_long_is_left_out_where_the_rest_goes_on() -> None:
    recovery = Recovery(detect=2.0, reshard=3.0, join=4.0)
    waits = goodput_of(failure_at(50.0, "stop", 20.0), recovery=recovery)
    assert shares(waits) == {"goodput": 80.0, "down": 10.0, "waiting": 10.0}
    goes_on = goodput_of(failure_at(50.0, "stop", 20.0), recovery=recovery, settings={"on_death": "continue"})
    assert shares(goes_on) == {"goodput": 50 + 7.5 + 26, "down": 12.0, "stopped": 4.5}


def test_the_dead_are_not_struck_again() -> None:
    schedule = [
        failure_at(10.0, "death", 20.0),
        failure_at(15.0, "death", 20.0),
        failure_at(16.0, "stop", 50.0),
        failure_at(17.0, "slow", 50.0, 9.0),
    ]
    ways: dict[str, Any] = {"strategy": "quorum", "learners": 2}
    assert goodput_of(*schedule, **ways).goodput == goodput_of(schedule[0], **ways).goodput


def test_a_burst_strikes_neighbours_of_one_learner_and_of_two() -> None:
    ways: dict[str, Any] = {"strategy": "decoupled-diloco", "settings": {"sync_every": 1}, "workers": 8, "learners": 2}
    recovery = Recovery(detect=1.0, reshard=1.0, join=0.0)
    within = goodput_of(failure_at(50.0, "death", 10.0, ranks=range(4)), recovery=recovery, **ways)
    assert shares(within) == {"goodput": 95.0, "down": 5.0}
    across = goodput_of(failure_at(50.0, "death", 10.0, ranks=range(2, 6)), recovery=recovery, **ways)
    assert shares(across) == {"goodput": 94.0, "down": 5.0, "stopped": 1.0}
    assert across.failures.bursts == 1 and across.failures.workers == 4 and across.failures.deaths == 1


ALL_WAYS: list[tuple[str, dict[str, Any], int]] = [
    ("all-reduce", {}, 1),
    ("all-reduce", {"on_death": "continue"}, 1),
    ("quorum", {"wait_for": 0.75}, 4),
    ("eager-majority", {}, 5),
    ("diloco", {"sync_every": 7}, 4),
    ("diloco", {"sync_every": 7, "on_death": "stop"}, 12),
    ("local-sgd", {"sync_every": "5s"}, 12),
    ("decoupled-diloco", {"sync_every": 12, "fragments": 3}, 5),
    ("decoupled-diloco", {"sync_every": 12}, 12),
]
RECOVERIES = (
    Recovery(),
    Recovery(detect=1.0, reshard=0.5, join=0.0, slice=2, save=0.2),
    Recovery(detect=1.0, inside="restart", spare=1.0, save=0.3),
    Recovery(detect=0.0, reshard=0.0, save=0.0, during="again"),
)


@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize(("strategy", "settings", "learners"), ALL_WAYS)
def test_nothing_is_lost_uncounted(strategy: str, settings: dict[str, Any], learners: int, recovery: Recovery) -> None:
    links = Exchanges(links_from("1ms:1Gbit:halving"), 10**6)
    for seed in range(2):
        result = play(EVERYTHING, 12, learners=learners, strategy=strategy, settings=settings, seconds=200.0, seed=seed,
                     step=0.5, recovery=recovery, exchanges=links)  # fmt: skip
        assert sum(getattr(result, part) for part in PARTS) == pytest.approx(1.0)
        assert all(getattr(result, part) >= -1e-9 for part in PARTS), result
        assert 0.0 <= result.uptime <= 1.0 + 1e-9
        assert result.goodput > 0.0 or strategy == "all-reduce"
        assert (result.moving > 0.0) == (strategy != "decoupled-diloco" or learners < 12)


@pytest.mark.parametrize("strategy", ["decoupled-diloco", "quorum", "diloco"])
def test_one_learner_is_all_reduce_that_goes_on(strategy: str) -> None:
    elastic = play(EVERYTHING, 12, settings={"on_death": "continue"}, seconds=1000.0)
    assert play(EVERYTHING, 12, strategy=strategy, seconds=1000.0) == elastic


def test_the_same_seed_gives_the_same_figures() -> None:
    runs = [
        play(EVERYTHING, 8, learners=8, strategy="decoupled-diloco", seconds=180.0, seed=seed) for seed in (3, 3, 4)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_where_nothing_fails_only_exchanges_and_checkpoints_cost() -> None:
    never = Failures(mtbf=1e12)
    assert shares(play(never, 8, learners=8, strategy="quorum", seconds=100.0)) == {"goodput": 100.0}
    links = Exchanges(links_from("0ms:1Gbit"), 125_000_000 // 4)
    exchanged = play(never, 2, seconds=100.0, exchanges=links, step=1.0)
    assert 0.0 < exchanged.moving < 0.6  # a second of bytes, most of it while the backward pass runs
    saved = play(never, 2, seconds=110.0, recovery=Recovery(checkpoint=10.0, save=1.0))
    assert shares(saved) == pytest.approx({"goodput": 100 / 1.1, "saving": 10 / 1.1}, abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"learners": 2}, "under all-reduce all workers form one learner; 2 are too many"),
        ({"learners": 9, "strategy": "diloco"}, "9 learners cannot be made of 8 workers; it must be from 1 to 8"),
        ({"learners": 2, "strategy": "quorum", "settings": {"wait_for": 3}}, "wait_for is 3, and there are 2 workers"),
        ({"strategy": "sgp"}, "failures under sgp cannot be simulated; give one of these: all-reduce, "),
        ({"strategy": "quorum", "settings": {"on_death": "stop"}}, "a death ends the training of all learners"),
        ({"strategy": "diloco", "settings": {"sync_every": "10 examples"}}, "sync_every of diloco counts examples"),
        ({"strategy": "decoupled-diloco", "settings": {"fragments": 0}}, "fragments of decoupled-diloco is 0"),
        ({"step": 0.0}, "both must be above 0"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        play(EVERYTHING, 8, **{"seconds": 10.0, **settings})
    assert sentence in str(raised.value)
