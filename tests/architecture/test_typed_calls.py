"""Names and settings of strategies are types: an editor completes them, and mypy finds what is wrong with a call."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import quorate
from quorate.aggregation import rules
from quorate.codecs import codecs
from quorate.core.registry import Registry
from quorate.gossip.topology import topologies
from quorate.means import OF_GRADIENTS, WITHOUT_CODEC, reducers
from quorate.means.reduction import GATHER, HIERARCHICAL, TWO_PHASE, ReductionSettings
from quorate.sharding.stages.orders import DELAYED, SCHEDULES, ScheduleName
from quorate.strategies import strategies
from quorate.train.names import CodecName, ReduceName, Settings, StrategyName
from quorate.workloads import workloads
from tests.architecture.tree import PACKAGE, ROOT

NUMBERS = (
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
)
"""From 7 on."""

CALLS = """
from torch import nn, optim
import pytest

import quorate
from quorate.strategies import EagerSolo

model = nn.Linear(2, 1)
plain = optim.SGD(model.parameters(), lr=0.1)
quorate.distribute(plain, model, EagerSolo(max_staleness=4), on_nonfinite="skip", compress="half")
quorate.distribute(plain, model, quorate.strategies.LocalSGD(sync_every=4), with_one_worker="algorithm")
quorate.distribute(plain, model, "quorum", wait_for=3, name="generator")
quorate.distribute(plain, model, "all-reduce", compress="top-k", density=0.01, reduce="gather")
quorate.distribute(plain, model, EagerSolo(), compress="top-k", density=0.01)
quorate.distribute(plain, model, quorate.strategies.get("mine.py")(its_setting=1))
quorate.distribute(plain, model, "eagr-solo")  # wrong
quorate.distribute(plain, model, "mine.py")  # wrong
quorate.distribute(plain, model, "quorum", wait_fr=3)  # wrong
quorate.distribute(plain, model, "all-reduce", compress="topk")  # wrong
quorate.distribute(plain, model, EagerSolo(), reduce="krumm")  # wrong
quorate.launch(print, n=4, strategy="quorum", wait_for=3, seed=1)
quorate.launch(print, virtual=4, strategy="ddp")
quorate.launch(print, n=4, stratgy="quorum")  # wrong
quorate.launch(print, n=4, strategy="qurum")  # wrong
quorate.parallelize(model, schedule="zbv")
quorate.parallelize(model, schedule="1f2b")  # wrong
EagerSolo(max_stalenes=4)  # wrong
EagerSolo(late="dropped")  # wrong
EagerSolo(grace="5s")  # wrong
quorate.strategies.EagerSol()  # wrong
quorate.distribute(plain, model, EagerSolo(), compres="half")  # wrong
quorate.distribute(plain, model, "quorum", on_nonfinite="skipp")  # wrong
quorate.loader(model, 3, share="dynamic", shuffle=True, seed=0, drop_last=True)
quorate.loader([1, 2], 4)
quorate.loader(model, 3, share="dynamik")  # wrong
quorate.loader(model, 3, shuffl=True)  # wrong
"""
OPTIMIZERS = """
from torch.nn import Module
from torch.optim import SGD, Optimizer

import quorate


class Mine(SGD):
    def mine(self) -> int:
        return 1


def train(model: Module, optimizer: Optimizer, own: SGD, agreed: quorate.DistributedOptimizer) -> None:
    optimizer = quorate.distribute(optimizer, model, "quorum", wait_for=3)
    with optimizer.accumulate():
        optimizer.zero_grad()
    optimizer.finish()
    own = quorate.distribute(own, model, quorate.strategies.EagerSolo())
    own.finish()
    agreed = quorate.distribute(Mine([]), model)
    agreed.step()
    agreed.finish()
    agreed.finish(1)  # wrong
    agreed.register_step_pre_hook()  # wrong
    mine: Mine = quorate.distribute(Mine([]), model)
    mine.mine()
    plain = SGD([])
    plain.finish()  # wrong
"""
# torch is not looked into, which would take half a minute: what comes from it is anything, but for its optimizers.
SETTINGS = """
[mypy]
strict = true
ignore_errors = true
[mypy-torch.*,numpy.*,pydantic.*]
follow_imports = skip
[mypy-torch.optim.*]
follow_imports = silent
[mypy-calls,optimizers]
ignore_errors = false
"""
SCRIPTS = {"calls.py": CALLS, "optimizers.py": OPTIMIZERS}


@pytest.mark.slow
def test_mypy_finds_what_is_wrong_with_a_call_or_an_optimizer_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", str(tmp_path), *SCRIPTS]
    environment = {"MYPYPATH": str(PACKAGE.parent)}
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    refused = re.findall(r"^(\w+\.py):(\d+): error", found.stdout, re.MULTILINE)
    wrong = {
        (name, number)
        for name, text in SCRIPTS.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if line.endswith("# wrong")
    }
    assert {(name, int(number)) for name, number in refused} == wrong, found.stdout + found.stderr


def test_types_of_names_are_the_registries() -> None:
    assert set(get_args(StrategyName)) == with_quorate(strategies)
    assert set(get_args(CodecName)) == {"none", *OF_GRADIENTS} | with_quorate(codecs)
    assert set(get_args(ReduceName)) == {"auto", GATHER, TWO_PHASE, HIERARCHICAL, *WITHOUT_CODEC} | with_quorate(rules)
    assert set(get_args(ScheduleName)) == {*SCHEDULES, DELAYED}


def test_pages_count_what_there_is() -> None:
    counts = {"graphs": topologies, "codecs": codecs, "workloads": workloads}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8").lower() for page in pages)
    written = re.findall(rf"\b({'|'.join(NUMBERS)}) \[?({'|'.join(counts)})\b", text)
    assert len(written) > 5
    assert {(NUMBERS.index(number) + 7, noun) for number, noun in written} <= {
        (len(with_quorate(registry)), noun) for noun, registry in counts.items()
    }
    named = ("all-reduce", "eager-solo", "quorum")
    others = len(with_quorate(strategies)) - len(named)
    assert f"{', '.join(f'`{name}`' for name in named[1:])} and\n[{others} others]" in pages[0].read_text(
        encoding="utf-8"
    )


def test_types_of_settings_are_the_fields_of_the_registered_classes() -> None:
    kinds = (*map(reducers.get, OF_GRADIENTS), ReductionSettings)
    others = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert set(get_type_hints(Settings)) == others.union(*map(fields_in, (codecs, rules, strategies)))


def with_quorate(registry: Registry[Any]) -> set[str]:
    """Names of what comes with Quorate: other tests register objects of their own."""
    return {name for name, place in registry.places.items() if place.startswith("quorate.")}


def fields_in(registry: Registry[Any]) -> Iterator[str]:
    for name in with_quorate(registry):
        yield from (field.name for field in dataclasses.fields(registry.get(name)))


def test_all_classes_of_strategies_are_found_and_type_checkers_know_them() -> None:
    classes = {place for place in strategies.places.values() if place.startswith("quorate.strategies.")}
    stub = ast.parse((PACKAGE / "strategies" / "__init__.pyi").read_text())
    imported = {
        f"{node.module}:{one.asname}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("quorate.strategies.")
        for one in node.names
    }
    assert imported == classes
    for place in classes:
        name = place.rpartition(":")[2]
        assert name in dir(quorate.strategies)
        assert getattr(quorate.strategies, name).__name__ == name
