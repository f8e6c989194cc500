"""The texts that readers see outside of the written pages: docstrings, messages, and pages made from the code.

Help of the command line and cards of `quorate explain` are among them.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.architecture.prose import ITEM, ROW, sentences, word_count
from tests.architecture.test_generated_pages import script
from tests.architecture.tree import Module, modules

EXAMPLE = re.compile(r"^ *(?:>>>|\.\.\. ?|\.\. ).*$", re.MULTILINE)
"""A line of an example or a directive."""
HEADINGS = {"Args:", "Returns:", "Raises:", "Yields:", "Example:"}
ENTRY_DEPTH = 4
COLUMNS = re.compile(r"\S {2,}\S")
"""A row of a table without bars."""
CITATION = re.compile(r"^(?:Paper|Sources?): (?:.+\n?)+", re.MULTILINE)
"""A list of papers: it has a sentence for each, as long as the title."""
SHORTEST = 3
STYLE = re.compile(r"\{ [\w-]+:")
"""A rule of a style sheet."""
PAPER = re.compile(r"^## Paper\n\n(?:.+\n?)+", re.MULTILINE)
SECTION = re.compile(r"^(Idea|Cost|When it loses|Honesty):\s*", re.MULTILINE)


class Text(NamedTuple):
    """A text, and where it stands."""

    place: str
    text: str


def docstrings() -> Iterator[Text]:
    """Yield every docstring: of modules, classes, functions and attributes."""
    for module in modules():
        for constant in _docstrings(module.nodes):
            yield Text(f"{module.place}:{constant.lineno}", str(constant.value))


def messages() -> Iterator[Text]:
    """Yield every other text of three words and more: help, errors, reports; a placeholder is the word x."""
    for module in modules():
        described = {id(constant) for constant in _docstrings(module.nodes)}
        for node, text in _strings(module, described):
            if len(text.split()) >= SHORTEST and not STYLE.search(text):
                yield Text(f"{module.place}:{node.lineno}", text)


def generated_pages() -> Iterator[Text]:
    """Yield the pages that are made from the code, without citations."""
    for path, page in script("generated_pages").pages_by_path():
        yield Text(path, PAPER.sub("", page))


def prose(text: str) -> str:
    """Return a docstring as a page: without code, tables and citations, each argument and section a paragraph."""
    page: list[str] = []
    indent, is_literal, is_section = 0, False, False
    for line in SECTION.sub(r"\n", CITATION.sub("", EXAMPLE.sub("", inspect.cleandoc(text)))).splitlines():
        depth = len(line) - len(line.lstrip())
        if line.strip() and page and not page[-1].strip():
            before = next((earlier for earlier in reversed(page) if earlier.strip()), "")
            is_literal = depth > 0 and (is_literal or before.rstrip().endswith(":")) and before not in HEADINGS
        if line.strip() and depth == 0:
            is_section = line in HEADINGS
        if (is_section and depth <= ENTRY_DEPTH) or (depth < indent and not ITEM.match(line)):
            page.append("")
        if not ROW.match(line):
            line = "" if is_literal or COLUMNS.search(line) else re.sub(r"^(\s*)(?=[#<|])", r"\1x ", line)
        page.append(line)
        indent = depth if line.strip() else 0
    return "\n".join(page)


def long_sentences(texts: Iterable[Text], longest: int) -> list[Text]:
    """Return the sentences of more than `longest` words, each with the place of its text."""
    return [
        Text(place, sentence)
        for place, text in texts
        if len(text.split()) > longest
        for sentence in sentences(prose(text))
        if word_count(sentence) > longest
    ]


def _docstrings(nodes: Iterable[ast.AST]) -> Iterator[ast.Constant]:
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                constant = statement.value if isinstance(statement, ast.Expr) else None
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                    yield constant


def _strings(module: Module, left_out: set[int]) -> Iterator[tuple[ast.expr, str]]:
    parts: set[int] = set(left_out)
    for node in module.nodes:  # in the order of `ast.walk`: a sum and an f-string before their parts
        if isinstance(node, ast.expr) and id(node) not in parts:
            text = _text(node)
            if text is not None:
                parts.update(id(part) for part in ast.walk(node) if not isinstance(part, ast.IfExp))
                yield node, text


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "x" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return None if left is None and right is None else f"{'x' if left is None else left}{right or 'x'}"
    return None
