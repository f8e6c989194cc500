"""Pairs of sentences: catalogues as gettext reads them, paragraphs by their ids, aligned files, the cache."""

from __future__ import annotations

import gettext
from pathlib import Path

import pytest

from quorate.core.errors import ConfigurationError
from quorate.workloads import parallel_text
from quorate.workloads.parallel_text import aligned, catalogue, distinct, installed
from tests.support.workload_files import write_catalogue

MESSAGES = {
    "Open": "Öffnen",
    "menu\x04Open": "Aufmachen",
    "%d file\0%d files": "%d Datei\0%d Dateien",
    "Print the\n page": "Die Seite\n drucken",
    "OK": "OK",
    "%d": "%d Stück",
}


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("charset", ["utf-8", "iso-8859-1"])
def test_a_catalogue_is_read_as_gettext_reads_it(tmp_path: Path, order: str, charset: str) -> None:
    path = write_catalogue(tmp_path / "x.mo", MESSAGES, charset=charset, order=order)
    with path.open("rb") as file:
        reference = gettext.GNUTranslations(file)
    messages = catalogue(path)
    assert len(messages) == len(MESSAGES)
    assert dict(messages)["%d file"] == reference.ngettext("%d file", "%d files", 1) == "%d Datei"
    assert [target for source, target in messages if source == "Open"] == ["Öffnen", "Aufmachen"]
    assert dict(messages)["Print the\n page"] == reference.gettext("Print the\n page")


def test_a_damaged_catalogue_has_no_messages(tmp_path: Path) -> None:
    path = write_catalogue(tmp_path / "x.mo", MESSAGES)
    data = path.read_bytes()
    for damaged in (b"", b"text", data[:40], data[:-20], data.replace(b"charset=utf-8", b"charset=utf-0")):
        path.write_bytes(damaged)
        assert catalogue(path) == []
    assert catalogue(tmp_path / "nowhere.mo") == []


def test_pairs_are_different_and_have_letters() -> None:
    pairs = [("Open", "Öffnen"), ("OK", "OK"), ("1", "eins"), ("Open ", " Öffnen"), ("a\tb\u2028c", "d\n e"), ("x", "")]
    assert distinct(pairs) == (("Open", "Öffnen"), ("a b c", "d e"))


def test_pages_are_aligned_by_the_ids_of_their_paragraphs(tmp_path: Path) -> None:
    pages = {
        "en-US": '<h1 id="hd_id1" dir="auto">Tables</h1><p id="par_id2">Inserts <b>a &lt;new&gt;</b>\n table.</p>'
        '<p id="par_id3">Only here.</p><p class="x">Without an id.</p>',
        "de": '<p id="par_id2" class="y"><span>Fügt eine &lt;neue&gt; Tabelle ein.</span></p>'
        '<h1 id="hd_id1">Tabellen</h1>',
    }
    for language, page in pages.items():
        path = tmp_path / language / "text" / "swriter" / "1.html"
        path.parent.mkdir(parents=True)
        path.write_text(page, encoding="utf-8")
    (tmp_path / "en-US" / "text" / "only_english.html").write_text(pages["en-US"], encoding="utf-8")
    text = installed("de", [str(tmp_path)], use_cache=False)
    assert text.pairs == (("Tables", "Tabellen"), ("Inserts a <new> table.", "Fügt eine <neue> Tabelle ein."))
    assert text.origin == "2 of 1 pages of LibreOffice's help"


def test_catalogues_are_found_where_packages_have_them(tmp_path: Path) -> None:
    places = ["de", "locale/de", "django/conf/locale/de", "django/contrib/admin/locale/de", "django/conf/locale/fr"]
    for place in places:
        write_catalogue(tmp_path / place / "LC_MESSAGES" / "django.mo", {f"in {place}": f"dort {place}"})
    text = installed("de", [str(tmp_path)], use_cache=False)
    assert {pair.source for pair in text.pairs} == {f"in {place}" for place in places[:4]}
    assert text.origin == "4 of 4 catalogues"
    assert installed("sv", [str(tmp_path)], use_cache=False).pairs == ()


def test_the_cache_is_used_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_catalogue(tmp_path / "data" / "de" / "LC_MESSAGES" / "x.mo", MESSAGES)
    read = []
    monkeypatch.setattr(parallel_text, "catalogue", lambda path: read.append(path) or catalogue(path))
    first = installed("de", [str(tmp_path / "data")])
    assert installed("de", [str(tmp_path / "data")]) == first and len(read) == 1
    (kept,) = (tmp_path / "cache" / "quorate").iterdir()
    kept.write_text(kept.read_text(encoding="utf-8").replace("Seite", "Saite"), encoding="utf-8")
    assert installed("de", [str(tmp_path / "data")]) == first and len(read) == 2
    write_catalogue(path, {**MESSAGES, "Close": "Schließen"})
    assert ("Close", "Schließen") in installed("de", [str(tmp_path / "data")]).pairs


def test_aligned_files_have_equally_many_lines(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "x.en", tmp_path / "x.de"
    ours.write_text("A house\nA tree\n", encoding="utf-8")
    theirs.write_text("Ein Haus\nEin Baum\n", encoding="utf-8")
    text = aligned([str(ours), str(theirs)])
    assert text.pairs == (("A house", "Ein Haus"), ("A tree", "Ein Baum"))
    theirs.write_text("Ein Haus\n", encoding="utf-8")
    cases = [
        (
            [str(ours), str(theirs)],
            "x.en has 3 lines and .*x.de has 2; line n of one must translate line n of the other",
        ),
        ([str(ours)], "pairs must be two text files, the source and its translation, not 1"),
        ([str(ours), str(tmp_path / "no")], "no cannot be read .No such file"),
    ]
    for paths, words in cases:
        with pytest.raises(ConfigurationError, match=words):
            aligned(paths)
    theirs.write_bytes(b"\xff\n\n")
    with pytest.raises(ConfigurationError, match="x.de cannot be read .it is not UTF-8"):
        aligned([str(ours), str(theirs)])
