"""The number of names that a strategy may meet: the public names of the objects that its hooks are given or return.

From the annotations of `Strategy` on, every class of the library that an annotation names belongs to the contract, and
whatever the annotations of its public names name in turn. Counted are the public names that each class declares itself:
fields, properties and methods, but neither `__init__` nor operators.

Five families that few strategies meet are counted apart: servers, groups, clients, redundancy and moments, with the
names that lead to them (`Worker.servers`, `Strategy.redundancy`), which are those whose annotations name one of their
classes.

The ceiling is above 90, as no name is left that no strategy uses: 14 say where the numbers of a vector lie, 10 what
workers measure for `adaptive`, and 3 what `auto` measures and proposes. Fewer would move parts of strategies into the
engine.
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

from quorate.core.strategy import Strategy
from tests.architecture.tree import PACKAGE, ROOT

MOST_NAMES = 144
MOST_OF_FAMILIES = 98
FAMILIES = frozenset(f"quorate.core.{name}" for name in ("servers", "groups", "clients", "redundancy", "moments"))
"""The modules of the classes that are counted apart."""


def classes_in(annotation: Any) -> Iterator[type]:
    """The classes of the library in an annotation, those of its arguments included."""
    if isinstance(annotation, type) and annotation.__module__.startswith("quorate."):
        yield annotation
    for part in (typing.get_origin(annotation), *typing.get_args(annotation)):
        for inner in part if isinstance(part, list) else [part]:
            if inner is not None:
                yield from classes_in(inner)


def classes_by_name(kind: type) -> dict[str, set[type]]:
    """The public names that a class declares itself, each with the classes that its annotations name."""
    space, fields = vars(sys.modules[kind.__module__]), typing.get_type_hints(kind)
    classes: dict[str, set[type]] = {}
    for name in {*vars(kind), *inspect.get_annotations(kind)}:
        member = vars(kind).get(name)
        for wrapped in ("fget", "func", "__func__"):
            member = getattr(member, wrapped, member)
        hints = typing.get_type_hints(member, space).values() if inspect.isfunction(member) else [fields.get(name)]
        if not name.startswith("_"):
            classes[name] = {inner for hint in hints for inner in classes_in(hint)}
    return classes


@cache
def contract() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The names by class: of the contract, and of the families."""
    most: dict[str, list[str]] = {}
    families: dict[str, list[str]] = {}
    waiting, seen = [Strategy], set[type]()
    while waiting:
        kind = waiting.pop(0)
        if kind in seen:
            continue
        seen.add(kind)
        for name, classes in sorted(classes_by_name(kind).items()):
            is_apart = any(inner.__module__ in FAMILIES for inner in (kind, *classes))
            (families if is_apart else most).setdefault(kind.__name__, []).append(name)
            waiting += sorted(classes, key=lambda inner: inner.__name__)
        waiting += [base for base in kind.__bases__ if base.__module__.startswith("quorate.")]
    return most, families


def table(names: dict[str, list[str]]) -> str:
    """The names, a line for each class."""
    lines = [f"{len(own):4} {kind}: {', '.join(own)}" for kind, own in names.items()]
    return "\n".join([*lines, f"{sum(map(len, names.values())):4} in all"])


def test_strategies_meet_few_names() -> None:
    most, families = contract()
    print(table(most), table(families), sep="\n\n")
    assert sum(map(len, most.values())) <= MOST_NAMES
    assert sum(map(len, families.values())) <= MOST_OF_FAMILIES


def test_a_strategy_uses_each_name() -> None:
    folders = PACKAGE / "strategies", PACKAGE / "rounds" / "choice", ROOT / "examples" / "strategies"
    texts = [path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py")]
    texts.append((ROOT / "docs" / "howto" / "add-a-strategy.md").read_text(encoding="utf-8"))
    words = set(re.findall(r"\w+", "\n".join(texts)))
    assert [name for names in contract()[0].values() for name in names if name not in words] == []
