"""A strategy is read in its own file: it inherits settings at most, and calls what it shares with others."""

from __future__ import annotations

import ast
import dataclasses
import inspect

import pytest

from quorate.core.strategy import Strategy
from quorate.strategies import strategies
from tests.architecture.tree import PACKAGE, modules

OF_THE_PACKAGE = [name for name in strategies if strategies.get(name).__module__.startswith("quorate.")]
HOOKS = {name for name, thing in vars(Strategy).items() if inspect.isfunction(thing) and name[0] != "_"}
ROOM = "quorate.strategies"


def test_the_contract_has_ten_hooks() -> None:
    assert len(HOOKS) == 10


@pytest.mark.parametrize("name", OF_THE_PACKAGE)
def test_what_a_strategy_inherits_is_settings_or_the_strategy_that_it_presets(name: str) -> None:
    kind = strategies.get(name)
    above = [base for base in kind.__mro__[1:] if base is not Strategy and issubclass(base, Strategy)]
    if kind.__module__.startswith(f"{ROOM}.presets."):
        kind, *above = above
    assert kind.__module__.rpartition(".")[0] == ROOM
    strategies_below = [[one for one in base.__bases__ if issubclass(one, Strategy)] for base in above]
    assert all(own == [Strategy] for own in strategies_below), "settings stay at one level"
    for base in above:
        assert base.__module__.startswith(f"{ROOM}.parts."), f"{name} is a variant of another strategy"
        assert not HOOKS & vars(base).keys(), f"{base.__name__} has hooks, which belong into the strategies"


@pytest.mark.parametrize("name", sorted(strategies))
def test_defaults_are_read_from_the_source_as_they_are(name: str) -> None:
    """Of several classes that a strategy inherits from, the first one has the last word."""
    source = strategies.source(name)
    assert source is not None
    read = {one.name: one.default for one in source.settings}
    for field in dataclasses.fields(strategies.get(name)):
        if isinstance(field.default, str | int | float | bool):
            assert ast.literal_eval(read[field.name] or "") == field.default


def test_presets_are_nothing_but_defaults() -> None:
    presets = [module for module in modules() if module.path.parent == PACKAGE / "strategies" / "presets"]
    classes = [node for module in presets for node in module.nodes if isinstance(node, ast.ClassDef)]
    assert {node.name for node in classes} == {
        kind.__name__ for kind in map(strategies.get, OF_THE_PACKAGE) if ".presets." in kind.__module__
    }
    rest = [part for node in classes for part in node.body if not isinstance(part, ast.AnnAssign)]
    assert all(isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) for part in rest)
