"""The sentences of a Markdown page, without its code, tables and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator

FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[^\n]*$", re.MULTILINE | re.DOTALL)
SKIPPED = re.compile(r"^\s*(?:#|\||<|!\[|\[\^)")
"""Headings, tables, markup and pictures."""
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
    """Yield each sentence of the page's prose."""
    for paragraph in paragraphs(page):
        start = 0
        for end in END.finditer(paragraph):
            yield paragraph[start : end.end()].strip()
            start = end.end()
        if paragraph[start:].strip():
            yield paragraph[start:].strip()


def word_count(sentence: str) -> int:
    """Return the number of words: what has a letter or a digit, between spaces."""
    return sum(bool(WORD.search(word)) for word in sentence.split())


def _plain(text: str) -> str:
    return CODE.sub("`code`", LINK.sub(r"\1", text))
