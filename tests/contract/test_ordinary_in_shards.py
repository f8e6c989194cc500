"""Ordinary things that training scripts do, with a model in shards: right, or refused in a sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from types import FunctionType

import pytest
import torch

import quorate
import quorate.sharding.script_access  # whose presence says that a model may be in shards
from quorate.sharding.torch_errors import in_words
from tests.support import loops_of_modules, loops_on_parameters
from tests.support.loops_in_shards import STEPS, WIDTH, InShards, Loop, Net, ShardsCell, all_ended, difference, trained
from tests.support.loops_of_modules import Capped, CappedBags, channels_last, max_norm, recompute, recompute_beside
from tests.support.loops_on_parameters import WRITES, rows_of
from tests.support.processes import outcomes_real_world, run_real_world
from tests.support.programs import quorate as command_line
from tests.support.sampled import Few


def _loops() -> dict[str, Loop]:
    """Those that take a cell and nothing else, and those with a choice, by name."""
    found: dict[str, Loop] = {}
    for module in (loops_on_parameters, loops_of_modules):
        for name, loop in vars(module).items():
            if isinstance(loop, FunctionType) and loop.__code__.co_varnames[: loop.__code__.co_argcount] == ("cell",):
                found[name] = loop
    for reentrant in (True, False):
        for kind in ("blocks", "several", "beside"):
            found[f"recompute {kind} {reentrant}"] = partial(recompute, kind, reentrant)
        found[f"recompute with head {reentrant}"] = partial(recompute_beside, reentrant)
    found |= {f"channels_last {when}": partial(channels_last, when) for when in ("before", "between", "after")}
    found |= {f"row {name}": partial(rows_of, write) for name, write in WRITES.items()}
    return found | {f"max_norm {kind.__name__}": partial(max_norm, kind) for kind in (Capped, CappedBags)}


LOOPS = _loops()
_BESIDE = "got a full tensor and a parameter in shards. Call the model"
_ROWS = "writes into some rows of a tensor in shards"
REFUSED: dict[str, tuple[int, str]] = {
    "as_list": (STEPS, r"tolist\(\) of a tensor in shards; gather it by p.full_tensor"),
    "as_numpy": (STEPS, r"numpy\(\) of a tensor in shards; gather it by p.full_tensor"),
    "functional_changed": (0, "functional_call gives other parameters .* to a model in shards"),
    "grad_noise": (0, _BESIDE),
    "gradient_penalty": (0, "gradients of gradients .*; train such a model without shards"),
    "grads_by_function": (0, r"use loss.backward\(\), and p.grad"),
    "indexed": (1, _ROWS),
    "max_norm Capped": (0, "tokens has max_norm=2.0"),
    "max_norm CappedBags": (0, "tokens has max_norm=2.0"),
    "replaced": (STEPS, "is not in shards; add modules and parameters to the model before quorate.parallelize"),
    **{name: (1, _ROWS) for name in LOOPS if name.startswith("row ")},
    **{name: (0, "is a ScriptModule") for name in LOOPS if name.startswith(("script_", "trace_"))},
    "to_between": (STEPS, "converted to torch.float64 after its first forward pass; convert it before"),
    "vector": (STEPS, r"write back what has changed by p.copy_\(whole\)"),
    "written_in_forward": (0, "writes into blocks.0.up.weight in its forward pass"),
}
"""Loops that are refused: after how many steps, before another one, and the sentence."""
SOME = (
    *("accumulate", "clip_by_hand", "columns", "data_assigned", "ema", "hook_before", "hook_clamps", "inference_eval"),
    *(
        "load_assign_after",
        "load_part",
        "norms_logged",
        "swapped_for_evaluation",
        "tied",
        "weight_in_forward_hook",
        "weights_beside",
    ),
    *("weights_beside", "functional_changed", "max_norm Capped", "row zero_", "gradient_penalty"),
)
"""Those that are tried with ZeRO 1 and 2, too."""
TOLERANCES = {"autocast": 2e-3, "norms_logged": 1e-5}


def _all(names: Sequence[str], zero: int, world: quorate.World) -> dict[str, InShards]:
    return all_ended({name: LOOPS[name] for name in names}, zero, world)


GROUPS = [list(LOOPS)[begin : begin + 20] for begin in range(0, len(LOOPS), 20)]


@cache
def _ends(names: tuple[str, ...]) -> list[dict[str, InShards]]:
    """How each of these loops ends on each of two workers, with ZeRO 3."""
    return run_real_world(2, partial(_all, names, 3), 100.0)


def _check(name: str, ended: Sequence[InShards]) -> None:
    if name in REFUSED:
        steps, sentence = REFUSED[name]
        for worker in ended:
            assert re.match(r"ConfigurationError: ", worker.error), worker.error
            assert re.search(sentence, worker.error), worker.error
            assert worker.steps == steps
        return
    assert [worker.error for worker in ended] == ["", ""]
    assert max(difference(worker, LOOPS[name]) for worker in ended) < TOLERANCES.get(name, 2e-6)


@pytest.mark.parametrize(("name", "group"), [(name, group) for group, names in enumerate(GROUPS) for name in names])
def test_an_ordinary_loop_is_right_in_shards_or_refused(name: str, group: int, few: Few) -> None:
    chosen = {name, *few(GROUPS[group])}
    _check(name, [ended[name] for ended in _ends(tuple(each for each in GROUPS[group] if each in chosen))])


@pytest.mark.parametrize("zero", [1, 2])
def test_the_other_stages_do_the_same(zero: int, few: Few) -> None:
    names = few(SOME)
    found = run_real_world(2, partial(_all, names, zero), 120.0)
    for name in names:
        _check(name, [ended[name] for ended in found])


def _first_calculates_alone(world: quorate.World) -> None:
    cell = ShardsCell(world.rank, world.size, 3)
    model, optimizer = cell.made(Net())
    if world.is_first:
        torch.nn.functional.linear(torch.ones(2, WIDTH), model.blocks[0].up.weight)
    trained(cell, model, optimizer)


def test_a_worker_that_calculates_alone_with_a_weight_is_named() -> None:
    outcomes = outcomes_real_world(2, _first_calculates_alone, 40.0)
    assert all("Mismatch" in str(outcome) and "outside its block" in str(outcome) for outcome in outcomes), outcomes


def _first_reads_alone(world: quorate.World) -> None:
    cell = ShardsCell(world.rank, world.size, 3)
    model, optimizer = cell.made(Net())
    if world.is_first:
        model.head.weight.norm().item()
    trained(cell, model, optimizer)


def test_a_number_that_one_worker_reads_is_named() -> None:
    ended = outcomes_real_world(2, _first_reads_alone, 60.0)
    assert any("reading a number of a tensor in shards" in outcome.error_message for outcome in ended), ended


def test_an_error_of_torch_is_told_in_words() -> None:
    error = RuntimeError("aten.mm.default got mixed torch.Tensor and DTensor, need to convert all torch.Tensor")
    assert "aten.mm.default got a full tensor and a parameter in shards" in str(in_words(error))
    assert in_words(RuntimeError("size mismatch")) is None


SCRIPT = """
import torch, quorate
world = quorate.join()
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
model(torch.ones(2, 8)).mean().backward()
model[0].weight.grad += torch.ones(4, 8)
optimizer.step()
"""


def test_an_error_of_torch_ends_a_script_with_the_sentence(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = command_line(tmp_path, "run", "-n", "2", "--zero", "3", "script.py")
    assert ended.returncode == 2
    assert "quorate: aten.add_.Tensor got a full tensor and a parameter in shards" in ended.stderr
    assert "Traceback" not in ended.stderr


LISTS = """
import copy, torch, quorate
from torch import nn
world = quorate.join()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))

def train(model, wrap, ranks):
    listed, named = HOLDER(model.parameters()), dict(model.named_parameters())
    average = [p.detach().clone() for p in listed]
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(3):
        optimizer.zero_grad()
        for rank in ranks:
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + rank))
            (model(x).square().mean() * 10 / len(ranks)).backward()
        torch.nn.utils.clip_grad_norm_(listed, 0.5)
        named["0.weight"].grad.mul_(0.5)
        optimizer.step()
        with torch.no_grad():
            for kept, p in zip(average, listed):
                kept.mul_(0.5).add_(p, alpha=0.5)
    return [*average, *(p.full_tensor() if hasattr(p, "full_tensor") else p for p in named.values())]

wanted = train(copy.deepcopy(model), lambda optimizer, model: optimizer, range(2))
found = train(model, quorate.distribute, [world.rank])
assert max(float((a - b).detach().abs().max()) for a, b in zip(wanted, found)) < 1e-6
assert found[-1].shape == (2,)
print("alike")
"""


def test_lists_of_parameters_from_before_follow_into_shards(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LISTS.replace("HOLDER", "list"))
    ended = command_line(tmp_path, "run", "-n", "2", "--zero", "3", "script.py")
    assert ended.returncode == 0 and "alike" in ended.stdout, ended.stderr


def test_a_tuple_of_parameters_from_before_is_refused(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LISTS.replace("HOLDER", "tuple"))
    ended = command_line(tmp_path, "run", "-n", "2", "--zero", "3", "script.py")
    assert ended.returncode == 2
    assert "a tuple made before quorate.distribute holds " in ended.stderr
