"""What is learnt from gradients that codecs write small, in ordinary loops, on unequal workers, and among those that
die, join, rest, stop and go on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from quorate.codecs.error_feedback import ERROR
from quorate.means import OF_GRADIENTS
from quorate.means.reduction import NONE, compressing
from quorate.means.two_phase import TwoPhaseState
from quorate.wire.virtual.network import Network
from tests.support.scene import Scene, Trainer, apart, squares
from tests.unit.rounds.test_joining import Plan, check

FOR_SMALL: dict[str, dict[str, Any]] = {
    "top-k": {"density": 0.15},
    "chunked-top-k": {"chunk": 64, "keep": 10},
    "tiled-top-k": {"tile": 8, "keep": 16},
    "random-k": {"density": 0.5},
    "mask": {"density": 0.5},
    "threshold": {"at": 1.0},
    "dgc": {
        "compress": "dgc:momentum=0.0",
        "density": 0.2,
    },  # these loops have momentum
    "power-sgd": {"rank": 2, "start": 2, "min_rate": 1.0},
    "arc-top-k": {"compress": "arc-top-k:momentum=0.0", "density": 0.2, "start": 2},  # these loops have momentum
}
"""Settings for tensors of some hundred numbers and some hundred steps, where defaults are for larger ones."""
CODED: dict[str, dict[str, Any]] = {
    name: {"compress": name, "dense_below": 0, **FOR_SMALL.get(name, {})} for name in compressing() if name != NONE
}
CODED["top-k, two-phase"] = {**CODED["top-k"], "reduce": "two-phase"}
CODED["top-k, hierarchical"] = {**CODED["top-k"], "reduce": "hierarchical"}
CODED["tiled-top-k, clipped"] = {**CODED["tiled-top-k"], "clip_codes": True}
CODED["adasum"] = {"reduce": "adasum"}
CODED["centered-clipping"] = {"reduce": "centered-clipping:f=0"}
OF_DECODED = {
    "geometric-median of top-k": {**CODED["top-k"], "reduce": "geometric-median:f=0"},
    "centered-clipping of qsgd": {**CODED["qsgd"], "reduce": "centered-clipping:f=0"},
}
"""Rules beside codecs."""
CODED.update(OF_DECODED)
IN_EVERY_WAY = (
    "half",
    "top-k",
    "random-k",
    "dgc",
    "power-sgd",
    "arc-top-k",
    "top-k, two-phase",
    "top-k, hierarchical",
    "adasum",
    "centered-clipping",
    *OF_DECODED,
)
"""One that is summed, one with feedback, one drawn by all alike, one with memories of its own, each way of summing."""
STEPS = 90


@dataclass
class Loop:
    """An ordinary training of a small network on drawn data."""

    settings: dict[str, Any]
    make: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)
    clips: bool = False
    accumulates: int = 1
    schedules: bool = False
    uneven: bool = False

    def run(self, size: int = 3) -> tuple[float, list[torch.Tensor]]:
        """The loss of rank 0 on data of its own at the end, and each worker's parameters."""
        network = Network(hosts=[0, 0, 1]) if self.settings.get("reduce") == "hierarchical" else None
        paces = [random.Random(rank) for rank in range(size)]
        fields: dict[str, Any] = {"strategy": "all-reduce", **self.settings}
        fields["steps"] = [STEPS - 20 * rank * self.uneven for rank in range(size)]
        fields["pause"] = lambda rank, step: 0.01 * paces[rank].random()
        hooks: Any = {"begin": self.begin, "between": self.clip, "after": lambda t: t.schedule and t.schedule.step()}
        choice: Any = {"model": (8, 24, 24, 2), "make": self.make, "loss": self.loss, "passes": self.accumulates}
        scene = Scene(size=size, world={"seed": 2, "network": network}, **choice, **hooks, **fields)
        told = scene.run(lambda t: (self.error(t, torch.Generator().manual_seed(99), 512).item(), t.parameters))
        return told[0][0], [parameters for _, parameters in told]

    def begin(self, trainer: Trainer) -> None:
        optimizer, trainer.draws = trainer.optimizer, torch.Generator().manual_seed(10 + trainer.rank)
        trainer.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS) if self.schedules else None

    def clip(self, trainer: Trainer) -> None:
        if self.clips:
            nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)

    def loss(self, trainer: Trainer) -> torch.Tensor:
        return self.error(trainer, trainer.draws, 16) / self.accumulates

    @staticmethod
    def error(trainer: Trainer, draw: torch.Generator, examples: int) -> torch.Tensor:
        x = torch.randn(examples, 8, generator=draw)
        y = torch.stack([(x[:, :4].sum(1)).tanh(), (x[:, 4:] * x[:, :4]).sum(1).tanh()], 1)
        return (trainer.model(x) - y).square().mean()


LOOPS: dict[str, dict[str, Any]] = {
    "SGD with momentum": {},
    "AdamW": {"make": lambda p: torch.optim.AdamW(p, lr=0.01)},
    "clipped, with a schedule": {"clips": True, "schedules": True},
    "accumulated": {"accumulates": 2},
    "uneven ends": {"uneven": True},
}


@cache
def _dense(loop: str) -> float:
    return Loop({}, **LOOPS[loop]).run()[0]


@pytest.mark.covering(("name", "loop"), product(CODED, LOOPS))
def test_an_ordinary_loop_learns_nearly_as_much(name: str, loop: str) -> None:
    dense = _dense(loop)
    loss, replicas = Loop(CODED[name], **LOOPS[loop]).run()
    assert all(torch.equal(replica, replicas[0]) for replica in replicas)
    assert loss <= 1.6 * dense + 0.02, f"{loss:.4f}, dense {dense:.4f}"


@pytest.mark.parametrize("name", IN_EVERY_WAY)
def test_one_dies_and_one_joins(name: str) -> None:
    settings = {"on_death": "continue", **CODED[name]}
    plan = Plan(size=3, strategy="all-reduce", settings=settings, joins={3: 0.05}, deaths={0: 100})
    assert set(check(plan, plan.run())) == {1, 2, 3}


@pytest.mark.parametrize("name", IN_EVERY_WAY)
@pytest.mark.seeds(1, 6)
def test_at_any_time(name: str, seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5])
    plan = Plan(
        size=size,
        strategy="all-reduce",
        settings={"on_death": "continue", **CODED[name]},
        joins={size: draw.uniform(0.0, 0.5)} if draw.random() < 0.6 else {},
        deaths={rank: draw.randint(1, 150) for rank in draw.sample(range(size), draw.choice([0, 1]))},
        seed=seed,
        freezes=draw.choice([None, 2]),
    )
    check(plan, plan.run())


def left(trainer: Trainer) -> None:
    """See what was left out of gradients by then (of rank 0 after the first load, where there was one)."""
    state = trainer.worker.reducer_state
    errors: Sequence[torch.Tensor] = ()
    if state is not None:  # under rounds it is what waits with them
        memory = getattr(state, "memory", {})  # a rule remembers no errors
        errors = (
            [*memory[ERROR].values()] if ERROR in memory else getattr(getattr(state, "error", None), "segments", list)()
        )
    seen = torch.cat([x.flatten() for x in errors]) if errors else torch.zeros(1)
    if isinstance(state, TwoPhaseState) and state.owned:
        seen = seen + torch.cat([*state.owned.values()])
    trainer.seen.append(seen.clone().cpu())


def scene(name: str, size: int = 3, steps: int = 12, **settings: Any) -> Scene:
    fields: dict[str, Any] = {"model": (6, 16, 1), "heavy": 0.9, "steps": steps, "loss": apart, "last": left}
    return Scene(size=size, **fields, **{"strategy": "all-reduce", **CODED[name], **settings})


def both(trainer: Trainer) -> torch.Tensor:
    """The parameters and what was left out of gradients by then, flat."""
    return torch.cat([trainer.parameters, *trainer.seen])


@pytest.mark.covering(("name", "size"), product(CODED, [2, 3]))
def test_it_goes_on_to_the_bit_from_a_checkpoint(tmp_path: Path, size: int, name: str) -> None:
    whole, again = scene(name, size).resumed(tmp_path, 5, 8, both)
    assert all(map(torch.equal, again, whole))


@pytest.mark.parametrize("name", OF_DECODED)
def test_momenta_under_a_rule_go_on_to_the_bit_from_a_checkpoint(tmp_path: Path, name: str) -> None:
    whole, again = scene(name, strategy="robust").resumed(tmp_path, 5, 8, both)
    assert all(map(torch.equal, again, whole))


@pytest.mark.covering(("size", "name"), product([2, 4, 5], ["top-k", "power-sgd", "top-k, two-phase"]))
def test_in_a_world_of_another_size_the_sum_of_what_is_left_stays(tmp_path: Path, name: str, size: int) -> None:
    before = scene(name, steps=5, root=tmp_path, saves=[5]).run()
    after = scene(name, size, steps=5, root=tmp_path, loads=True).run()
    sums = [torch.stack([trainer.seen[0] for trainer in ends]).sum(0) for ends in (before, after)]
    assert float(sums[0].abs().max()) > 0.01
    torch.testing.assert_close(sums[0], sums[1])


def test_another_codec_begins_anew_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene("top-k", 2, 5, root=tmp_path, saves=[5]).run()
    scene("half", 2, 6, root=tmp_path, loads=True).run()
    assert "the memory of the codec of all-reduce starts empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("strategy", "settings", "sentence"),
    [
        ("all-reduce", {"compress": "top"}, 'unknown codec "top"'),
        ("all-reduce", {"compress": "top-k:density=2.0"}, "density is 2.0; it must be a share"),
        ("all-reduce", {"compress": "top-k:0.1"}, '"0.1" in the codec "top-k:0.1" is not a setting'),
        ("all-reduce", {"compress": "top-k", "density": 2.0}, "density is 2.0; it must be a share"),
        ("all-reduce", {"compress": "top-k", "densty": 0.1}, 'unknown setting of top-k "densty"'),
        ("all-reduce", {"compress": "half", "reduce": "ring"}, 'unknown way to reduce "ring"'),
        (
            "all-reduce",
            {"dense_below": 3},
            "dense_below: these are settings of a codec, but there is none; choose one with compress=",
        ),
        ("all-reduce", {"compress": "half", "dense_below": -1}, "dense_below is -1"),
        ("all-reduce", {"density": 0.1}, 'unknown setting of all-reduce "density"'),
        ("local-sgd", {"compress": "half"}, 'compress="half" cannot be combined with local-sgd'),
        ("quorum", {"reduce": "ring"}, 'reduce="ring" cannot be combined with quorum'),
        ("all-reduce", {"reduce": "hierarchical"}, 'reduce="hierarchical" says how codes are summed; choose one'),
        (
            "all-reduce",
            {"compress": "power-sgd", "reduce": "two-phase"},
            "power-sgd forms its sums in its own way",
        ),
        ("all-reduce", {"reduce": "rings"}, 'unknown way to reduce "rings"; did you mean "ring"?'),
        ("eager-averaging", {"compress": "half"}, 'compress="half" cannot be combined with eager-averaging'),
        (
            "diloco",
            {"compress": "power-sgd"},
            'compress="power-sgd" is for gradients (all-reduce); use a codec with diloco',
        ),
        ("all-reduce", {"compress": "top-k", "error_decay": 0.0}, "error_decay is 0.0; it must be a factor above 0"),
        ("all-reduce", {"compress": "half", "error_decay": 0.5}, "half keeps no errors that could decay; leave"),
        ("all-reduce", {"compress": "dgc", "error_decay": 0.5}, "dgc keeps no errors that could decay; leave"),
        ("all-reduce", {"compress": "power-sgd", "error_decay": 0.5}, "power-sgd keeps its errors undiminished; leave"),
        (
            "all-reduce",
            {"compress": "top-k", "reduce": "two-phase", "error_decay": 0.5},
            'reduce="two-phase" hands errors on from worker to worker',
        ),
        (
            "quorum",
            {"compress": "top-k", "error_decay": 0.5},
            "error_decay=0.5 cannot be combined with quorum: what a codec",
        ),
        *(
            (
                strategy,
                {"compress": codec, "error_decay": 0.5},
                f"error_decay=0.5 cannot be combined with {strategy}: what a codec leaves out is kept as it is",
            )
            for strategy, codec in (("choco-sgd", "top-k"), ("dcd-psgd", "random-k"))
        ),
        (
            "choco-sgd",
            {"compress": "top-k", "error_feedback": False},
            "error_feedback=False cannot be combined with choco",
        ),
        ("local-sgd", {"reduce": "adasum"}, 'reduce="adasum" is for gradients (all-reduce); local-sgd does not'),
        (
            "quorum",
            {"reduce": "adasum"},
            'reduce="adasum" cannot be combined with quorum: it selects how sums over all workers',
        ),
        (
            "diloco",
            {"compress": "half", "after": 3},
            'compress="half" cannot be combined with synchronous steps before',
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(strategy: str, settings: dict[str, Any], sentence: str) -> None:
    assert Scene(strategy, 2, model=(2, 1), settings=settings).refusal().startswith(sentence)


WAYS: dict[str, dict[str, Any]] = {
    "whole": {"strategy": "diloco", "sync_every": 6, "outer_momentum": 0.5},
    "fragments": {"strategy": "diloco", "sync_every": 6, "fragments": 3, "overlap": 1, "outer_momentum": 0.5},
}
OF_WAYS = [name for name in IN_EVERY_WAY if name not in (*OF_GRADIENTS, "adasum", "centered-clipping", *OF_DECODED)]


@cache
def _dense_ways(way: str) -> float:
    return Loop(WAYS[way]).run()[0]


@pytest.mark.covering(("name", "way"), product(OF_WAYS, WAYS))
def test_ways_of_local_steps_are_written_small(name: str, way: str) -> None:
    loss, replicas = Loop(WAYS[way] | CODED[name]).run()
    assert all(torch.equal(replica, replicas[0]) for replica in replicas)
    assert loss <= 1.6 * _dense_ways(way) + 0.02, f"{loss:.4f}, dense {_dense_ways(way):.4f}"


AMONG_NEIGHBOURS: dict[str, dict[str, Any]] = {
    "choco-sgd, top-k": {"strategy": "choco-sgd", **CODED["top-k"]},
    "choco-sgd, sign": {"strategy": "choco-sgd", **CODED["sign"]},
    "choco-sgd, in turn": {"strategy": "choco-sgd", "overlap": False, **CODED["random-k"]},
    "dcd-psgd": {"strategy": "dcd-psgd", **CODED["qsgd"]},
    "ecd-psgd": {"strategy": "ecd-psgd", **CODED["half"]},
}


@cache
def _dense_among_neighbours(loop: str) -> float:
    return Loop({"strategy": "d-psgd"}, **LOOPS[loop]).run()[0]


@pytest.mark.covering(("name", "loop"), product(AMONG_NEIGHBOURS, LOOPS))
def test_differences_between_neighbours_are_written_small(name: str, loop: str) -> None:
    dense = _dense_among_neighbours(loop)
    loss, replicas = Loop(AMONG_NEIGHBOURS[name], **LOOPS[loop]).run()
    assert all(torch.equal(replica, replicas[0]) for replica in replicas)
    assert loss <= 1.6 * dense + 0.02, f"{loss:.4f}, dense {dense:.4f}"


@pytest.mark.parametrize("name", OF_WAYS)
@pytest.mark.seeds(1, 6)
def test_they_are_among_those_that_die_and_join(name: str, seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5])
    plan = Plan(
        size=size,
        strategy="diloco",
        settings={"sync_every": 4, "fragments": draw.choice([1, 2]), **CODED[name]},
        joins={size: draw.uniform(0.0, 0.5)} if draw.random() < 0.6 else {},
        deaths={rank: draw.randint(1, 150) for rank in draw.sample(range(size), draw.choice([0, 1]))},
        seed=seed,
    )
    check(plan, plan.run())


@pytest.mark.parametrize("name", OF_WAYS)
def test_local_steps_go_on_to_the_bit_from_a_checkpoint(tmp_path: Path, name: str) -> None:
    settings = {"strategy": "diloco", "sync_every": 4, "fragments": 2, "momentum": "keep"}
    whole, again = scene(name, 2, 16, **settings).resumed(tmp_path, 7, 9, both)
    assert all(map(torch.equal, again, whole))


@pytest.mark.parametrize("name", ["half", "top-k", "power-sgd", "top-k, two-phase", "top-k, hierarchical", "adasum"])
def test_a_scaler_skips_the_step_of_all_where_one_gradient_overflows(name: str) -> None:
    def live(trainer: Trainer) -> tuple[list[float], list[float], torch.Tensor]:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
        scales, weights, optimizer = list[float](), list[float](), trainer.optimizer
        for trainer.step in range(8):
            optimizer.zero_grad()
            overflows = trainer.step == 5 and trainer.rank == 1
            scaler.scale(squares(trainer) * (torch.inf if overflows else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            weights.append(float(trainer.model[0].weight.detach().double().sum()))
        return scales, weights, trainer.finish().parameters

    told = Scene(model=(8, 24, 2), on_nonfinite="ignore", **CODED[name]).act(live)
    for scales, weights, parameters in told:
        assert scales == [8.0] * 5 + [4.0] * 3
        assert weights[5] == weights[4] and weights[6] != weights[5]
        assert torch.equal(parameters, told[0][2]) and bool(parameters.isfinite().all())
