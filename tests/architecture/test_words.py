"""Names and docstrings that say nothing by themselves become fewer: see docs/explanation/words.md."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from tests.architecture.tree import modules

VAGUE_NAMES = frozenset(("one", "found", "told", "given", "came", "gone", "mine", "what"))
FIRST_WORDS = frozenset(("What", "Of", "As", "Those", "Where", "Likewise"))
# Fields of files and outputs that are read elsewhere; to be lowered whenever the count has fallen, never raised.
MOST_BINDINGS = 7
MOST_DOCSTRINGS = 0


def test_vague_names_become_fewer() -> None:
    counts = Counter(name for module in modules() for name in bindings(module.nodes) if name in VAGUE_NAMES)
    assert counts.total() <= MOST_BINDINGS, f"name the noun instead: {dict(counts)}"


def test_docstrings_that_begin_with_a_pronoun_become_fewer() -> None:
    count = sum(first_word(text) in FIRST_WORDS for module in modules() for text in docstrings(module.nodes))
    assert count <= MOST_DOCSTRINGS, "begin with a noun or a verb, or leave the docstring out where the name says it"


@pytest.mark.parametrize(
    "source",
    [
        "one = 1",
        "one: int = 1",
        "for one, x in y: pass",
        "[one for one in y]",
        "def f(one): pass",
        "f = lambda one: 1",
        "with x as one: pass",
        "(one := 1)",
        "import x as one",
        "def one(): pass",
        "try: pass\nexcept E as one: pass",
    ],
)
def test_a_binding_is_seen(source: str) -> None:
    assert list(bindings(ast.walk(ast.parse(source)))).count("one") == 1


def test_what_is_only_read_is_no_binding() -> None:
    assert list(bindings(ast.walk(ast.parse("one.x[one](one=one)")))) == []


def test_docstrings_are_those_of_anything() -> None:
    source = '"""A."""\nx = 1\n"""Of x."""\nclass C:\n    """C."""\n    y: int\n    """As x."""\n'
    assert [first_word(text) for text in docstrings(ast.walk(ast.parse(source)))] == ["A", "Of", "C", "As"]


def bindings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield each name that is bound: by an assignment, a loop, an argument, an import, a definition."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias) and node.asname is not None:
            yield node.asname
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or (
            isinstance(node, ast.ExceptHandler) and node.name is not None
        ):
            yield str(node.name)


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield every text that stands alone: of modules, classes, functions and attributes."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                constant = statement.value if isinstance(statement, ast.Expr) else None
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                    yield constant.value


def first_word(text: str) -> str:
    """Return the first word of a docstring, without its punctuation."""
    return text.split(maxsplit=1)[0].strip(".,:;`'\"") if text.strip() else ""
