"""Optimizers that calculate with whole tensors, over models in shards: the steps that they make of whole replicas."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import _muon

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.processes import run_real_world
from tests.support.sampled import Few
from tests.support.sharded_trainings import Case, Lars, Model, batch, kept, kept_alone, made, whole
from tests.world.test_sharded_checkpoints import furthest as furthest_of
from tests.world.test_sharding import furthest

CASES = {
    "adafactor": Case(optimizer="adafactor", zero=3),
    "lars": Case(optimizer="lars", zero=2),
    "frozen": Case(optimizer="lars", frozen=True, thaws=True, zero=2),
    "accumulation": Case(optimizer="adafactor", accumulates=2, zero=1),
    "clipping, schedule, edits": Case(optimizer="lars", clip=0.05, schedule=True, edits=True),
    "scaler, tied": Case(optimizer="lars", scaler=True, tied=True),
}
MOST = {"lars": 1e-5, "adafactor": 2e-5}
CLOSE = 1e-9
"""In float64, where these would be another algorithm's steps, and not other roundings."""


def too_far(cases: dict[str, Case], size: int) -> dict[str, float]:
    told = dict(zip(cases, furthest(list(cases.values()), size), strict=True))
    return {name: far for name, far in told.items() if not far < CLOSE}


def test_steps_of_whole_tensors(few: Few) -> None:
    assert not too_far({name: replace(case, numbers="float64") for name, case in few([*CASES.items()])}, 2)


def test_between_replicas(few: Few) -> None:
    strategies: dict[str, dict[str, Any]] = {
        "all-reduce": {},
        "local-sgd": {"sync_every": 2},
        "diloco": {"sync_every": 4},
        "d-psgd": {},
    }
    kinds = ["adafactor", "lars", "adafactor", "lars"]
    cases = {
        name: Case(name, settings, optimizer=kind, replicas=2, numbers="float64")
        for (name, settings), kind in few([*zip(strategies.items(), kinds, strict=True)])
    }
    assert not too_far(cases, 4)


def beside_one_process(kind: str, world: Any) -> tuple[float, dict[int, int]]:
    """How far parameters are from those of one process, on the same gradients; and whose state lies here, by size."""
    case = Case(optimizer=kind)
    model: Any = quorate.parallelize(Model(seed=1 + world.rank))
    alone = Model(seed=1)
    optimizer: Any = quorate.distribute(made(case, model), model)
    plain = made(case, alone)
    pairs = list(zip(model.parameters(), alone.parameters(), strict=True))
    for step in range(5):
        optimizer.zero_grad()
        model(batch(step, range(1))[0]).square().mean().backward()
        for p, q in pairs:
            q.grad = p.grad.full_tensor()
        optimizer.step()
        plain.step()
    far = max(float((p.full_tensor() - q).abs().max()) for p, q in pairs)
    mine, whole = optimizer.state_dict()["state"], plain.state_dict()["state"]
    for n, state in mine.items():
        assert all(torch.equal(x, whole[n][key]) for key, x in state.items()), n
    optimizer.finish()
    every = [p.numel() for group in plain.param_groups for p in group["params"]]
    return far, {n: every[n] for n in mine}


def beside_all(kinds: Sequence[str], world: Any) -> dict[str, Any]:
    torch.set_num_threads(1)
    return {kind: beside_one_process(kind, world) for kind in kinds}


def test_equal_to_one_process_and_each_tensor_has_one_owner(few: Few) -> None:
    kinds = few(["rprop", "muon", "adafactor", "lars"])
    found = run_real_world(3, partial(beside_all, kinds), 60.0)
    for kind in found[0]:
        assert [one[kind][0] for one in found] == [0.0] * 3, kind
        owned = [one[kind][1] for one in found]
        numbers = [n for mine in owned for n in mine]
        count = 8 if kind == "muon" else len(list(Model().parameters()))
        assert sorted(numbers) == list(range(count)), kind
        loads = [sum(mine.values()) for mine in owned]
        assert max(loads) - min(loads) <= max(size for mine in owned for size in mine.values()), loads


def sent(world: Any) -> tuple[int, int]:
    """Bytes of a step, and of all parameters."""
    torch.set_num_threads(1)
    model: Any = quorate.parallelize(Model(), zero=2)
    optimizer: Any = quorate.distribute(Lars(model.parameters()), model)
    meter = optimizer.__dict__["_quorate_worker"].coordinates.traffic.meter
    model(batch(0, range(1))[0]).mean().backward()
    before = meter.bytes_out.total()
    optimizer.step()
    after = int(meter.bytes_out.total() - before)
    optimizer.finish()
    return after, 4 * sum(p.numel() for p in model.parameters())


def test_what_is_sent() -> None:
    """Of all workers together 3 Psi (S - 1) / S."""
    found = run_real_world(2, sent, 60.0)
    assert sum(after for after, _ in found) == pytest.approx(3 * found[0][1] / 2, rel=0.02)


LAYOUTS = [(2, 1, 3), (3, 1, 2), (2, 2, 0), (4, 2, 3)]
"""Workers, replicas, and ZeRO; 0: whole replicas."""


@pytest.mark.parametrize("optimizer", ["adafactor", "lars"])
def test_resumed_in_other_shards(tmp_path: Path, optimizer: str, few: Few) -> None:
    until = 0
    for workers, replicas, zero in few(LAYOUTS):
        until += 2
        case = Case(optimizer=optimizer, replicas=replicas, zero=zero or 3)
        ends: Any = run_real_world(workers, partial(kept, case, tmp_path, until, shards=zero > 0), 120.0)
        wanted = kept_alone(case, until)
        assert max(furthest_of(end, wanted) for end, _ in ends) < MOST[optimizer], (workers, replicas, zero)


def test_replicas_that_differ_are_resumed(tmp_path: Path) -> None:
    """In shards, as whole ones, and in shards again: each with what its own optimizer has kept."""
    case = Case("d-psgd", {}, optimizer="lars", replicas=2)
    for until, workers in ((3, 4), (5, 2), (7, 4)):
        ends: Any = run_real_world(workers, partial(kept, case, tmp_path / "cut", until, shards=workers == 4), 60.0)
    wanted: Any = run_real_world(2, partial(kept, case, tmp_path / "whole", 7, shards=False), 60.0)
    told = [furthest_of(end, wanted[rank // 2][0]) for rank, (end, _) in enumerate(ends)]
    assert max(told) < 1e-5, told


def dealt_anew(root: Path, shard_by: Any, until: int, world: Any) -> Any:
    case = replace(Case(optimizer="adamw"), settings={"shard_by": shard_by})
    torch.set_num_threads(1)
    return kept(case, root, until, world)


def test_rows_become_tensors_and_rows_again(tmp_path: Path) -> None:
    """AdamW, which is right either way."""
    for until, (workers, by) in enumerate([(2, "rows"), (2, "tensors"), (3, "tensors"), (2, "rows")], 1):
        ends: Any = run_real_world(workers, partial(dealt_anew, tmp_path, by, 2 * until), 60.0)
        wanted = kept_alone(Case(optimizer="adamw"), 2 * until)
        assert max(furthest_of(end, wanted) for end, _ in ends) < 2e-5, (workers, by)


def two(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of blocks, and AdamW for tables, the head, norms and biases."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for name, p in named if name.startswith("blocks") and p.ndim == 2]
    others = [p for name, p in named if not (name.startswith("blocks") and p.ndim == 2)]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=3e-3, eps=1e-4)]


MICRO = 2
"""Backward passes of a step."""


def muon_trained(root: Path, until: int, overflows: int, shards: bool, world: Any) -> tuple[list[Any], list[Any]]:
    """The parameters after `until` steps under a GradScaler, and the matrices that Muon has orthogonalized here, by
    step. In the step `overflows` a gradient is infinite, on the last worker only. It goes on from the newest checkpoint
    and saves at the end."""
    torch.set_num_threads(1)
    current.here().context(CheckpointContext).root = root
    current.here().context(CheckpointContext).listeners = [lambda sentence: None]
    model: Any = Model(seed=1 + world.rank)
    if shards:
        model = quorate.parallelize(model)
    optimizers: list[Any] = [quorate.distribute(plain, model) for plain in two(model)]
    scaler, seen, by_step = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100), list[Any](), list[Any]()
    plain_step = _muon._zeropower_via_newtonschulz

    def counted(gradient: torch.Tensor, *arguments: Any) -> torch.Tensor:
        seen.append((tuple(gradient.shape), type(gradient) is torch.Tensor))
        return plain_step(gradient, *arguments)

    _muon._zeropower_via_newtonschulz = counted
    try:
        for step in range(quorate.load(scaler=scaler) or 0, until):
            for optimizer in optimizers:
                optimizer.zero_grad()
            parts = [x.tensor_split(world.size * MICRO) for x in batch(step, range(4))]
            for number in range(MICRO):
                place = world.rank * MICRO + number
                is_last = number == MICRO - 1
                with contextlib.ExitStack() as stack:
                    for optimizer in optimizers if not is_last else ():
                        stack.enter_context(optimizer.accumulate())
                    ids, targets = (part[place] for part in parts)
                    loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten()) / MICRO
                    is_wrong = step == overflows and is_last and world.rank == world.size - 1
                    scaler.scale(loss * torch.inf if is_wrong else loss).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            by_step.append(list(seen))
            seen.clear()
    finally:
        _muon._zeropower_via_newtonschulz = plain_step
    quorate.save(scaler=scaler)
    with world.evaluate(at="replica"):
        return [whole(p) for p in model.parameters()], by_step


def test_muon_orthogonalizes_each_full_matrix_of_the_summed_gradient_once(tmp_path: Path) -> None:
    """Beside AdamW, with two backward passes a step, an overflow in step 2, and a checkpoint for another number of
    shards after step 3. No slice, no single backward pass and no step without it would come to the same numbers."""
    overflows, matrices = 2, sorted(tuple(p.shape) for p in two(Model())[0].param_groups[0]["params"])
    alone = VirtualWorld(1).run(joined(partial(muon_trained, tmp_path / "alone", 6, overflows, False)))[0][0]
    for workers, until in ((2, 3), (3, 6)):
        ends = run_real_world(workers, partial(muon_trained, tmp_path / "cut", until, overflows, True), 120.0)
        for of_step in zip(*(by_step for _, by_step in ends), strict=True):
            calls = [call for of_worker in of_step for call in of_worker]
            assert all(is_plain for _, is_plain in calls)
            assert sorted(shape for shape, _ in calls) in (matrices, [])
        steps = [sum(map(len, of_step)) for of_step in zip(*(by_step for _, by_step in ends), strict=True)]
        assert steps.count(0) == (1 if workers == 2 else 0), "only the step with the overflow is left out"
    for end, _ in ends:
        assert all(bool(x.isfinite().all()) for x in end)
        assert furthest_of(end, alone) < 2e-3
