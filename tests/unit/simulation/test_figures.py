"""Figures of runs whose times are known, and what many workers do by arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core.durations import Constant, Trace
from quorate.core.errors import ConfigurationError
from quorate.inject.imbalance import parse_imbalance
from quorate.simulation.busy import Modelled
from quorate.simulation.figures import Figures, figures_of, quantile
from quorate.simulation.links import links_from
from quorate.simulation.models import known, times_of
from quorate.simulation.played import Case, Played

FREE = "0:1e30B"
"""A network that costs nothing."""


def figures_for(
    strategy: str, workers: int, steps: int = 50, *, late: str | None = None, network: str = FREE, **settings: Any
) -> Figures:
    imbalance = None if late is None else parse_imbalance(late, seed=1, size=workers)
    case = Case(
        workers=workers,
        steps=steps,
        parameters=1000,
        busy=Modelled(compute=Constant(0.1), imbalance=imbalance),
        links=links_from(network),
    )
    return figures_of(times_of(strategy, settings).play(case), workers, steps)


@pytest.mark.parametrize("strategy", sorted({*known()} - {"post-local-sgd"}))
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_where_all_are_equal_and_nothing_costs_nobody_waits(strategy: str, workers: int) -> None:
    figures = figures_for(strategy, workers)
    assert figures.steps_per_second == pytest.approx(10.0 * workers, rel=1e-6)
    assert figures.no_wait_share == pytest.approx(1.0, rel=1e-6)
    assert figures.waiting_share == pytest.approx(0.0, abs=1e-9)
    assert figures.communication_share == pytest.approx(0.0, abs=1e-9)


def test_all_wait_for_the_one_that_is_late() -> None:
    figures = figures_for("all-reduce", 8, late="one-of:100ms")
    assert figures.rounds_per_second == pytest.approx(5.0, rel=1e-6)
    assert figures.waiting_share == pytest.approx(7 / 8 * 0.1 / 0.2, rel=1e-6)
    assert figures.no_wait_share == pytest.approx((0.1 + 0.1 / 8) / 0.2, rel=0.02)


def test_with_a_quorum_of_one_nobody_waits_for_the_slow_one() -> None:
    figures = figures_for("eager-solo", 4, 200, late="rank:3:x4")
    assert figures.steps_per_second == pytest.approx(3 * 10.0 + 2.5, rel=0.02)
    assert figures.contributors == pytest.approx(3.25, rel=0.02)
    assert figures.staleness_p50 == 0.0 and figures.staleness_p95 in (3.0, 4.0)


def test_every_contribution_counts_once() -> None:
    """Who goes on without waiting has several pending when a round comes."""
    late = parse_imbalance("rank:3:x4", seed=1, size=4)
    busy = Modelled(compute=Constant(0.1), imbalance=late)
    case = Case(workers=4, steps=100, parameters=10, busy=busy, links=links_from("1ms:1GB"))
    played = times_of("quorum", {"wait_for": "all", "overlap": True}).play(case)
    taken = sum(count for formed in played.rounds for count in formed.stalenesses.values())
    assert len(played.rank) - 40 < taken <= len(played.rank)  # what came after the last round is pending
    assert taken > 2 * sum(formed.contributors for formed in played.rounds)


def test_the_bound_holds_the_others_back() -> None:
    figures = figures_for("bounded-staleness", 4, 200, late="rank:3:x40", max_staleness=2)
    assert figures.steps_per_second < 3 * 2.0
    assert figures.staleness_p95 is not None and figures.staleness_p95 <= 2.0


def test_local_steps_wait_once_in_a_period() -> None:
    each, rare = (figures_for("local-sgd", 8, 64, late="one-of:100ms", sync_every=period) for period in (1, 16))
    assert rare.steps_per_second > 1.2 * each.steps_per_second
    assert rare.rounds_per_second == pytest.approx(rare.steps_per_second / 8 / 16, rel=0.2)


def test_what_leaves_one_worker_shares_its_port() -> None:
    ports, mesh = (figures_for("eager-solo", 8, network=f"0:1MB{kind}") for kind in ("", ":mesh"))
    assert ports.communication_share > 2 * mesh.communication_share


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("quorom", {}, 'unknown strategy "quorom"; did you mean "quorum"?'),
        ("adaptive-local-sgd", {}, "recorded times do not tell when workers meet under adaptive-local-sgd"),
        ("quorum", {"wait": 1}, 'unknown setting of quorum "wait"'),
        ("quorum", {"wait_for": []}, "it should be"),
        ("quorum", {"clip_norm": "x"}, "the setting clip_norm of quorum is 'x'"),
        ("ddp", {"x": 1}, "ddp has no settings; leave out x"),
    ],
)
def test_names_and_settings_are_checked(name: str, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        times_of(name, settings)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("quorum", {"wait_for": 9}, "wait_for is 9, and there are 4 workers"),
        ("post-local-sgd", {}, "from the first decay of the learning rate on"),
        ("local-sgd", {"sync_every": 0}, "sync_every is 0"),
        ("d-psgd", {"topology": "exponential"}, "are directed, but d-psgd needs undirected ones"),
        ("sgp", {"topology": "cycle"}, 'unknown topology "cycle"'),
        ("eager-averaging", {"sync_every": "2s"}, "with recorded times it must be a number of steps"),
        ("osgp", {"bound": -1}, "bound is -1"),
    ],
)
def test_what_does_not_fit_the_workers_is_refused(name: str, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        times_of(name, settings).check(4)
    assert sentence in str(refused.value)


def test_a_graph_of_too_many_edges_is_refused() -> None:
    case = Case(workers=1500, steps=1, parameters=1, busy=Modelled(compute=Constant(0.1)), links=links_from(FREE))
    with pytest.raises(ConfigurationError, match="more than 2,000,000 edges"):
        times_of("d-psgd", {"topology": "complete"}).play(case)


def test_the_stretch_is_that_in_which_all_are_at_work() -> None:
    """Two workers, steps of 1 and 3 seconds; warm after 1 step of 10, until the first has taken its 10."""
    played = Played()
    for rank, seconds in enumerate((1.0, 3.0)):
        for step in range(10):
            played.step(rank, step * seconds, step * seconds, 0.0, step * seconds, (step + 1) * seconds)
    figures = figures_of(played, 2, 10)
    assert figures.seconds == pytest.approx(10.0 - 3.0)
    assert figures.steps_per_second == pytest.approx(1.0 + 1 / 3)


def test_quantiles_of_counts() -> None:
    assert quantile({0: 5, 3: 4, 9: 1}, 0.5) == 0.0
    assert quantile({0: 5, 3: 4, 9: 1}, 0.95) == 9.0
    assert quantile({}, 0.5) is None


def test_parts_travel_while_the_rest_is_computed() -> None:
    """100 MB at 1 GB/s are 0.1 s of a ring of two; the backward pass of 0.2 s hides all but the last part."""
    compute = Trace([0.3])
    case = Case(workers=2, steps=20, parameters=25_000_000, busy=Modelled(compute=compute), links=links_from("0:1GB"))
    figures = figures_of(times_of("all-reduce", {}).play(case), 2, 20)
    assert 0.3 < figures.step_p50 < 0.31
