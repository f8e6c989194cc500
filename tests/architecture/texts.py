"""The sentences that users and readers see outside of the written pages: help, cards, messages, docstrings."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import typer

import quorate
from quorate.cli.explain import FAMILIES, cards_of
from quorate.cli.listing import registry
from quorate.cli.verbs import app
from tests.architecture.prose import ITEM, sentences, word_count
from tests.architecture.tree import Module, modules

EXAMPLE = re.compile(r"^ *(?:>>>|\.\.\. ?|\.\. ).*$", re.MULTILINE)
"""A line of an example or a directive."""
HEADINGS = {"Args:", "Returns:", "Raises:", "Yields:", "Example:"}
ENTRY_DEPTH = 4
COLUMNS = re.compile(r"\S {2,}\S|^\s*\|.*\|$")
"""A row of a table."""
CITATION = re.compile(r"^(?:Paper|Sources?): (?:.+\n?)+", re.MULTILINE)
"""A list of papers: it has a sentence for each, as long as the title."""
SECTION = re.compile(r"^(Idea|Cost|When it loses|Honesty):\s*", re.MULTILINE)


class Text(NamedTuple):
    """A text, and where it stands."""

    place: str
    text: str


def help_texts() -> Iterator[Text]:
    """Yield the help of each verb and of its options."""
    for verb, command in getattr(typer.main.get_command(app), "commands", {}).items():
        yield Text(f"quorate {verb} --help", command.help or "")
        for parameter in command.params:
            yield Text(f"quorate {verb} {parameter.opts[0]}", getattr(parameter, "help", None) or "")


def cards() -> Iterator[Text]:
    """Yield the texts that `quorate explain` prints for the names of this package, without the papers."""
    for family in FAMILIES:
        names = registry(family)
        for name, place in names.places.items():
            if not place.startswith("quorate."):
                continue
            for card in cards_of(name):
                sections = (text for title, text in card.sections.items() if title not in ("Paper", "Goes with"))
                remarks = (row.remark for row in card.honesty)
                meanings = (setting.meaning for setting in card.settings)
                for text in (card.summary, card.text, *sections, *remarks, *meanings):
                    yield Text(name, text)


def public_docstrings() -> Iterator[Text]:
    """Yield the docstrings of the public names and of the public methods of the classes among them."""
    for name in sorted({*quorate.__all__} - {"shard"}):
        value: Any = getattr(quorate, name)
        members = vars(value) if inspect.isclass(value) or inspect.ismodule(value) else {}
        yield Text(name, inspect.getdoc(value) or "")
        for member, described in members.items():
            if not member.startswith("_") and (inspect.isroutine(described) or isinstance(described, property | type)):
                yield Text(f"{name}.{member}", inspect.getdoc(described) or "")


def docstrings() -> Iterator[Text]:
    """Yield every docstring: of modules, classes, functions and attributes."""
    for module in modules():
        for constant in _docstrings(module.nodes):
            yield Text(f"{module.place}:{constant.lineno}", constant.value)


def messages() -> Iterator[Text]:
    """Yield every other text with spaces: what errors say and what is printed; a placeholder is the word x."""
    for module in modules():
        described = {id(constant) for constant in _docstrings(module.nodes)}
        for node, text in _strings(module, described):
            if " " in text.strip():
                yield Text(f"{module.place}:{node.lineno}", text)


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
        page.append("" if is_literal or COLUMNS.search(line) else re.sub(r"^(\s*)(?=[#<|])", r"\1x ", line))
        indent = depth if line.strip() else 0
    return "\n".join(page)


def long_sentences(texts: Iterable[Text], longest: int) -> list[Text]:
    """Return the sentences of more than `longest` words, each with the place of its text."""
    return [
        Text(place, sentence)
        for place, text in texts
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
