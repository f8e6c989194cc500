"""Late outer gradients turned towards the outer momentum: the formulas, and where outer steps lead by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.quorums import rounds
from quorate.rounds.log import Round
from quorate.strategies.parts.learners import Learner, deltas_of
from quorate.strategies.parts.outer_gradients import Turning
from tests.support.local_trainings import net
from tests.support.scene import flat
from tests.unit.strategies.test_decoupled_diloco import are_equal, common, scene, trained, uneven

RATE, BETA = 0.5, 0.6
TURNED: dict[str, Any] = {"late": "turn", "late_aligned": 0.3, "late_opposed": 1.5, "late_turned": 0.7}
SGD: dict[str, Any] = {"outer_rate": RATE, "outer_momentum": BETA, **TURNED}
BY_STRATEGY: dict[str, dict[str, Any]] = {
    "async-local-sgd": {"sync_every": 4},
    "decoupled-diloco": {"sync_every": 4, "wait_for": 1, "overlap": 1, "averaging": "mean", "divide_by": "arrived"},
}


def by_hand(d: Tensor, m: Tensor, share: float = 1.0) -> Tensor:
    """The formulas of the docstring, with the constants of `TURNED` and a kappa of 1."""
    if not float(m.norm()) or not float(d.norm()):
        return d
    u, v = d / d.norm(), m / m.norm()
    cosine, trust = float(u @ v), share * float(d.norm() / (d.norm() + m.norm()))
    if cosine >= 0.3:
        return d
    if cosine < 0:
        return d - min(-1.5 * cosine * trust, 1.0) * cosine * d.norm() * v
    turned = min(0.7 * (1 - cosine) * trust, 1.0)
    w = (1 - turned) * u + turned * v
    return d.norm() * w / w.norm()


@pytest.mark.parametrize("angle", [0.0, 0.5, 1.2, 1.4, 1.6, 2.5, 3.1])
def test_a_tensor_is_turned_by_the_formulas(angle: float) -> None:
    turning = Turning(0.3, 1.5, 0.7, 1.0, 1.0)
    m, angle_of_d = torch.tensor([2.0, 0.0]), torch.tensor(angle)
    d = 3.0 * torch.stack([angle_of_d.cos(), angle_of_d.sin()])
    (result,) = turning.of([d], [m])
    torch.testing.assert_close(result, by_hand(d, m))
    (of_half,) = turning.of([d / 2], [m], 2.0)
    torch.testing.assert_close(of_half, result / 2)
    if angle > 1.58:
        assert float(d @ m) < float(result @ m) <= 1e-5, "the opposed part shrinks, and is never reversed"
    else:
        assert float(result.norm()) == pytest.approx(3.0)


def test_the_opposed_part_is_removed_at_most() -> None:
    d, m = torch.tensor([-1.0, 2.0]), torch.tensor([0.1, 0.0])
    (result,) = Turning(0.5, 100.0, 1.0, 0.0, 1.0).of([d], [m])
    torch.testing.assert_close(result, torch.tensor([0.0, 2.0]))


@pytest.mark.parametrize("momenta", [[], [torch.zeros(3)]])
def test_zero_momentum_leaves_the_outer_gradient(momenta: list[Tensor]) -> None:
    d = torch.tensor([1.0, -2.0, 3.0])
    assert torch.equal(Turning(0.5, 1.0, 1.0, 1.0, 1.0).of([d], momenta)[0], d)


@pytest.mark.parametrize("strategy", BY_STRATEGY)
def test_late_rounds_are_turned_before_the_outer_step(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The common point is where SGD with momentum leads, by hand, and is equal on all workers to the bit."""
    taken: dict[int, tuple[Round, float]] = {}
    contributed: dict[tuple[int, int], tuple[float, list[Tensor]]] = {}
    mean_of_fragments, was_handed_in, size = rounds.mean_of_fragments, Learner.was_handed_in, 3

    def noting(of_round: Round, *others: Any) -> Mean | None:
        mean = mean_of_fragments(of_round, *others)
        assert mean is not None
        taken[of_round.number] = of_round, sum(map(bool, mean.ages.values())) / max(1, len(mean.ages))
        return mean

    def noting_deltas(self: Learner, worker: Any, contribution: dict[str, Any]) -> None:
        (delta,) = contribution["vectors"]
        if weight := float(delta.segments()[-1][0]):
            contributed[worker.rank, self.times + 1] = weight, deltas_of(delta, size)
        was_handed_in(self, worker, contribution)

    monkeypatch.setattr(rounds, "mean_of_fragments", noting)
    monkeypatch.setattr(Learner, "was_handed_in", noting_deltas)
    ends = trained(size, strategy, steps=40, pause=uneven, look=common, **BY_STRATEGY[strategy], **SGD)
    assert are_equal(ends)

    x = [p.detach().reshape(-1) for p in net().parameters()]
    buffers: list[Tensor] = [torch.zeros_like(p) for p in x]
    gathered, arrivals, late_rounds = [torch.zeros_like(p) for p in x], 0, 0
    for _, (of_round, late_share) in sorted(taken.items()):
        entries = [
            contributed[rank, payloads[0]["time"]]
            for rank, payloads in of_round.measures.items()
            if payloads[0]["weights"][0]
        ]
        if not entries:
            continue
        total = sum(weight for weight, _ in entries)
        late_rounds += late_share > 0
        for place, buffer in enumerate(buffers):
            g = sum((weight / total * deltas[place] for weight, deltas in entries), torch.zeros(()))
            g = by_hand(g, (1 - BETA) * buffer, late_share) if late_share else g
            if strategy == "decoupled-diloco":
                buffer.mul_(BETA).add_(g)
                x[place] = x[place] - RATE * (g + BETA * buffer)
            else:
                x[place] = x[place] - RATE * g * len(entries) / size
                gathered[place] += g * len(entries) / size
        arrivals += len(entries)
        if strategy == "async-local-sgd" and arrivals >= size:
            for place, buffer in enumerate(buffers):
                buffer.mul_(BETA).add_(gathered[place])
                x[place] = x[place] - RATE * BETA * buffer
                gathered[place].zero_()
            arrivals = 0
    assert 0 < late_rounds < len(taken)
    torch.testing.assert_close(flat(ends[0][1][: len(x)]), torch.cat(x), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("strategy", BY_STRATEGY)
def test_fresh_rounds_are_left_as_they_are(strategy: str) -> None:
    alike: dict[str, Any] = {"sync_every": 4} | ({"wait_for": "all"} if strategy == "decoupled-diloco" else {})
    size = 3 if strategy == "decoupled-diloco" else 1
    ends = [trained(size, strategy, look=common, **alike, late=late) for late in ("turn", "carry")]
    assert all(map(torch.equal, ends[0][0][1], ends[1][0][1]))


@pytest.mark.parametrize("strategy", BY_STRATEGY)
@pytest.mark.parametrize("settings", [{"outer": "adam", "outer_rate": 0.01}, {"outer_momentum": 0.0}])
def test_adam_and_no_momentum_keep_learners_equal(strategy: str, settings: dict[str, Any]) -> None:
    ends = trained(3, strategy, pause=uneven, look=common, **{**BY_STRATEGY[strategy], **TURNED, **settings})
    assert are_equal(ends) and bool(ends[0][0].isfinite().all())
    carried = {**BY_STRATEGY[strategy], **settings, "late": "carry"}
    is_turned = not torch.equal(ends[0][0], trained(3, strategy, pause=uneven, **carried)[0][0])
    assert is_turned == ("outer" in settings)


def test_a_checkpoint_keeps_the_momentum_that_turns(tmp_path: Path) -> None:
    unbroken, resumed = scene(1, "async-local-sgd", steps=14, sync_every=4, **SGD).resumed(tmp_path, 6, 9)
    assert all(map(torch.equal, resumed, unbroken))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"late_most": 1.1}, "late_most=1.1: the first is a cosine, from -1 to 1, the second a share, from 0 to 1"),
        ({"late_aligned": -2.0}, "late_aligned=-2.0, late_most=1.0: the first is a cosine"),
        ({"late_kappa": -0.1}, "late_kappa is -0.1; it must be a number"),
    ],
)
def test_constants_that_cannot_be_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        trained(1, "decoupled-diloco", steps=1, late="turn", **settings)
