"""The folder of a run, and the sentence at its end."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from quorate.core.errors import ConfigurationError, Mismatch, PeerFailed
from quorate.launch.local.verdict import Ending, cause_of, last_lines, verdict
from quorate.launch.run.folder import run_folder, usual_name, write_run


def test_a_usual_name_is_a_name_and_never_twice_the_same(tmp_path: Path) -> None:
    names = {usual_name("some where/my script!.py") for _ in range(4)}
    assert len(names) == 4  # of more, in one second, two are sooner or later alike
    for name in names:
        assert name.startswith("my-script--")
        assert run_folder(name, tmp_path) == tmp_path / name
    assert usual_name("...").startswith("run-")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/tmp", "-x", "a b", "a\n"])
def test_what_is_no_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a name for a run"):
        run_folder(name, tmp_path)


def test_a_folder_in_use_is_refused_and_an_empty_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    assert run_folder("x", tmp_path) == tmp_path / "x"
    (tmp_path / "x" / "run.json").write_text("{}")
    (tmp_path / "file").write_text("")
    for name in ("x", "file"):
        with pytest.raises(ConfigurationError, match="already"):
            run_folder(name, tmp_path)


def test_run_json_says_what_was_chosen_and_on_which_machine(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "x", None, {"workers": 3})
    about = json.loads((tmp_path / "runs" / "x" / "run.json").read_text())
    assert about["workers"] == 3
    assert about["versions"]["torch"]
    assert about["cores"] >= 1
    assert {"started", "host", "python", "system", "git"} <= set(about)


def test_a_run_that_has_begun_since_the_check_keeps_its_folder(tmp_path: Path) -> None:
    write_run(tmp_path / "x", None, {"workers": 3})
    with pytest.raises(ConfigurationError, match="already holds a run; choose another --name"):
        write_run(tmp_path / "x", None, {"workers": 4})
    assert json.loads((tmp_path / "x" / "run.json").read_text())["workers"] == 3


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot make the folder"):
        write_run(tmp_path / "file" / "x", None, {})


def test_the_commit_is_the_scripts(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=x", "-c", "user.email=x@x"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    script = tmp_path / "train.py"
    script.write_text("")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x")
    write_run(tmp_path / "a", script, {})
    assert json.loads((tmp_path / "a" / "run.json").read_text())["git"] == {
        "commit": git("rev-parse", "HEAD"),
        "dirty": False,
    }
    script.write_text("changed")
    write_run(tmp_path / "b", script, {})
    assert json.loads((tmp_path / "b" / "run.json").read_text())["git"]["dirty"] is True


ENDINGS = {rank: Ending(rank, status) for rank, status in enumerate([1, -9, 0, 1, -15])}


def test_the_cause_comes_first_and_the_rest_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "rank-1.log").write_text("first\n\nlast\n")
    reported = PeerFailed("rank 1 (host h) raised ValueError: a.\nb", (1,))
    lines = verdict(ENDINGS, ENDINGS[0], reported, tmp_path).splitlines()
    assert lines == [
        f"rank 1 (host h) raised ValueError: a; its log is {tmp_path / 'rank-1.log'}",
        "  | first",
        "  | last",
        "After that ranks 0 and 3 exited with status 1, rank 4 was killed by signal 15 (SIGTERM).",
    ]


def test_what_rank_0_printed_is_not_shown_again(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_text("shown already\n")
    text = verdict({0: Ending(0, 1)}, Ending(0, 1), None, tmp_path)
    assert text == f"rank 0 exited with status 1; its log is {tmp_path / 'rank-0.log'}"


def test_of_a_mismatch_nobody_is_the_cause(tmp_path: Path) -> None:
    reported = Mismatch("workers called different things")
    assert cause_of(ENDINGS, ENDINGS[0], reported) is None
    text = verdict(ENDINGS, ENDINGS[0], reported, tmp_path)
    assert text.startswith(f"workers called different things; the logs are in {tmp_path}\n")


def test_the_end_of_a_long_log_that_is_not_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 100_000 + b"\n\xff\n" + b"\n".join(b"%d" % n for n in range(100)))
    assert last_lines(log) == [str(n) for n in range(80, 100)]
    assert last_lines(tmp_path / "missing") == []
