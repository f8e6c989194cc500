"""Every public class and function says what it is, and what is named in words is there.

A method may leave it to the class that describes it: a contract, or the class that it overrides.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import pytest

from tests.architecture.tree import PACKAGE, dotted, modules


def test_what_is_public_is_documented() -> None:
    assert list(undocumented([(module.place, module.tree) for module in modules()])) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f():\n    pass\n", ["x f"]),
        ("class A:\n    def f(self):\n        pass\n", ["x A", "x A.f"]),
        ('class P(Protocol):\n    """P."""\n    def f(self):\n        """Does."""\n', []),
        (
            'class A:\n    """A."""\n    def f(self):\n        """Does."""\n'
            'class B(A):\n    """B."""\n    def f(self): ...\n',
            [],
        ),
        ('class A:\n    """A."""\n    @overload\n    def f(self): ...\n    @f.setter\n    def f(self, x): ...\n', []),
    ],
)
def test_it_is_seen(source: str, found: list[str]) -> None:
    assert list(undocumented([("x", ast.parse(source))])) == found


def undocumented(sources: Iterable[tuple[str, ast.Module]]) -> Iterator[str]:
    """`place name` of what says nothing, and is described by no class of a contract or one that others are made of."""
    known = list(sources)
    bases = {
        _name(base)
        for _, tree in known
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    }
    described = {
        method.name
        for _, tree in known
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and (node.name in bases or {_name(x) for x in node.bases} & {"Protocol", "ABC"})
        for method in node.body
        if isinstance(method, ast.FunctionDef) and ast.get_docstring(method)
    }
    for place, tree in known:
        yield from _in(tree, place, "", described)


def _in(node: ast.Module | ast.ClassDef, place: str, owner: str, described: set[str]) -> Iterator[str]:
    for one in node.body:
        if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or one.name.startswith("_"):
            continue
        is_class = isinstance(one, ast.ClassDef)
        says = {_name(decorator) for decorator in one.decorator_list}
        is_told = (owner and not is_class and one.name in described) or says & {"setter", "overload"}
        if not is_told and not ast.get_docstring(one):
            yield f"{place} {owner}{one.name}"
        if isinstance(one, ast.ClassDef):
            yield from _in(one, place, f"{owner}{one.name}.", described)


def _name(node: ast.expr) -> str:
    return dotted(node.value if isinstance(node, ast.Subscript) else node).rpartition(".")[2]


NAMED = re.compile(r"`(?:quorate\.)?([a-z_]+)((?:\.\w+)+)`")
FILES = {"json", "html", "csv", "txt", "py", "jsonl"}


def test_modules_that_are_named_in_words_are_there() -> None:
    assert [(module.place, name) for module in modules() for name in not_there(module.text)] == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`core.errors.ConfigurationError` and `quorate.core.errors.Stopped`", []),
        ("`train.outer.KINDS`", ["train.outer.KINDS"]),
        ("`compare.json`, `worker.means`", []),
    ],
)
def test_a_module_that_is_not_there_is_seen(text: str, missing: list[str]) -> None:
    assert not_there(text) == missing


def not_there(text: str) -> list[str]:
    """What `text` names in a room of the package, by `room.module`, and is no module there."""
    found = []
    for room, rest in NAMED.findall(text):
        parts = rest[1:].split(".")
        if not (PACKAGE / room).is_dir() or parts[-1] in FILES or len(parts) < 2:
            continue
        places = [(PACKAGE / room).joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
        is_package = (places[-1] / "__init__.py").is_file()
        if not is_package and not any(place.with_suffix(".py").is_file() for place in places):
            found.append(room + rest)
    return found
