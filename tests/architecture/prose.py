"""The sentences of a Markdown page and of the cells of its tables, without its code and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[^\n]*$", re.MULTILINE | re.DOTALL)
SKIPPED = re.compile(r"^\s*(?:#|\||<|!\[|\[\^)")
"""In paragraphs: headings, tables, markup and pictures."""
ROW = re.compile(r"^\s*\|.*\|\s*$")
CELL = re.compile(r"(?<!\\)\||<br>")
"""The end of a cell, or of a line in it."""
ITEM_WORDS, LIST_ITEMS = 3, 3
"""Of a list in a cell: the most words of an item, and the fewest items."""
COMMA = re.compile(r",\s+")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+|^\s*>\s?")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"``.+?``|`[^`]+`")
END = re.compile(r"(?<!et al)(?<!e\.g)(?<!i\.e)[.!?][)\"*]*(?=\s+(?:\W*[A-Z0-9`(\[*§]|\"\w)|$)")
WORD = re.compile(r"\w")


def paragraphs(page: str) -> Iterator[str]:
    """Yield each paragraph and list item as one line; a link counts as its text, inline code as the word `code`."""
    lines: list[str] = []
    for line in [*FENCE.sub("", page).splitlines(), ""]:
        begins = ITEM.match(line)
        if lines and (begins or not line.strip() or SKIPPED.match(line)):
            yield _plain(" ".join(lines))
            lines = []
        if line.strip() and not SKIPPED.match(line):
            lines.append(ITEM.sub("", line).strip())


def sentences(page: str) -> Iterator[str]:
    """Yield each sentence of the page's prose, then each one of its tables."""
    for paragraph in paragraphs(page):
        yield from _split(paragraph)
    for line in FENCE.sub("", page).splitlines():
        if ROW.match(line) and WORD.search(line):
            yield from (_without_lists(sentence) for cell in CELL.split(line) for sentence in _split(_plain(cell)))


def word_count(sentence: str) -> int:
    """Return the number of words: what has a letter or a digit, between spaces."""
    return sum(bool(WORD.search(word)) for word in sentence.split())


def _plain(text: str) -> str:
    return CODE.sub("`code`", LINK.sub(r"\1", text))


def _split(text: str) -> Iterator[str]:
    start = 0
    for end in END.finditer(text):
        yield text[start : end.end()].strip()
        start = end.end()
    if text[start:].strip():
        yield text[start:].strip()


def _without_lists(sentence: str) -> str:
    """Return the sentence of a cell with the word `list` for three items or more of at most three words each."""
    parts: list[str] = []
    for is_short, group in groupby(COMMA.split(sentence), lambda item: word_count(item) <= ITEM_WORDS):
        items = list(group)
        parts += ["list"] if is_short and len(items) >= LIST_ITEMS else items
    return ", ".join(parts)
