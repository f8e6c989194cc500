"""Cases of `make compatibility` are played in processes; an interrupted run goes on from the results that it has."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tests.compatibility.check import Cases, check, in_order_of, rows_for
from tests.compatibility.choices import choices
from tests.compatibility.journal import Journal, fingerprint, key_of, words_of
from tests.compatibility.laws import Verdict
from tests.compatibility.pairs import names_of, pairs, play_pairs, verdict_of
from tests.compatibility.player import Player
from tests.compatibility.progress import LINE_SECONDS, Progress
from tests.compatibility.table import kept_verdicts

CASES = ("first", "second", "third", "fourth", "fifth")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "code.jsonl"


def noted(case: tuple[str, str]) -> str:
    """Return the name of a case, and write a line that it was played."""
    folder, name = case
    with open(f"{folder}/played", "a", encoding="utf-8") as file:
        file.write(f"{name}\n")
    return name.upper()


def played_in(folder: Path) -> list[str]:
    return (folder / "played").read_text(encoding="utf-8").split()


def ends_its_process(name: str) -> str:
    os._exit(3)


def raises(name: str) -> str:
    raise ValueError(name)


class Interrupted(Progress):
    """It is interrupted after the third result."""

    def advance(self, failure: str = "") -> None:
        super().advance(failure)
        if self._done == 3:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_from_its_results(path: Path, tmp_path: Path) -> None:
    cases = [(str(tmp_path), name) for name in CASES]
    with pytest.raises(KeyboardInterrupt), Player(1, Journal(path), Interrupted("part")) as player:
        player.mapped("stage", noted, cases)
    assert played_in(tmp_path) == [*CASES[:3]] and len(Journal(path)) == 3
    with Player(2, Journal(path), Progress("part")) as player:
        assert player.mapped("stage", noted, cases) == [name.upper() for name in CASES]
    assert sorted(played_in(tmp_path)[3:]) == sorted(CASES[3:])
    journal = Journal(path)
    assert len(journal) == 5
    journal.clear()
    assert not Journal(path)


def test_a_line_that_was_cut_is_left_out(path: Path) -> None:
    journal, verdict = Journal(path), Verdict("refused", "no “such” pair\nat all", "quorum", "first step")
    journal.add("cut", "x")
    path.write_text(path.read_text(encoding="utf-8")[:-2], encoding="utf-8")
    Journal(path).add("whole", verdict)
    again = Journal(path)
    assert "cut" not in again and again["whole"] == verdict


def test_a_verdict_of_a_pair_is_kept(path: Path) -> None:
    by_name = {choice.name: choice for choice in choices()}
    pairs = [(by_name["all-reduce"], by_name["half"]), (by_name["quorum"], by_name["dgc"])]
    with Player(2, Journal(path), Progress("virtual")) as player:
        verdicts = player.mapped("pairs", verdict_of, pairs)
    assert [verdict.state for verdict in verdicts] == ["works", "refused"]
    assert [Journal(path)[key_of(verdict_of, pair)] for pair in pairs] == verdicts
    assert words_of(pairs[1]) == "quorum + dgc"


def test_errors_and_ends_of_processes_are_raised(path: Path) -> None:
    with pytest.raises(ValueError, match="second"), Player(1, Journal(path), Progress("part")) as player:
        player.mapped("stage", raises, ["second"])
    words = r'ends_its_process", "first"\] ended with status 3'
    with pytest.raises(RuntimeError, match=words), Player(1, Journal(path), Progress("part")) as player:
        player.mapped("stage", ends_its_process, ["first"])


def test_code_has_one_name() -> None:
    assert fingerprint() == fingerprint()


def test_lines_have_cases_failures_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    progress = Progress("processes", lambda: now)
    progress.begin("pairs", 10, 4, failures=2)
    for seconds, failure in ((LINE_SECONDS / 2, ""), (LINE_SECONDS, "a + b: it diverged"), (1.0, "")):
        now += seconds
        progress.advance(failure)
    progress.end()
    assert capsys.readouterr().out.splitlines() == [
        "processes, pairs: 4 of 10, 2 failed",
        "fails: a + b: it diverged",
        "processes, pairs: 6 of 10, 3 failed, 30 s left",
    ]


def test_pairs_are_held_against_the_file_for_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    some = pairs()[:200]
    known = {names_of(pair): Verdict("works") for pair in some}
    bad, disturbed, played = names_of(some[7]), {names_of(some[9])}, 0

    def play(_: Player, cases: Cases) -> list[Verdict]:
        nonlocal played
        verdicts = []
        for _, chosen in cases:
            played += 1
            names = set(map(names_of, itertools.combinations(chosen, 2)))
            late = disturbed & names
            disturbed.difference_update(late)
            verdicts.append(Verdict("refused", "no") if bad in names or late else Verdict("works"))
        return verdicts

    (difference,) = check({"virtual": some}, known, 600.0, 1, play)
    assert difference == f"{' + '.join(sorted(bad))}: the file says works, and it is refused: no"
    assert "virtual: 200 of 200 pairs in" in capsys.readouterr().out
    assert played < 300
    assert not check({"virtual": some, "again": some}, known, 0.0, 1, play)
    assert capsys.readouterr().out.count(": 0 of 200 pairs in") == 2


def test_each_pair_is_in_one_row() -> None:
    known = kept_verdicts()
    for in_processes in (False, True):
        some = in_order_of("first", pairs(in_processes=in_processes))
        rows = rows_for(some, known)
        played = [names_of(pair) for row in rows for pair in row.pairs]
        playable = [names_of(pair) for pair in some if known[names_of(pair)].state != "untested"]
        assert len(played) == len(playable) and set(played) == set(playable)
        assert len(rows) < 0.7 * len(played)
        for row in rows:
            states = {known[names_of(pair)].state for pair in row.pairs}
            assert states == {"works"} or len(row.pairs) == 1
            assert {choice for pair in row.pairs for choice in pair} <= set(row.chosen)


def test_commits_have_orders_of_their_own() -> None:
    some = pairs()[:200]
    first, second = in_order_of("first", some), in_order_of("second", some)
    assert first != second and set(first) == set(second) == set(some) and first == in_order_of("first", some[::-1])


def test_a_pair_is_played_and_held_against_the_file() -> None:
    by_name = {choice.name: choice for choice in choices()}
    some = [(by_name["all-reduce"], by_name["half"]), (by_name["quorum"], by_name["dgc"])]
    known = {names_of(some[0]): Verdict("works"), names_of(some[1]): Verdict("works")}
    (difference,) = check({"virtual": some}, known, 60.0, 1)
    assert difference.startswith("dgc + quorum: the file says works, and it is refused: ")


def test_a_pair_that_begins_where_it_is_refused_later_is_tried_under_the_next_strategy(path: Path) -> None:
    pair = tuple(choice for choice in choices() if choice.name in ("a worker joins", "several models"))
    with Player(1, Journal(path), Progress("virtual")) as player:
        verdicts = play_pairs([(pair[0], pair[1])], kept_verdicts(), player)
    assert verdicts == {names_of(pair): Verdict("works", under="quorum")}
