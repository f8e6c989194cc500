"""Models in stages on real workers: the numbers of one process, with every schedule, and along any other axis."""

from __future__ import annotations

import json
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

import quorate
from quorate.core.errors import ConfigurationError, Mismatch
from quorate.planning.layouts import Layout
from quorate.planning.prediction import gathers
from quorate.records.records import records_of
from quorate.sharding.collectives import WireAllGather
from quorate.sharding.stages.orders import SCHEDULES
from tests.support.processes import outcomes_real_world, run_real_world
from tests.support.programs import quorate as quorate_program
from tests.support.sampled import Few
from tests.support.staged import Tied, cross_entropy, images, made, tokens
from tests.support.staged_trainings import (
    Case,
    End,
    Recomputed,
    attending,
    of_pictures,
    of_rows,
    replicated,
    six_untied,
    staged,
    wide,
)

EXACT = 1e-10
CUTS = ["2", "6"]


def check(workers: int, cases: list[Case]) -> None:
    """All in one world, each held against whole replicas."""
    every = run_real_world(workers, partial(staged, cases), 120.0)
    for place, case in enumerate(cases):
        check_one(case, [ends[place] for ends in every])


def check_one(case: Case, ends: list[End]) -> None:
    wanted, each = replicated(case), len(ends) // case.mesh.get("replicas", 1)
    of_shard = case.mesh.get("tensor", 1)
    for rank, end in enumerate(ends):
        replica = wanted[rank // each]
        assert end.norms == pytest.approx(replica.norms, rel=EXACT), (case, rank)
        if rank // of_shard % case.shards == 0:
            assert end.losses == pytest.approx(replica.losses, rel=EXACT), (case, rank)
        assert furthest(end.parameters, replica.parameters) < EXACT, (case, rank)
        lengths = {name: float(replica.parameters[name].norm()) for name in end.lengths}
        assert end.lengths == pytest.approx(lengths, rel=EXACT), (case, rank)
    names = set[str]().union(*(end.parameters for end in ends[:each]))
    assert names == set(wanted[0].parameters), case


def furthest(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    return max(float((x - wanted[name]).abs().max()) for name, x in found.items())


def test_every_schedule(few: Few) -> None:
    check(2, [Case({"stages": 2}, chosen={"schedule": name, "microbatches": 8}) for name in few(list(SCHEDULES))])


def test_loops_of_many_kinds(few: Few) -> None:
    mesh = {"stages": 2}
    cases = [
        Case(mesh, is_loop=True, chosen={"microbatches": 3}),
        Case(mesh, images, of_pictures, chosen={"stages": ["6"], "microbatches": 4}),
        Case(mesh, images, of_pictures, is_loop=True),
        Case(mesh, Recomputed, chosen={"schedule": "zbv"}),
        Case(mesh, attending, chosen={"microbatches": 4}),
        Case(mesh, chosen={"schedule": "auto", "example": tokens(0, 2), "microbatches": 4}),
        Case(mesh, chosen={"stages": "memory", "example": (tokens(0, 2),)}),
        Case(mesh, scales=True),
        Case(mesh, scales=True, is_loop=True),
        Case(mesh, chosen={"offload": "optimizer"}),
    ]
    check(2, few(cases))


SQUARE = {"shards": 2, "stages": 2}
CLIPPED = {"wait_for": "all", "grace": 5.0, "clip_norm": 0.05}
"""By the norm of a whole replica, in which what several of its workers have counts once."""


def test_stages_beside_other_axes(few: Few) -> None:
    pair = {"replicas": 2, "stages": 2}
    cases = [
        Case(pair),
        Case(pair, strategy="quorum", settings={"wait_for": "all", "grace": 5.0}, clip=None),
        Case(pair, strategy="local-sgd", settings={"sync_every": 2}),
        Case(pair, strategy="diloco", settings={"sync_every": 2}),
        Case(pair, strategy="quorum", settings=CLIPPED, clip=None),
        Case(pair, strategy="d-psgd"),
        Case(pair, settings={"compress": "power-sgd", "dense": ("words.*", "head.*"), "dense_below": 16}),
        *(Case(SQUARE, chosen={"zero": zero}, steps=1) for zero in (1, 2, 3)),
        Case(SQUARE, six_untied, chosen={"zero": 2, "schedule": "zbv"}, steps=1),
        Case({"stages": 2, "tensor": 2}, wide, of_rows),
        Case({"replicas": 2, "tensor": 2}, wide, of_rows, "quorum", CLIPPED, clip=None),
        Case({"stages": 4}, chosen={"schedule": "gpipe"}),
    ]
    check(4, few(cases))


def gathers_in_steps(world: Any) -> list[float]:
    """How often this worker gathers each of its modules in a step of 4 micro-batches with ZeRO 3; of two steps."""
    model = quorate.parallelize(made(six_untied), world.mesh(**SQUARE), zero=3, microbatches=4)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    modules = sum(isinstance(module, FSDPModule) for module in model.modules())
    calls = list[float]()
    whole = WireAllGather.__call__

    def counted(*given: Any, **more: Any) -> Any:
        calls[-1] += 1
        return whole(*given, **more)

    WireAllGather.__call__ = counted  # type: ignore[method-assign]
    for step in range(2):
        calls.append(0)
        optimizer.zero_grad()
        quorate.forward_backward(model, tokens(step, 8), tokens(step, 8).roll(1, 1), cross_entropy)
        optimizer.step()
    return [count / modules for count in calls]


def test_parameters_stay_gathered_from_a_backward_pass_to_the_forward_pass_behind_it() -> None:
    """So of four micro-batches, in whatever order, a stage is gathered for the first pass, and for one of each pair."""
    found = run_real_world(4, gathers_in_steps, 60.0)
    assert found == [[5, 5]] * 4
    assert gathers(Layout(stages=2, shards=2, zero=3, schedule="1f1b", microbatches=4)) == 5


def test_three_axes() -> None:
    check(8, [Case({"replicas": 2, **SQUARE}, steps=1)])


def refused(cases: list[tuple[str, dict[str, Any]]], world: Any) -> list[str]:
    torch.set_num_threads(1)
    model = quorate.parallelize(made(Tied), world.mesh(replicas=2, stages=2))
    said = []
    for strategy, settings in cases:
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ConfigurationError) as error:
            quorate.distribute(plain, model, strategy, **settings)
        said.append(str(error.value))
    return said


def test_copies_of_a_tied_parameter_must_not_part() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("diloco", {"sync_every": 4, "fragments": 2}),
        ("all-reduce", {"reduce": "adasum"}),
        ("all-reduce", {"compress": "top-k", "density": 0.1, "dense_below": 16}),
    ]
    every = run_real_world(4, partial(refused, cases), 60.0)
    assert all(said == every[0] for said in every)
    begin = "head.weight and words.weight are one parameter that lies in several stages, and "
    assert [said.removeprefix(begin) for said in every[0]] == [
        "fragments of each stage are agreed on at other times; take fragments=1",
        'reduce="adasum" weighs them by what else is in a stage; take another',
        "each stage would write its own code of it; keep it out with dense=('head.weight', 'words.weight')",
    ]


def ends_early(world: Any) -> None:
    """Rank 1 leaves the loop before the others, or calls the model alone."""
    torch.set_num_threads(1)
    model = quorate.parallelize(made(images), world.mesh(stages=2))
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(3):
        if world.rank == 1 and step == 2:
            break
        quorate.forward_backward(model, *of_pictures(0, 0), cross_entropy)
        optimizer.step()
    optimizer.finish()


def evaluates_alone(world: Any) -> None:
    torch.set_num_threads(1)
    model = quorate.parallelize(made(images), world.mesh(stages=2))
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    if world.is_first:
        with torch.no_grad():
            model.eval()(of_pictures(0, 0)[0])
        model.train()
    quorate.forward_backward(model, *of_pictures(0, 0), cross_entropy)
    optimizer.step()


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (ends_early, "a step of a model in training with inputs of (8, 1, 4, 4), rank 1 (stage 1) the end of training"),
        (evaluates_alone, "a call without gradients of a model in evaluation with inputs of (8, 1, 4, 4), rank 1 (sta"),
    ],
)
def test_a_worker_that_goes_its_own_way_is_named(task: Any, words: str) -> None:
    for one in outcomes_real_world(2, task, 30.0):
        assert one.error_type is Mismatch
        assert words in one.error_message.replace("replica 0, ", "")


SCRIPT = textwrap.dedent(
    """
    import os, sys, torch, quorate
    from torch import nn
    from torch.utils.data import TensorDataset

    world = quorate.join()
    torch.manual_seed(world.rank)
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(nn.Linear(8, 16), *blocks, nn.Linear(16, 1)).double()
    optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=1e-2), model)
    x = torch.randn(66, 8, generator=torch.Generator().manual_seed(0)).double()
    for inputs, targets in quorate.loader(TensorDataset(x, x.sum(1, keepdim=True)), 8):
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.9f}", flush=True)
        if "killed" in sys.argv and world.rank == 1:
            os.kill(os.getpid(), 9)
    optimizer.finish()
    """
)


def test_a_script_that_says_nothing_of_stages(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    losses = {}
    for name, workers, mesh in (("whole", "1", ()), ("staged", "2", ("--mesh", "stages=2"))):
        ended = quorate_program(tmp_path, "run", "-n", workers, "--name", name, *mesh, "script.py")
        assert ended.returncode == 0, ended.stderr
        losses[name] = [line for line in ended.stdout.splitlines() if line[:1].isdigit()]
    assert losses["whole"] == losses["staged"] and len(losses["whole"]) == 9
    assert "quorate: 2 stages on 2 workers, cut by parameters" in ended.stderr
    assert "stages waited for each other" in ended.stderr
    for rank in range(2):
        rows = [json.loads(line) for line in records_of(tmp_path / "runs/staged", rank).read_text().splitlines()]
        (told,) = [row["pipeline"] for row in rows if row["kind"] == "distribute"]
        assert told == {"schedule": "1f1b", "microbatches": 8, "stages": 2, "workers": 2, "worker": rank}
        steps = [row for row in rows if row["kind"] == "step"]
        assert all(0 < row["wait"] < row["end"] - row["begin"] for row in steps)
        bubble, waited = (sum(row[key] for row in steps) for key in ("bubble", "wait"))
        assert bubble == pytest.approx(waited, rel=0.1), "there is nobody else to wait for"
        assert {row["stage_out"] for row in steps[:8]} == {steps[0]["stage_out"]}, "as much in each step"
        assert steps[0]["stage_out"] >= 8 * 16 * 8, "activations of a batch, or their gradients"
        assert [row["examples"] for row in steps] == ([8] * 8 + [2] if rank == 0 else [0] * 9)
    ended = quorate_program(tmp_path, "run", "-n", "2", "--name", "killed", "--mesh", "stages=2", "script.py", "killed")
    assert ended.returncode == 1
    assert "rank 1 (replica 0, stage 1; host" in ended.stderr and "killed by signal 9 (SIGKILL)" in ended.stderr


REPLICAS = textwrap.dedent(
    """
    import os, torch, quorate
    from torch import nn

    world = quorate.join()
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(nn.Linear(8, 8), *blocks, nn.Linear(8, 1))
    model = quorate.parallelize(model, world.mesh(replicas=2, stages=2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer = quorate.distribute(optimizer, model, "quorum", wait_for=1)
    x = torch.randn(16, 8)
    for step in range(30):
        optimizer.zero_grad()
        if step == 5 and world.rank == 3:
            os.kill(os.getpid(), 9)
        quorate.forward_backward(model, x, x.sum(1, keepdim=True), nn.functional.mse_loss)
        optimizer.step()
    optimizer.finish()
    """
)


def test_a_replica_of_stages_dies_as_one(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(REPLICAS)
    ended = quorate_program(tmp_path, "run", "-n", "4", "--name", "here", "script.py")
    assert "rank 3 (replica 1, stage 1; host" in ended.stderr and "; ranks 0, 1 and 2 go on" in ended.stderr
    assert "rank 2 (replica 1, stage 0; host" in ended.stderr and "of its replica had died" in ended.stderr
    assert "30 steps in" in ended.stderr
    assert ended.returncode == 0, ended.stderr
