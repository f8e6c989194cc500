"""Sentences are short, and have none of the words that docs/explanation/words.md replaces.

The pages have no exception. Help, cards, messages, docstrings and generated pages have ceilings, which only fall.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.architecture.prose import CODE, FENCE, sentences, word_count
from tests.architecture.test_documents import DOCUMENTS
from tests.architecture.texts import (
    EXAMPLE,
    Text,
    cards,
    docstrings,
    help_texts,
    long_sentences,
    messages,
    public_docstrings,
)
from tests.architecture.tree import ROOT

LONGEST_SENTENCE = 30
WORDS = ROOT / "docs" / "explanation" / "words.md"
PAGES = [page for page in DOCUMENTS if page.name != "CHANGELOG.md"]

LONG = {help_texts: 0, cards: 131, public_docstrings: 35, messages: 49, docstrings: 409}
"""The long sentences of each kind of texts that are not split yet; to be lowered, never raised."""
BANNED = {help_texts: 0, cards: 4, public_docstrings: 0, messages: 39, docstrings: 120}
"""The words of each kind that are not replaced yet."""

each_kind = pytest.mark.parametrize("kind", LONG, ids=lambda kind: kind.__name__)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())


def banned_phrases() -> list[str]:
    """Return the phrases in the last column of the table of words that are not used."""
    table = WORDS.read_text(encoding="utf-8").partition("## Words that are not used")[2]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row[-1])]


def banned_words(text: str) -> list[str]:
    """Return the banned phrases in a text, without its code."""
    phrases = "|".join(re.sub(r"\s+", r"\\s+", re.escape(phrase).replace(r"\ ", " ")) for phrase in banned_phrases())
    prose = CODE.sub("", FENCE.sub("", text))
    return re.findall(rf"(?<![\w-])(?:{phrases})(?![\w-])", prose, re.IGNORECASE)


@each_page
def test_no_sentence_is_long(page: Path) -> None:
    long = [text for text in sentences(page.read_text(encoding="utf-8")) if word_count(text) > LONGEST_SENTENCE]
    assert not long, "split: " + "\n".join(long)


@each_page
def test_no_page_has_banned_words(page: Path) -> None:
    if page == WORDS:
        return
    assert not banned_words(page.read_text(encoding="utf-8"))


@each_kind
def test_sentences_of_the_code_are_short(kind: Callable[[], Iterator[Text]]) -> None:
    long = long_sentences(dict.fromkeys(kind()), LONGEST_SENTENCE)
    assert len(set(long)) <= LONG[kind], "split: " + "\n".join(map(str, dict.fromkeys(long)))


@each_kind
def test_texts_of_the_code_have_no_banned_words(kind: Callable[[], Iterator[Text]]) -> None:
    banned = [(text.place, word) for text in dict.fromkeys(kind()) for word in banned_words(EXAMPLE.sub("", text.text))]
    assert len(banned) <= BANNED[kind], f"replace: {banned}"


def test_the_banned_words_are_read() -> None:
    assert {"stands still", "anew", "foreseen"} <= set(banned_phrases())


@pytest.mark.parametrize(
    ("page", "counts"),
    [
        ("One two. Three four five.", [2, 3]),
        ("One two\nthree.\n\nFour", [3, 1]),
        ("- One\n  two\n- Three", [2, 1]),
        ("1. One\n2. Two (et al. 2020) three", [1, 5]),
        ("# One two\n\n| three | four |\n\nFive", [1]),
        ("```python\none. Two\n```\nThree", [1]),
        ("See [one two](a/b.md#c), `three four` - five.", [5]),
        ("It is 1.5 times as fast, e.g. here.", [8]),
    ],
)
def test_sentences_and_words_are_counted(page: str, counts: list[int]) -> None:
    assert [word_count(text) for text in sentences(page)] == counts
