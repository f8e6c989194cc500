"""Rows of a file that grows."""

from __future__ import annotations

from pathlib import Path

from quorate.records.records import LiveRows


def test_each_look_gives_what_is_new_and_a_row_that_is_cut_off_comes_with_its_end(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    rows = LiveRows(path)
    assert rows.look() == []
    path.write_text('{"kind": "a"}\n{"kind": ')
    assert rows.look() == [{"kind": "a"}]
    with open(path, "a") as file:
        file.write('"b"}\nbroken\n{"no": "kind"}\n{"kind": "c"}\n')
    assert rows.look() == [{"kind": "b"}, {"kind": "c"}]
    assert rows.look() == []


def test_a_look_may_be_at_a_piece(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text('{"kind": "a"}\n{"kind": "b"}\n')
    rows = LiveRows(path)
    assert (rows.look(16), rows.has_more) == ([{"kind": "a"}], True)
    assert (rows.look(16), rows.has_more) == ([{"kind": "b"}], False)
