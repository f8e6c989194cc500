"""Ways of bounded length and noise in their sum: who counts, how much noise there is, and when a round is left out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat, header_in
from quorate.strategies.parts.client_work import clipped, noised
from tests.support.federated_trainings import CLIENTS, RATE, gradient, net, rounds_of, scene, trained
from tests.support.scene import Scene, Trainer, flat, parameters

CHOICE: dict[str, Any] = {"sampled": 0.5, "local_epochs": 2, "weigh": "equal", "clip": 0.2}


def ways(x: Tensor, number: int, **terms: Any) -> list[Tensor]:
    """Of the clients of a round that began at `x`, clipped."""
    found: dict[int, Tensor] = {}
    for turn, indices in rounds_of(number + 1, **{"sampled": 0.5, "epochs": 2, **terms})[number]:
        y = found.setdefault(turn.client, x.clone())
        y -= RATE * gradient(y, indices)
    return [(y - x) * min(1.0, 0.2 / float((y - x).norm())) for y in found.values()]


def dies_in_a_round(trainer: Trainer) -> None:
    """Rank 1 dies in the second one, before its second step."""
    if (trainer.rank, trainer.loader.epoch, trainer.place) == (1, 1, 1):
        trainer.wire.crash()


def vector(numbers: Tensor) -> Flat:
    from quorate.buckets.flat import layout_of

    made = Flat.zeros(layout_of([("x", numbers)], header=3))
    made.segment(0).copy_(numbers)
    header_in(made).fill_(100.0)
    return made


def test_a_way_is_shortened_and_none_is_made_longer() -> None:
    assert clipped(vector(torch.tensor([3.0, 4.0])), 1.0).segment(0).tolist() == pytest.approx([0.6, 0.8])
    assert clipped(vector(torch.tensor([0.3, 0.4])), 1.0).segment(0).tolist() == pytest.approx([0.3, 0.4])
    assert clipped(vector(torch.tensor([3.0, 4.0])), 0.0).segment(0).tolist() == [3.0, 4.0]
    assert clipped(vector(torch.tensor([3.0, float("nan")])), 1.0).segment(0).tolist() == [0.0, 0.0]


def test_noise_has_its_deviation_and_is_another_each_time() -> None:
    zeros = vector(torch.zeros(20_000))
    one = noised(zeros, 0.5, None).segment(0)
    assert float(one.std()) == pytest.approx(0.5, rel=0.03)
    assert not torch.equal(one, noised(zeros, 0.5, None).segment(0))
    assert torch.equal(noised(zeros, 0.5, [1, 2]).segment(0), noised(zeros, 0.5, [1, 2]).segment(0))
    assert not torch.equal(noised(zeros, 0.5, [1, 2]).segment(0), noised(zeros, 0.5, [1, 3]).segment(0))


def test_clipped_clients_count_alike() -> None:
    x = flat(net())
    for number in range(2):
        own = ways(x, number)
        x = x + sum(own) / len(own)
    torch.testing.assert_close(trained(3, "fed-avg", rounds=2, **CHOICE), x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("secure", [False, True])
def test_the_sum_is_over_how_many_are_drawn_on_average(secure: bool) -> None:
    """With hardly any noise: independent draws, and a denominator that tells nobody how many came."""
    x = flat(net())
    for number in range(3):
        x = x + sum(ways(x, number, is_independent=True)) / (0.5 * CLIENTS)
    found = trained(3, "fed-avg", rounds=3, noise=1e-6, secure=secure, secure_bits=24, **CHOICE)
    torch.testing.assert_close(found, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3])
def test_the_noise_in_a_round_is_that_of_one_draw_however_many_workers_add_it(size: int) -> None:
    calm = trained(size, "fed-avg", rounds=1, noise=1e-9, **CHOICE)
    found = [trained(size, "fed-avg", rounds=1, noise=2.0, noise_seed=seed, **CHOICE) - calm for seed in range(25)]
    assert float(torch.cat(found).std()) == pytest.approx(2.0 * 0.2 / (0.5 * CLIENTS), rel=0.06)
    assert not torch.equal(trained(2, "fed-avg", rounds=1, noise=2.0, **CHOICE), found[0] + calm)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(("size", "sampled", "rounds"), [(3, 0.02, 1), (3, 0.2, 2), (2, 0.1, 4)])
def test_the_noise_does_not_depend_on_how_many_clients_were_drawn(
    size: int, sampled: float, rounds: int, secure: bool
) -> None:
    """Nobody, one client, or few: also workers without a drawn client add their noise, in every round."""
    drawn = [len({turn.client for turn, _ in own}) for own in rounds_of(rounds, sampled=sampled, is_independent=True)]
    assert min(drawn) < size
    choice = {**CHOICE, "sampled": sampled, "clip": 1e-3, "secure": secure, "secure_bits": 20, "rounds": rounds}
    calm = trained(size, "fed-avg", noise=1e-9, **choice)
    found = [trained(size, "fed-avg", noise=20.0, noise_seed=seed, **choice) - calm for seed in range(8)]
    expected = math.sqrt(rounds) * 20.0 * 1e-3 / (sampled * CLIENTS)
    assert float(torch.cat(found).std()) == pytest.approx(expected, rel=0.1)


def test_survivors_add_the_noise_of_a_dead_worker_from_the_next_round_on(capfd: pytest.CaptureFixture[str]) -> None:
    def ends(seed: int, noise: float) -> Tensor:
        choice = {**CHOICE, "sampled": 0.9, "clip": 1e-3, "noise": noise, "noise_seed": seed}
        found = scene("fed-avg", 3, rounds=4, before=dies_in_a_round, **choice).outcomes(parameters)
        first, second = found[0].result, found[2].result
        assert first is not None and second is not None and torch.equal(first, second)
        return first

    calm = ends(0, 1e-9)
    found = [ends(seed, 20.0) - calm for seed in range(8)]
    assert float(torch.cat(found).std()) == pytest.approx(math.sqrt(3) * 20.0 * 1e-3 / (0.9 * CLIENTS), rel=0.1)
    assert capfd.readouterr().err.count("a round is left out: 1 of 3 workers are missing") == 2 * 9


def test_a_round_in_which_a_worker_died_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    """Its clients are missing, and with them their part of the noise."""

    choice: Any = {**CHOICE, "sampled": 0.9, "noise": 1e-6}
    found = scene("fed-avg", 3, rounds=2, before=dies_in_a_round, **choice).outcomes(parameters)
    x = flat(net())
    x = x + sum(ways(x, 0, is_independent=True, sampled=0.9)) / (0.9 * CLIENTS)
    for rank in (0, 2):
        assert found[rank].result is not None
        torch.testing.assert_close(found[rank].result, x, rtol=1e-4, atol=1e-5)
    assert "a round is left out: " in capfd.readouterr().err


def test_where_workers_are_clients_nothing_is_hidden_and_it_says_so() -> None:
    with pytest.raises(ConfigurationError, match="noise and secure need the clients of a loader"):
        Scene("fed-avg", 2, sync_every=1, secure=True).run()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": -1.0}, "clip=-1.0, noise=0.0: they are numbers from 0 on"),
        ({"noise": 1.0, "weigh": "equal"}, "set clip as well"),
        ({"noise": 1.0, "clip": 1.0}, 'set weigh="equal"'),
        ({"secure": True, "secure_dropouts": -1}, "the first must be at least 0, the second from 0 to 30"),
    ],
)
def test_settings_under_which_nothing_is_hidden_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        trained(2, "fed-avg", **settings)


def test_control_variates_cannot_be_hidden() -> None:
    with pytest.raises(ConfigurationError, match="scaffold sends control variates as well"):
        trained(2, "scaffold", secure=True)
