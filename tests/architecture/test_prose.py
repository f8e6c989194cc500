"""Sentences are short, and have none of the words that docs/explanation/words.md replaces.

This holds for pages and notebooks with their tables, for docstrings, for help and messages in the code, and for pages
that are made from the code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.prose import CODE, FENCE, sentences, word_count
from tests.architecture.test_documents import DOCUMENTS
from tests.architecture.texts import EXAMPLE, Text, docstrings, generated_pages, long_sentences, messages
from tests.architecture.tree import ROOT

LONGEST_SENTENCE = 30
WORDS = ROOT / "docs" / "explanation" / "words.md"
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PAGES = [*DOCUMENTS, *sorted((ROOT / ".github").rglob("*.md")), *NOTEBOOKS]

each_kind = pytest.mark.parametrize("kind", [docstrings, messages, generated_pages], ids=lambda kind: kind.__name__)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())


def banned_phrases() -> list[str]:
    """Return the phrases in the last column of the table of words that are not used."""
    table = WORDS.read_text(encoding="utf-8").partition("## Words that are not used")[2]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row[-1])]


def read(page: Path) -> str:
    """Return the text of a page; of a notebook, that of its cells of text."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    return "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")


@cache
def texts_of(kind: Callable[[], Iterator[Text]]) -> tuple[Text, ...]:
    """Return the texts of a kind, which are read once."""
    return tuple(kind())


@cache
def _banned() -> re.Pattern[str]:
    phrases = "|".join(re.sub(r"\s+", r"\\s+", re.escape(phrase).replace(r"\ ", " ")) for phrase in banned_phrases())
    return re.compile(rf"(?<![\w-])(?:{phrases})(?![\w-])", re.IGNORECASE)


def banned_words(text: str) -> list[str]:
    """Return the banned phrases in a text, without its code."""
    phrases: list[str] = _banned().findall(CODE.sub("", FENCE.sub("", text)))
    return phrases


@each_page
def test_no_sentence_is_long(page: Path) -> None:
    long = [text for text in sentences(read(page)) if word_count(text) > LONGEST_SENTENCE]
    assert not long, "split: " + "\n".join(long)


@each_page
def test_no_page_has_banned_words(page: Path) -> None:
    if page == WORDS:
        return
    assert not banned_words(read(page))


@each_kind
def test_sentences_of_the_code_are_short(kind: Callable[[], Iterator[Text]]) -> None:
    long = long_sentences(texts_of(kind), LONGEST_SENTENCE)
    assert not long, "split: " + "\n".join(map(str, long))


@each_kind
def test_texts_of_the_code_have_no_banned_words(kind: Callable[[], Iterator[Text]]) -> None:
    assert not [(place, word) for place, text in texts_of(kind) for word in banned_words(EXAMPLE.sub("", text))]


def test_the_banned_words_are_read() -> None:
    assert {"stands still", "anew", "foreseen"} <= set(banned_phrases())


@pytest.mark.parametrize(
    ("page", "counts"),
    [
        ("One two. Three four five.", [2, 3]),
        ("One two\nthree.\n\nFour", [3, 1]),
        ("- One\n  two\n- Three", [2, 1]),
        ("1. One\n2. Two (et al. 2020) three", [1, 5]),
        ("# One two\n\n| three | four |\n\nFive", [1, 1, 1]),
        ("```python\none. Two\n```\nThree", [1]),
        ("| one | two |\n|---|---|\n| | three. Four five<br>six |", [1, 1, 1, 2, 1]),
        ("| one \\| two three | `a`, `b` (four), five, six |", [3, 1]),
        ("| one two, three four five six, seven, eight |", [8]),
        ("See [one two](a/b.md#c), `three four` - five.", [5]),
        ("It is 1.5 times as fast, e.g. here.", [8]),
    ],
)
def test_sentences_and_words_are_counted(page: str, counts: list[int]) -> None:
    assert [word_count(text) for text in sentences(page)] == counts
