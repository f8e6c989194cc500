"""Offload on real workers: the bits of trainings without it, the bytes that theory says, and its delay."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import quorate
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.optim.delay_correction import delay_corrected
from tests.support.processes import run_real_world
from tests.support.sampled import Few
from tests.support.sharded_trainings import STEPS, Case, Model, batch, kept, made, replicated, sharded

USES = {
    "optimizer": Case(offload="optimizer"),
    "all": Case(offload="all", zero=2, accumulates=2, optimizer="adamw"),
    "disk": Case(offload="disk", zero=1, accumulates=2, clip=0.05, optimizer="adamw"),
    "frozen": Case(offload="optimizer", frozen=True, thaws=True, optimizer="adamw"),
    "schedule, edits": Case(offload="disk", schedule=True, edits=True),
    "all, tied": Case(offload="all", tied=True, edits=True),
    "scaler": Case(offload="optimizer", scaler=True, optimizer="adamw"),
    "evaluations": Case(offload="all", zero=3, evaluates=True, looks=True),
    "precision": Case(offload="all", precision="bfloat16", optimizer="adamw"),
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "local-sgd": {"sync_every": 2, "momentum": "average"},
    "slowmo": {"sync_every": 2, "slow_every": 1},
    "diloco": {"sync_every": 4, "fragments": 2, "overlap": 1},
    "d-psgd": {},
    "sgp": {},
}


def furthest(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))


def from_without(cases: Sequence[Case], world: Any) -> list[float]:
    """How far each training ends from the same one without offload."""
    torch.set_num_threads(1)
    return [furthest(sharded(case, world)[0], sharded(replace(case, offload=None), world)[0]) for case in cases]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_bits_of_trainings_without_it(workers: int, few: Few) -> None:
    uses = few(list(USES))
    for told in run_real_world(workers, partial(from_without, [USES[name] for name in uses]), 300.0):
        assert not {name: far for name, far in zip(uses, told, strict=True) if far}


def all_of(cases: Sequence[Case], world: Any) -> list[list[Tensor]]:
    torch.set_num_threads(1)
    return [sharded(case, world)[0] for case in cases]


def test_replicas_agree_by_every_kind_of_strategy(few: Few) -> None:
    """Two replicas of one worker each: means write into parameters, and gossip steps elsewhere than in the model."""
    cases = [Case(name, settings, replicas=2, offload="optimizer") for name, settings in few([*STRATEGIES.items()])]
    ends = run_real_world(2, partial(all_of, cases), 300.0)
    for number, case in enumerate(cases):
        wanted, _ = replicated(case, 2)
        assert max(furthest(end[number], wanted) for end in ends) < 2e-6, case.strategy


def crossed(how: Any, zero: Any, dtype: torch.dtype, world: Any) -> tuple[list[tuple[int, int]], int, int, int]:
    """What crosses in each of three steps of two passes; numbers of a piece, and with padding of its blocks and all."""
    model: Any = quorate.parallelize(Model().to(dtype), zero=zero, offload=how)
    optimizer: Any = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=1e-3), model)
    boundary = boundary_of(model)
    found = []
    for step in range(3):
        before = boundary.to_host_bytes, boundary.to_device_bytes
        with optimizer.accumulate():
            model(batch(step, range(1))[0]).float().mean().backward()
        model(batch(step + 9, range(1))[0]).float().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append((boundary.to_host_bytes - before[0], boundary.to_device_bytes - before[1]))
    optimizer.finish()
    sizes = {name: local(p).numel() for name, p in model.named_parameters()}
    padded = {name: -(-p.shape[0] // world.size) * p[:1].numel() for name, p in Model().named_parameters()}
    blocks = sum(x for name, x in padded.items() if name.startswith("blocks"))
    return found, sum(sizes.values()), blocks, sum(padded.values())


def boundary_of(model: Any) -> Any:
    from quorate.sharding.parallelize import _Models
    from quorate.wire import current

    spread = current.here().context(_Models).sharded[model]
    assert spread.offload is not None
    return spread.offload.boundary


def all_crossed(world: Any) -> list[Any]:
    full, half = torch.float32, torch.bfloat16
    ways = [("optimizer", 3, full), ("disk", 1, half), ("all", 3, full), ("all", 2, full), ("all", 1, full)]
    return [crossed(how, zero, dtype, world) for how, zero, dtype in ways]


def test_what_crosses_in_a_step() -> None:
    """A gradient to the host, and parameters back; with "all" gradients when they are reduced, parameters when they
    are gathered: in two passes, of blocks with ZeRO 3 once more for each backward pass."""
    for first, disk, all_3, all_2, all_1 in run_real_world(2, all_crossed, 120.0):
        steps, piece, blocks, padded = first
        assert steps == [(2 * 4 * piece, 4 * piece), *[(4 * piece, 4 * piece)] * 2]
        assert disk[0] == [(2 * 2 * piece, 2 * piece), *[(2 * piece, 2 * piece)] * 2]
        assert all_3[0] == [(2 * 4 * piece, 2 * 4 * (padded + blocks))] * 3
        assert all_2[0] == [(2 * 4 * piece, 2 * 4 * padded)] * 3
        assert all_1[0] == [(4 * piece, 2 * 4 * padded)] * 3


def delayed_alone(
    case: Case, size: int, *, steps: int = STEPS, rate: float = 0.8, pauses: Sequence[int] = (), delays: bool = True
) -> list[Tensor]:
    """Of one process with all batches: each step shows what the one before has made of its gradient.

    x[t + 1] = m[t], m[t + 1] = step(m[t], gradient at x[t]); a pause behind a step, and the end, show m.
    """
    shown, masters = Model(), Model()
    optimizer: Any = made(case, masters)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, rate)
    for step in range(steps):
        ids, targets = batch(step, range(size))
        shown.zero_grad()
        F.cross_entropy(shown(ids).flatten(0, 1), targets.flatten()).backward()
        shown.load_state_dict(masters.state_dict())
        for x, p in zip(masters.parameters(), shown.parameters(), strict=True):
            x.grad = None if p.grad is None else p.grad.clone()
        with nullcontext() if case.correct is None else delay_corrected(optimizer):
            optimizer.step()
        schedule.step()
        if not delays or step in pauses:
            shown.load_state_dict(masters.state_dict())
    return [p.detach() for p in masters.parameters()]


def test_a_delayed_update_is_one_gradient_behind(few: Few) -> None:
    cases = [
        Case(offload="optimizer", delayed=True, schedule=True),
        Case(offload="all", delayed=True, schedule=True, zero=1),
        Case(offload="disk", delayed=True, schedule=True, evaluates=True),
        Case(offload="optimizer", delayed=True, schedule=True, replicas=2),
        Case(offload="optimizer", delayed=True, schedule=True, correct="delay"),
    ]
    for size in few([1, 2]):
        chosen = few([*cases[: 2 + size], cases[-1]])
        for end in run_real_world(size, partial(all_of, chosen), 120.0):
            for case, found in zip(chosen, end, strict=True):
                pauses = range(1, STEPS, 2) if case.evaluates else ()
                behind, in_time = (delayed_alone(case, size, pauses=pauses, delays=delays) for delays in (True, False))
                assert furthest(found, behind) < 1e-6 < 1e-4 < furthest(found, in_time), case


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_checkpoints_go_on_in_other_shards_with_offload_and_without(tmp_path: Path, optimizer: str, few: Few) -> None:
    ways = [*few([(2, "optimizer"), (1, None), (1, "all"), (2, "disk")]), (2, None)]
    wanted = run_real_world(2, partial(kept, Case(optimizer=optimizer), tmp_path / "whole", 2 * len(ways)), 60.0)[0][0]
    for number, (workers, how) in enumerate(ways):
        case = Case(optimizer=optimizer, offload=how)
        ends = run_real_world(workers, partial(kept, case, tmp_path / "cut", 2 * number + 2), 60.0)
    assert max(furthest(end, wanted) for end, _ in ends) < (1e-6 if optimizer == "sgd" else 2e-5)


@pytest.mark.parametrize("correct", [None, "delay"])
def test_a_checkpoint_has_every_delayed_step(tmp_path: Path, correct: Any) -> None:
    """Saved behind the third step, which is a pause, and gone on from."""
    case = Case(offload="optimizer", delayed=True, optimizer="sgd" if correct is None else "adamw", correct=correct)
    ends = [run_real_world(2, partial(kept, case, tmp_path, until), 60.0) for until in (3, 6)][-1]
    wanted, other = (delayed_alone(case, 4, steps=6, rate=0.9, pauses=pauses) for pauses in ([2], []))
    assert furthest(ends[0][0], wanted) < 1e-6 < 1e-4 < furthest(ends[0][0], other)


def test_a_checkpoint_has_what_16_bits_leave_out(tmp_path: Path) -> None:
    case = Case(offload="optimizer", numbers="bfloat16")
    cut = [run_real_world(2, partial(kept, case, tmp_path / "cut", until), 60.0) for until in (3, 6)][-1]
    whole = run_real_world(2, partial(kept, case, tmp_path / "whole", 6), 60.0)
    assert furthest(cut[0][0], whole[0][0]) == 0.0


class OfAnother(torch.optim.SGD):
    """It might do anything."""


def refused(call: Any) -> str:
    try:
        call()
    except ConfigurationError as error:
        return str(error)
    return "it was not refused"


def all_refused(world: Any) -> list[str]:
    def spread(optimizer: Any = torch.optim.SGD, strategy: str = "all-reduce", **chosen: Any) -> object:
        settings = chosen.pop("settings", {})
        model: Any = quorate.parallelize(Model(), **chosen)
        return quorate.distribute(optimizer(model.parameters(), lr=0.1), model, strategy, **settings)

    capturable = partial(torch.optim.Adam, capturable=True)
    calls: list[Any] = [
        partial(spread, offload="gpu"),
        partial(spread, delayed_update=True),
        partial(spread, offload="optimizer", delayed_update=1),
        partial(spread, offload="optimizer", correct="delay"),
        partial(spread, offload="optimizer", delayed_update=True, correct=True),
        partial(spread, offload="optimizer", offload_folder="."),
        partial(spread, offload="disk", offload_folder="/dev/null/folder"),
        partial(spread, capturable, offload="optimizer"),
        partial(spread, torch.optim.LBFGS, offload="optimizer", mesh=world.mesh(shards=1)),
        partial(spread, OfAnother, offload="optimizer", delayed_update=True),
        partial(spread, strategy="local-sgd", settings={"sync_every": 2}, offload="optimizer", delayed_update=True),
    ]
    return [refused(call) for call in calls]


def test_what_cannot_be_is_refused() -> None:
    first, second = run_real_world(2, all_refused, 60.0)
    assert first == second
    words = (
        "offload='gpu' is unknown; known: optimizer, all, disk",
        'delayed_update needs the step on the host; give offload="optimizer" as well',
        "delayed_update=1 is not known; it must be True or False",
        'correct="delay" is for steps that are one gradient behind; give delayed_update=True',
        'correct=True is not known; it must be "delay" or None',
        'offload_folder needs offload="disk"',
        "offload_folder is /dev/null/folder, which cannot be created: Not a directory",
        "Adam with capturable=True steps on a GPU",
        "LBFGS asks for the loss several times a step",
        "delayed_update makes steps in a thread beside the training's, and OfAnother may send something",
        "delayed_update cannot be combined with LocalSGD, which writes parameters between steps",
    )
    assert [said[: len(word)] for said, word in zip(first, words, strict=True)] == list(words)
