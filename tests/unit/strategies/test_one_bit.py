"""1-bit Adam, 1-bit LAMB and 0/1 Adam: their equations, and what memories keep when workers change."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError, NotFinite
from quorate.strategies.parts.momenta import Momenta, WarmUp
from quorate.wire.virtual.wire import VirtualWire
from tests.support.every_strategy import OF_ADAM
from tests.support.scene import Scene, Trainer, flat, zeros

RATE, EPS, BETAS = 0.05, 1e-8, (0.9, 0.99)
NUMBERS = 64


def adam(parameters: Any, kind: type[torch.optim.Adam] = torch.optim.Adam, **options: Any) -> torch.optim.Adam:
    return kind(parameters, lr=RATE, betas=BETAS, eps=EPS, **options)


def slope(rank: int, step: int) -> Tensor:
    """The gradient of a worker, of numbers that differ in size."""
    drawn = torch.randn(NUMBERS, generator=torch.Generator().manual_seed(100 * step + rank))
    return drawn * torch.linspace(0.1, 2.0, NUMBERS) + 0.3


def linear(trainer: Trainer) -> Tensor:
    loss: Tensor = (trainer.model.weight.view(-1) * slope(trainer.rank, trainer.step)).sum()
    return loss


def scene(name: str, size: int = 2, *, steps: int = 12, **chosen: Any) -> Scene:
    fields: dict[str, Any] = {"model": zeros(16, 4, value=1.0), "loss": linear, "make": adam, **chosen}
    of_codec = {} if "compress" in chosen else {"dense_below": 1}
    return Scene(name, size, steps=steps, soon=False, **fields, **of_codec)


@dataclass
class Coding:
    """One bit per number with two memories, as in Algorithm 1, among `size` workers that own pieces."""

    size: int
    l2: bool = True
    errors: list[Tensor] = field(default_factory=list)
    owned: Tensor = field(default_factory=lambda: torch.zeros(NUMBERS))

    def _code(self, x: Tensor) -> Tensor:
        scale = x.square().mean().sqrt() if self.l2 else x.abs().mean()
        return torch.where(x >= 0, scale, -scale)

    def mean(self, vectors: list[Tensor]) -> Tensor:
        self.errors = self.errors or [torch.zeros(NUMBERS) for _ in vectors]
        ends, mean = [round(NUMBERS * place / self.size) for place in range(self.size + 1)], torch.zeros(NUMBERS)
        for begin, end in pairwise(ends):
            total = torch.zeros(end - begin)
            for vector, error in zip(vectors, self.errors, strict=True):
                wanted = vector[begin:end] / self.size + error[begin:end]
                total += (code := self._code(wanted))
                error[begin:end] = wanted - code
            wanted = total + self.owned[begin:end]
            mean[begin:end] = self._code(wanted)
            self.owned[begin:end] = wanted - mean[begin:end]
        return mean


@dataclass
class Reference:
    """Adam whose variance is frozen after some steps, with the momentum as `mean` of those of all workers."""

    size: int
    freeze: int
    mean: Callable[[list[Tensor]], Tensor]
    l2_decay: float = 0.0
    decoupled: float = 0.0
    x: Tensor = field(default_factory=lambda: torch.ones(NUMBERS))

    def train(self, steps: int) -> Tensor:
        (first, second), m, v = BETAS, torch.zeros(NUMBERS), torch.zeros(NUMBERS)
        for step in range(steps):
            gradients = [slope(rank, step) + self.l2_decay * self.x for rank in range(self.size)]
            if step < self.freeze:
                mean = torch.stack(gradients).mean(0)
                m, v = first * m + (1 - first) * mean, second * v + (1 - second) * mean**2
            else:
                unit = (v / (1 - second**self.freeze)).mean().sqrt()
                m = unit * self.mean([(first * m + (1 - first) * g) / unit for g in gradients])
            corrected = v / (1 - second ** min(step + 1, self.freeze))
            self.x = (1 - RATE * self.decoupled) * self.x
            self.x = self.x - RATE * m / (1 - first ** (step + 1)) / (corrected.sqrt() + EPS)
        return self.x


@pytest.mark.parametrize("scale", ["l1", "l2"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_one_bit_adam_equals_the_equations(size: int, scale: str) -> None:
    """Also of one worker, and of the first gradient after a freeze at once; steps have the corrections of Adam."""
    for freeze in (1, 4):
        wanted = Reference(size, freeze, Coding(size, scale == "l2").mean).train(12)
        for end in scene("one-bit-adam", size, freeze=freeze, scale=scale).ends():
            torch.testing.assert_close(end, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "decays"),
    [
        (partial(adam, weight_decay=0.3), {"l2_decay": 0.3}),
        (partial(adam, kind=torch.optim.AdamW, weight_decay=0.3), {"decoupled": 0.3}),
    ],
    ids=["Adam", "AdamW"],
)
def test_decay_is_a_part_of_the_gradient_or_decoupled(make: Any, decays: dict[str, float]) -> None:
    wanted = Reference(2, 4, lambda vectors: torch.stack(vectors).mean(0), **decays).train(12)
    for end in scene("one-bit-adam", make=make, freeze=4, compress="none").ends():
        torch.testing.assert_close(end, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OF_ADAM)
def test_the_warm_up_is_synchronous_training_to_the_bit(name: str) -> None:
    chosen: dict[str, Any] = {"make": partial(quorate.optim.LAMB, lr=RATE) if "lamb" in name else adam}
    plain = Scene("all-reduce", 3, model=(16, 4, 1), steps=8, **chosen).ends()
    more = {"doubles_after": 100} if name == "zero-one-adam" else {}
    warm = Scene(name, 3, model=(16, 4, 1), steps=8, freeze=0.5, total_steps=100, **more, **chosen).ends()
    assert all(torch.equal(x, y) for x, y in zip(plain, warm, strict=True))


# -- numbers that no gradient has touched


class Rows(nn.Module):
    """A table of which only the last rows are used, and a layer."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1, 1, 24).view(6, 4).repeat(4, 1)[:rows].clone())
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.table[-6:] * x)


@pytest.mark.parametrize("name", OF_ADAM)
def test_untouched_numbers_stay_and_change_nothing_for_the_others(name: str) -> None:
    def ends(rows: int, **chosen: Any) -> list[list[Tensor]]:
        model = partial(Rows, rows)
        loss = lambda t: t.model(slope(t.rank, t.step)[:24].view(6, 4)).square().mean()  # noqa: E731
        make = partial(quorate.optim.LAMB, lr=RATE, exclude=()) if "lamb" in name else adam
        fields: dict[str, Any] = {"model": model, "loss": loss, "make": make, "steps": 10, **chosen}
        return Scene(name, 2, **fields).run(lambda t: [p.detach().clone() for p in t.model.parameters()])

    for more, few in zip(ends(24), ends(6), strict=True):
        assert torch.equal(more[0][:-6], Rows(24).table[:-6])
        if name != "one-bit-lamb":  # whose ratios are of the full tensor
            torch.testing.assert_close(more[0][-6:], few[0], rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(more[1], few[1], rtol=1e-5, atol=1e-6)
            assert not torch.equal(more[0][-6:], Rows(6).table)


# -- messages and bytes


def test_a_step_sends_two_messages_for_each_part_whatever_the_number_of_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = list[int]()
    plain = VirtualWire.all_to_all
    monkeypatch.setattr(VirtualWire, "all_to_all", lambda *args, **how: (calls.append(1), plain(*args, **how))[1])
    counts = []
    for widths in ((8, 8, 1), (8, 8, 8, 8, 8, 8, 8, 1)):
        calls.clear()
        Scene("one-bit-adam", 2, model=widths, make=adam, steps=6, freeze=2, dense_below=1).run(flat_of)
        counts.append(len(calls))
    assert counts[0] == counts[1] >= 2 * 4


def flat_of(trainer: Trainer) -> Tensor:
    return flat(trainer.model)


@pytest.mark.parametrize("size", [2, 4])
def test_bytes_after_the_freeze_are_those_of_the_reducer(size: int) -> None:
    sent = list[list[int]]()

    def note_bytes(trainer: Trainer) -> None:
        trainer.seen.append(trainer.bytes_out)

    sent = scene("one-bit-adam", size, model=zeros(64, 256), loss=of_zeros, freeze=2, after=note_bytes).run(
        lambda t: (t.seen, t.worker.means.reducer.wire_bytes(size), t.worker.means.layout.header)
    )
    for seen, wanted, header in sent:
        assert seen[-1] - seen[-2] == seen[-3] - seen[-4]
        assert wanted <= seen[-1] - seen[-2] <= wanted + 64 * size
        assert seen[1] - seen[0] > 4 * 64 * 256
        assert seen[-1] - seen[-2] < 2 * (64 * 256 / 8) + 16 * header + 64 * size


def of_zeros(trainer: Trainer) -> Tensor:
    return (trainer.model(trainer.draw()) - trainer.rank).square().mean()


# -- the freeze


@dataclass
class FakeMoments:
    norms: dict[int, float]
    steps: int = 0
    memory: int = 20

    def variance_norm(self, squares: int | None = None) -> float:
        return self.norms[self.steps]


def settled_at(norms: Callable[[int], float], rates: Callable[[int], float] = lambda step: 0.1) -> int | None:
    """The step at which a variance of these norms has settled; its memory is 20 steps."""
    warm_up, moments = WarmUp(), FakeMoments({step: norms(step) for step in range(400)})
    worker: Any = type("Fake", (), {})()
    worker.replica = type("Fake", (), {})()
    worker.replica.moments = moments
    for step in range(1, 400):
        moments.steps, worker.replica.learning_rates = step, (rates(step),)
        if warm_up.has_settled(worker):
            return step
    return None


def test_the_freeze_waits_for_the_variance_and_for_the_rate() -> None:
    assert settled_at(lambda step: 1.0) == 22
    assert settled_at(lambda step: math.exp(-step / 100)) is None
    assert settled_at(lambda step: math.exp(step / 100)) is None
    assert settled_at(lambda step: 1 + math.exp(-step / 20)) in range(55, 90)
    assert settled_at(lambda step: 1.0, lambda step: min(step, 50)) == 70


def test_all_parameters_decide_together() -> None:
    """The norm is that of all variances, so that a small tensor that still changes decides nothing."""
    norms = scene("one-bit-adam", freeze=100).run(lambda t: t.worker.replica.moments.variance_norm())
    state = scene("one-bit-adam", freeze=100).run(lambda t: list(t.optimizer.state.values()))[0]
    total = sum(float(own["exp_avg_sq"].sum()) / (1 - BETAS[1] ** 12) for own in state)
    assert norms == pytest.approx([total] * 2, rel=1e-5)


def test_an_automatic_freeze_comes_in_the_same_step_on_all() -> None:
    def fast(parameters: Any) -> torch.optim.Adam:
        return torch.optim.Adam(parameters, lr=0.01, betas=(0.9, 0.8))  # memory of 5 steps

    ends = scene("one-bit-adam", 3, make=fast, steps=[60, 40, 50], freeze="auto").run(
        lambda t: (t.worker.state.is_frozen, t.parameters)
    )
    assert all(is_frozen for is_frozen, _ in ends)
    assert all(torch.equal(parameters, ends[0][1]) for _, parameters in ends)


@pytest.mark.parametrize(
    "settings", [{"freeze": 0}, {"freeze": 0.2}, {"freeze": 1.5, "total_steps": 10}, {"freeze": -3}], ids=str
)
def test_a_freeze_that_is_no_step_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="freeze is"):
        scene("one-bit-adam", **settings).run()


@pytest.mark.parametrize("name", OF_ADAM)
def test_other_optimizers_are_refused_before_an_update(name: str) -> None:
    with pytest.raises(ConfigurationError, match="whose momentum it encodes"):
        scene(name, make=partial(torch.optim.SGD, lr=0.1)).run()


@pytest.mark.parametrize("name", ["one-bit-adam", "one-bit-lamb"])
def test_layers_that_thaw_after_the_warm_up_are_refused(name: str) -> None:
    def thaw(trainer: Trainer) -> None:
        trainer.model[0].requires_grad_(trainer.step >= 3)

    with pytest.raises(ConfigurationError, match="other layers train than in the warm-up"):
        Scene(name, 2, model=(4, 3, 1), freeze=2, before=thaw).run()


def test_a_variance_that_cannot_freeze_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="amsgrad keeps the largest variance"):
        scene("one-bit-adam", make=partial(adam, amsgrad=True)).run()
    with pytest.raises(ConfigurationError, match="no momentum to encode"):
        scene("one-bit-adam", make=partial(torch.optim.Adam, betas=(0.0, 0.9))).run()


@pytest.mark.parametrize("name", ["one-bit-adam", "zero-one-adam"])
def test_a_gradient_that_is_not_finite_is_left_out_on_all_workers_or_ends_the_training(name: str) -> None:
    def spoil(trainer: Trainer) -> None:
        if trainer.step == 8 and trainer.rank == 1:
            trainer.model.weight.grad.fill_(math.nan)

    for end in scene(name, freeze=3, between=spoil, on_nonfinite="skip").ends():
        assert bool(torch.isfinite(end).all())
    with pytest.raises(NotFinite, match="rank 1"):
        scene(name, freeze=3, between=spoil, on_nonfinite="raise").run()


# -- 0/1 Adam


def test_local_steps_return_to_the_point_and_take_the_mean_momentum() -> None:
    """Algorithm 1 with the freeze after two steps, two local steps, and no codec."""
    (first, second), m, v, x = BETAS, torch.zeros(NUMBERS), torch.zeros(NUMBERS), torch.ones(NUMBERS)
    for step in range(2):
        mean = torch.stack([slope(rank, step) for rank in range(2)]).mean(0)
        m, v = first * m + (1 - first) * mean, second * v + (1 - second) * mean**2
        corrected = v / (1 - second ** (step + 1))
        x = x - RATE * m / (1 - first ** (step + 1)) / (corrected.sqrt() + EPS)
    step = 2
    for distance in (1, 2, 2):  # it doubles after a step
        sums, momenta = [torch.zeros(NUMBERS)] * 2, [m, m]
        for local in range(distance):
            for rank in range(2):
                momenta[rank] = first * momenta[rank] + (1 - first) * slope(rank, step + local)
                sums[rank] = sums[rank] + RATE * momenta[rank]
        step += distance
        m = torch.stack(sums).mean(0) / (RATE * distance)
        x = x - distance * RATE * m / (1 - first**step) / (corrected.sqrt() + EPS)
    settings: dict[str, Any] = {"freeze": 2, "double_every": 1, "longest": 2, "compress": "none"}
    for end in scene("zero-one-adam", steps=step, **settings).ends():
        torch.testing.assert_close(end, x, rtol=1e-4, atol=1e-5)


def test_momenta_are_encoded_between_squares_and_one_worker_keeps_moving() -> None:
    seen = list[Tensor]()
    scene("zero-one-adam", 1, freeze=40, doubles_after=2, steps=16, after=lambda t: seen.append(t.parameters)).run()
    moves = [float((x - y).norm()) for x, y in zip(seen[1:], seen, strict=False)]
    assert min(moves) > 0.2 * max(moves)


# -- memories


@pytest.mark.parametrize("name", OF_ADAM)
@pytest.mark.parametrize("saved", [3, 7, 8])
def test_a_resumed_training_has_the_bits_of_one_that_was_not_cut(name: str, saved: int, tmp_path: Path) -> None:
    """With the memories of all workers, and local steps that no mean has yet."""
    make = partial(quorate.optim.LAMB, lr=RATE) if "lamb" in name else adam
    plain = scene(name, 3, make=make).ends()
    scene(name, 3, make=make, root=tmp_path, steps=saved, saves=[saved]).run()
    resumed = scene(name, 3, make=make, root=tmp_path, loads=True).ends()
    assert all(torch.equal(x, y) for x, y in zip(plain, resumed, strict=True))


def test_what_was_applied_and_memories_add_up_to_what_was_produced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Across a change from two workers to three: the law of resize. `produced` and `applied` are in units."""
    produced, applied = torch.zeros(NUMBERS, dtype=torch.float64), torch.zeros(NUMBERS, dtype=torch.float64)
    plain = Momenta.mean_of

    def mean_of(state: Momenta, worker: Any, momentum: Any, weight: float, numbers: Any = ()) -> Any:
        produced.add_(momentum.segment(0).view(-1).double() / state.units[0] / worker.size)
        result = plain(state, worker, momentum, weight, numbers)
        if worker.rank == 0:
            applied.add_(result.mean.segment(0).view(-1).double())
        return result

    def memories(trainer: Trainer) -> Tensor:
        state = trainer.worker.reducer_state
        return (state.memory["error"]["weight"] + state.owned["weight"]).view(-1).double()

    monkeypatch.setattr(Momenta, "mean_of", mean_of)
    scene("one-bit-adam", 2, freeze=2, root=tmp_path, steps=7, saves=[7]).run()
    left = scene("one-bit-adam", 3, freeze=2, root=tmp_path, steps=15, loads=True).run(memories)
    assert float(produced.norm()) > 1
    torch.testing.assert_close(applied + sum(left, torch.zeros(NUMBERS)), produced, rtol=1e-6, atol=1e-6)


def test_the_checkpoint_loads_without_us(tmp_path: Path) -> None:
    (state, *_) = scene("one-bit-adam", freeze=4).run(lambda t: t.optimizer.state_dict())
    model = zeros(16, 4)()
    optimizer = adam(model.parameters())
    optimizer.load_state_dict(state)
    (own,) = optimizer.state.values()
    assert set(own) == {"step", "exp_avg", "exp_avg_sq"}
    assert float(own["step"]) == 12
    model(torch.ones(1, 16)).sum().backward()
    optimizer.step()
    assert bool(torch.isfinite(flat(model)).all())


@pytest.mark.parametrize("name", OF_ADAM)
def test_others_go_on_after_a_death(name: str) -> None:
    make = partial(quorate.optim.LAMB, lr=RATE) if "lamb" in name else adam
    for at in (20, 30):
        fields: dict[str, Any] = {"make": make, "steps": 16, "deaths": {2: at}, "on_death": "continue"}
        ends = scene(name, 3, **fields).survivors(lambda t: t.parameters)
        assert len(ends) == 2
        assert torch.equal(ends[0], ends[1])
        assert not torch.equal(ends[0], torch.ones(NUMBERS))


# -- 1-bit LAMB


def test_ratios_follow_the_gradients_within_their_bounds() -> None:
    """Gradients a tenth as large after ten steps: the ratio rises by a tenth in each step, up to 4."""

    def falling(trainer: Trainer) -> Tensor:
        return linear(trainer) * (0.01 if trainer.step >= 14 else 1.0)

    make = partial(quorate.optim.LAMB, lr=1e-3, betas=(0.9, 0.5))
    ends = scene("one-bit-lamb", make=make, loss=falling, steps=50, freeze=4).run(
        lambda t: (t.worker.state.factors, t.worker.state.ratios)
    )
    for factors, ratios in ends:
        assert factors == [4.0]
        assert ratios == ends[0][1]
        assert ratios[0] > 0
