"""What is learnt from gradients that codecs write small, in ordinary loops, on unequal workers, and among those that
die, join, rest, stop and go on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.codecs.error_feedback import ERROR
from quorate.core.errors import ConfigurationError
from quorate.launch.worker.world import World
from quorate.means.reduction import NONE, compressing
from quorate.means.two_phase import TwoPhaseState
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.kept_trainings import in_world
from tests.unit.rounds.test_joining import Plan, check

FOR_SMALL: dict[str, dict[str, Any]] = {
    "top-k": {"density": 0.15},
    "chunked-top-k": {"chunk": 64, "keep": 10},
    "random-k": {"density": 0.5},
    "mask": {"density": 0.5},
    "threshold": {"at": 1.0},
    "dgc": {
        "compress": "dgc:momentum=0.0",
        "density": 0.2,
    },  # these loops have momentum
    "power-sgd": {"rank": 2, "start": 2, "min_rate": 1.0},
}
"""Settings for tensors of some hundred numbers and some hundred steps, where defaults are for larger ones."""
CODED: dict[str, dict[str, Any]] = {
    name: {"compress": name, "dense_below": 0, **FOR_SMALL.get(name, {})} for name in compressing() if name != NONE
}
CODED["top-k, two-phase"] = {**CODED["top-k"], "reduce": "two-phase"}
CODED["top-k, hierarchical"] = {**CODED["top-k"], "reduce": "hierarchical"}
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
    "top-k, two-phase",
    "top-k, hierarchical",
    "adasum",
    "centered-clipping",
    *OF_DECODED,
)
"""One that is summed, one with feedback, one drawn by all alike, one with memories of its own, each way of summing."""
STEPS = 150


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
        between = Network(hosts=[0, 0, 1]) if self.settings.get("reduce") == "hierarchical" else None
        told = VirtualWorld(size, seed=2, network=between).run(joined(self._live))
        return told[0][0], [parameters for _, parameters in told]

    def _live(self, world: quorate.World) -> tuple[float, torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 2))
        optimizer: Any = quorate.distribute(self.make(model.parameters()), model, **self.settings)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        draw, pace = torch.Generator().manual_seed(10 + world.rank), random.Random(world.rank)
        for _ in range(STEPS - 20 * world.rank if self.uneven else STEPS):
            optimizer.zero_grad()
            for turn in range(self.accumulates):
                with optimizer.accumulate() if turn < self.accumulates - 1 else nullcontext():
                    (self._loss(model, draw) / self.accumulates).backward()
            if self.clips:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            world.wire.clock.sleep(0.01 * pace.random())
            optimizer.step()
            if self.schedules:
                schedule.step()
        optimizer.finish()
        with torch.no_grad():
            loss = float(self._loss(model, torch.Generator().manual_seed(99), 512))
        return loss, torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    @staticmethod
    def _loss(model: nn.Module, draw: torch.Generator, examples: int = 16) -> torch.Tensor:
        x = torch.randn(examples, 8, generator=draw)
        y = torch.stack([(x[:, :4].sum(1)).tanh(), (x[:, 4:] * x[:, :4]).sum(1).tanh()], 1)
        return (model(x) - y).square().mean()


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


def trained(
    world: World, name: str, steps: int, save_at: int | None = None, **settings: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Parameters, and what was left out of gradients by then (of rank 0 after the first load, where there was one)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer: Any = quorate.distribute(plain, model, **CODED[name], **settings)
    step = quorate.load() or 0
    worker = optimizer.__dict__["_quorate_worker"]
    while step < steps:
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + world.rank))
        optimizer.zero_grad()
        (model(x) - world.rank).square().mean().backward()
        optimizer.step()
        step += 1
        if step == save_at:
            quorate.save()
    state = worker.reducer_state
    error: Sequence[torch.Tensor] = ()
    if state is not None:  # under rounds it is what waits with them
        memory = getattr(state, "memory", {})  # a rule remembers no errors
        error = [*memory.get(ERROR, {}).values()] if name != "power-sgd" else state.error.segments()
    left = torch.cat([x.flatten() for x in error]) if error else torch.zeros(1)
    if isinstance(state, TwoPhaseState) and state.owned:
        left = left + torch.cat([*state.owned.values()])
    left = left.clone()
    optimizer.finish()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]), left


@pytest.mark.covering(("name", "size"), product(CODED, [2, 3]))
def test_it_goes_on_to_the_bit_from_a_checkpoint(tmp_path: Path, size: int, name: str) -> None:
    whole = in_world(size, tmp_path / "whole", lambda world: trained(world, name, 12))
    in_world(size, tmp_path / "kept", lambda world: trained(world, name, 8, save_at=5))
    again = in_world(size, tmp_path / "kept", lambda world: trained(world, name, 12))
    for mine, other in zip(again, whole, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(mine, other, strict=True))


@pytest.mark.parametrize("name", OF_DECODED)
def test_momenta_under_a_rule_go_on_to_the_bit_from_a_checkpoint(tmp_path: Path, name: str) -> None:
    def run(folder: str, steps: int, save_at: int | None = None) -> Any:
        return in_world(3, tmp_path / folder, lambda world: trained(world, name, steps, save_at, strategy="robust"))

    whole = run("whole", 12)
    run("kept", 8, save_at=5)
    for mine, other in zip(run("kept", 12), whole, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(mine, other, strict=True))


@pytest.mark.covering(("size", "name"), product([2, 4, 5], ["top-k", "power-sgd", "top-k, two-phase"]))
def test_in_a_world_of_another_size_the_sum_of_what_is_left_stays(tmp_path: Path, name: str, size: int) -> None:
    before = in_world(3, tmp_path, lambda world: trained(world, name, 5, save_at=5))
    after = in_world(size, tmp_path, lambda world: trained(world, name, 5))
    sums = [torch.stack([left for _, left in ends]).sum(0) for ends in (before, after)]
    assert float(sums[0].abs().max()) > 0.01
    torch.testing.assert_close(sums[0], sums[1])


def test_another_codec_begins_anew_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_world(2, tmp_path, lambda world: trained(world, "top-k", 5, save_at=5))
    in_world(2, tmp_path, lambda world: trained(world, "half", 6))
    assert "what the codec of all-reduce remembers begins anew" in capsys.readouterr().err


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
            for strategy, codec in (("choco-sgd", "top-k"), ("dcd-psgd", "random-k:scaled=true"))
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
    @joined
    def live(world: quorate.World) -> str:
        model = nn.Linear(2, 1)
        with pytest.raises(ConfigurationError) as refused:
            quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, strategy, **settings)
        return str(refused.value)

    assert all(found.startswith(sentence) for found in VirtualWorld(2).run(live))


WAYS: dict[str, dict[str, Any]] = {
    "whole": {"strategy": "diloco", "sync_every": 6, "outer_momentum": 0.5},
    "fragments": {"strategy": "diloco", "sync_every": 6, "fragments": 3, "overlap": 1, "outer_momentum": 0.5},
}
OF_WAYS = [name for name in IN_EVERY_WAY if name not in ("power-sgd", "adasum", "centered-clipping", *OF_DECODED)]


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

    def live(world: World, steps: int, save_at: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return trained(world, name, steps, save_at, **settings)

    whole = in_world(2, tmp_path / "whole", lambda world: live(world, 16))
    in_world(2, tmp_path / "kept", lambda world: live(world, 9, save_at=7))
    again = in_world(2, tmp_path / "kept", lambda world: live(world, 16))
    for mine, other in zip(again, whole, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(mine, other, strict=True))


@pytest.mark.parametrize("name", ["half", "top-k", "power-sgd", "top-k, two-phase", "top-k, hierarchical", "adasum"])
def test_a_scaler_skips_the_step_of_all_where_one_gradient_overflows(name: str) -> None:
    @joined
    def live(world: World) -> tuple[list[float], list[float], torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 2))
        optimizer: Any = quorate.distribute(
            torch.optim.SGD(model.parameters(), lr=0.05), model, on_nonfinite="ignore", **CODED[name]
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
        scales, weights = list[float](), list[float]()
        draw = torch.Generator().manual_seed(world.rank)
        for step in range(8):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8, generator=draw)).square().mean()
            if step == 5 and world.rank == 1:
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            weights.append(float(model[0].weight.detach().double().sum()))
        optimizer.finish()
        return scales, weights, torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    told = VirtualWorld(3).run(live)
    for scales, weights, parameters in told:
        assert scales == [8.0] * 5 + [4.0] * 3
        assert weights[5] == weights[4] and weights[6] != weights[5]
        assert torch.equal(parameters, told[0][2]) and bool(parameters.isfinite().all())
