"""No file imports, by whatever way, itself, and no room; imports for type annotations count."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.tree import PACKAGE, Module, modules


def test_no_circle_of_files() -> None:
    assert circle_in(imports_of(modules())) == []


def test_no_circle_of_rooms() -> None:
    rooms = by_folder(imports_of(modules()))
    assert {folder: circle for folder, graph in rooms.items() if (circle := circle_in(graph))} == {}


@pytest.mark.parametrize(
    ("graph", "is_round"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, False),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}}, True),
        ({"a": {"a"}}, True),
    ],
)
def test_a_circle_is_found(graph: dict[str, set[str]], is_round: bool) -> None:
    assert bool(circle_in(graph)) == is_round


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """One circle, from end to end; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def imports_of(sources: Iterable[Module]) -> dict[str, set[str]]:
    """By file, which files of Quorate it imports, anywhere in it."""
    names = {name_of(module): module for module in sources}
    return {name: set(_imported(module, set(names))) for name, module in names.items()}


def by_folder(graph: dict[str, set[str]]) -> dict[str, dict[str, set[str]]]:
    """For each folder, the imports between what lies in it: a folder in it counts as one, whatever lies in that."""
    found: dict[str, dict[str, set[str]]] = {}
    for name, imported in graph.items():
        for one in imported:
            shared = _shared(name, one)
            mine, other = (".".join(full.split(".")[: len(shared) + 1]) for full in (name, one))
            if mine != other:
                found.setdefault(".".join(shared), {}).setdefault(mine, set()).add(other)
    return found


def name_of(module: Module) -> str:
    """As it is imported: `quorate.core.errors`; of a folder's own file, the folder's."""
    parts = module.path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _shared(one: str, other: str) -> list[str]:
    """The folders that both lie in, from the outermost."""
    return [a for a, b in zip(one.split(".")[:-1], other.split("."), strict=False) if a == b]


def _imported(module: Module, names: set[str]) -> Iterable[str]:
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module in names:
            files = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (one if one in names else node.module for one in files)
