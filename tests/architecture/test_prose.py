"""Pages have short sentences, and none of the words that docs/explanation/words.md replaces."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.prose import CODE, FENCE, sentences, word_count
from tests.architecture.test_documents import DOCUMENTS
from tests.architecture.tree import ROOT

LONGEST_SENTENCE = 30
WORDS = ROOT / "docs" / "explanation" / "words.md"
PAGES = [page for page in DOCUMENTS if page.name != "CHANGELOG.md"]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())


def banned_phrases() -> list[str]:
    """Return the phrases in the last column of the table of words that are not used."""
    table = WORDS.read_text(encoding="utf-8").partition("## Words that are not used")[2]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row[-1])]


@each_page
def test_no_sentence_is_long(page: Path) -> None:
    long = [text for text in sentences(page.read_text(encoding="utf-8")) if word_count(text) > LONGEST_SENTENCE]
    assert not long, "split: " + "\n".join(long)


@each_page
def test_no_page_has_banned_words(page: Path) -> None:
    if page == WORDS:
        return
    prose = CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    phrases = "|".join(re.sub(r"\s+", r"\\s+", re.escape(phrase).replace(r"\ ", " ")) for phrase in banned_phrases())
    assert not re.findall(rf"(?<![\w-])(?:{phrases})(?![\w-])", prose, re.IGNORECASE)


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
