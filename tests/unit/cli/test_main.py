"""The command line from outside: wrong input is one sentence and status 2, help needs nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorate.cli.scripts import check_script
from quorate.core.errors import ConfigurationError
from tests.support.launching import LIMIT
from tests.support.programs import quorate


def started(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As `quorate`, with nothing imported beforehand."""
    command = [sys.executable, "-m", "quorate.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import os, sys; print(os.environ['RANK'], sys.argv[1:], flush=True)\n")
    (tmp_path / "wrong.py").write_text("import torch\nif torch\n")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "missing.py"], 'there is no script "missing.py"'),
        (["run", "."], '"." is a folder, not a script'),
        (["run", "a" * 300], 'there is no script "aaa'),
        (["run", "image.png"], '"image.png" is not a valid Python script: '),
        (["run", "-n", "2", "wrong.py"], "\"wrong.py\" is not a valid Python script: expected ':', line 2"),
        (["compare", "-n", "2", "wrong.py"], '"wrong.py" is not a valid Python script: expected'),
        (["run", "-m", "nowhere.at_all"], 'there is no module "nowhere.at_all"'),
        (["run", "-n", "99999", "train.py"], "-n 99999: a run on one machine can have at most 4096 such workers"),
        (
            ["run", "--seed", str(2**63), "train.py"],
            "--seed 9223372036854775808: a seed is a whole number from 0 to 9",
        ),
        (["run", "--name", "x" * 200, "train.py"], f'"{"x" * 200}" is not a name for a run; use letters, digits, dots'),
        (["run", "--strategy", "\n", "train.py"], 'unknown strategy "\\n"; see quorate list strategies'),
        (["run", "-n", "0", "train.py"], "-n 0: a run needs at least one worker"),
        (["run", "--virtual", "-1", "train.py"], "--virtual -1: a run needs at least one worker"),
        (
            ["run", "-n", "2", "--virtual", "2", "train.py"],
            "give -n (processes) or --virtual (virtual workers)",
        ),
        (["run", "--strategy", "al-reduce", "train.py"], 'unknown strategy "al-reduce"; did you mean "all-reduce"?'),
        (["run", "--strategy", "all-reduce", "--set", "a=1", "train.py"], 'unknown setting of all-reduce "a"'),
        (["run", "--set", "a", "train.py"], '--set takes key=value, not "a"'),
        (["run", "--seed", "-1", "train.py"], "--seed -1: a seed is a whole number from 0 to"),
        (["run", "--compute", "constant:1ms", "train.py"], "--compute can be given with --virtual N only"),
        (["run", "--data-share", "fair", "train.py"], 'unknown share "fair". Known: dynamic, static'),
        (["run", "--seconds", "0", "train.py"], "--seconds 0: the time must be above 0"),
        (["run", "--leave-within", "0s", "train.py"], "--leave-within 0: the time must be above 0"),
        (["run", "--virtual", "2", "--leave-within", "5s", "train.py"], "--leave-within is for processes (-n)"),
        (["run", "--virtual", "2", "--latency", "soon", "train.py"], '"soon" is not a duration'),
        (
            ["run", "--dry-run", "--virtual", "2", "--compute", "soon", "train.py"],
            '"soon" is not a model of compute times',
        ),
        (["run", "--virtual", "2", "-m", "train"], "--virtual runs a script, not a module"),
        (["run", "--name", "../x", "train.py"], '"../x" is not a name for a run'),
        (["run", "--json", "train.py"], "--json can be given with --dry-run only"),
        (["run", "--bogus", "train.py"], "no such option: --bogus"),
        (["run", "-n", "two", "train.py"], "-n takes a whole number"),
        (["run"], "missing argument 'SCRIPT'"),
        (
            ["list", "people"],
            'unknown family "people". Known: baselines, codecs, patterns, reducers, rules, strategies, topologies, ',
        ),
        (["bogus"], "no such command 'bogus'"),
    ],
)
def test_wrong_input_is_one_sentence(folder: Path, arguments: list[str], sentence: str) -> None:
    finished = quorate(folder, *arguments)
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert finished.stderr.startswith(f"quorate: {sentence}")
    assert finished.stderr.count("\n") == 1
    assert not (folder / "runs").exists()


def test_a_folder_is_not_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / "train.py").mkdir()
    with pytest.raises(ConfigurationError, match="is a folder, not a script") as refused:
        check_script(str(tmp_path / "train.py"))
    assert "did you mean" not in str(refused.value)


def test_what_only_tells_imports_nothing_heavy(folder: Path) -> None:
    calls: list[list[str]] = [[], ["--help"], ["run", "--help"], ["list", "--help"], ["--version"], ["list"]]
    heavy = ("torch", "numpy", "safetensors")
    code = f"""
import sys
from quorate.cli.main import main
for arguments in {calls!r}:
    try:
        main(arguments)
    except SystemExit as end:
        print('status', end.code, [name for name in {heavy!r} if name in sys.modules], 'of', arguments)
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=True
    )
    told = [line for line in finished.stdout.splitlines() if line.startswith("status")]
    assert told == [f"status 0 [] of {arguments}" for arguments in calls]


def test_help_names_the_verbs(folder: Path) -> None:
    finished = quorate(folder)
    assert finished.returncode == 0
    assert "run" in finished.stdout
    assert "list" in finished.stdout


def test_every_name_is_listed_with_its_line(folder: Path) -> None:
    listed = json.loads(quorate(folder, "list", "--json").stdout)
    families = {
        "strategies",
        "baselines",
        "workloads",
        "traces",
        "topologies",
        "codecs",
        "reducers",
        "rules",
        "patterns",
    }
    assert set(listed) == families
    assert "all-reduce" in listed["strategies"]
    assert all(summary for names in listed.values() for summary in names.values())
    told = quorate(folder, "list", "strategies").stdout
    assert listed["strategies"]["all-reduce"] in " ".join(told.split())
    assert "workloads" not in told


def test_a_dry_run_starts_nothing(folder: Path) -> None:
    arguments = ["--dry-run", "-n", "3", "--set", "wait_for=2", "--name", "here", "train.py", "--lr", "3"]
    told = quorate(folder, "run", *arguments)
    assert told.returncode == 0
    assert told.stdout.startswith("would start 3 workers of train.py")
    assert "wait_for=2" in told.stdout
    plan = json.loads(quorate(folder, "run", "--json", *arguments).stdout)
    assert (plan["workers"], plan["settings"], plan["arguments"]) == (3, {"wait_for": 2}, ["--lr", "3"])
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("source", "strategy"),
    [
        ("optimizer = quorate.distribute(o, m, strategy='quorum', wait_for=1)", "quorum (script)"),
        ("from quorate import distribute\nfor x in y: distribute(o, m, 'local-sgd')", "local-sgd (script)"),
        ("quorate.distribute(o, m)", "all-reduce (script)"),
        ("quorate.distribute(o, m, chosen)", "the script's own"),
        ("quorate.distribute(o, m); quorate.distribute(p, m, 'quorum')", "the script's own"),
        ("pass", "the script's own"),
    ],
)
def test_the_line_at_the_start_names_the_strategy_of_the_script(folder: Path, source: str, strategy: str) -> None:
    (folder / "train.py").write_text(source)
    assert f"train.py, strategy: {strategy}, " in quorate(folder, "run", "--dry-run", "train.py").stdout


def test_a_run_leaves_its_records(folder: Path) -> None:
    arguments = ["train.py", "--lr", "-n", "7", "--help", "--", "--name", "x"]
    finished = started(folder, "run", "-n", "2", "--name", "here", *arguments)
    assert finished.returncode == 0
    assert finished.stdout == f"0 {arguments[1:]}\n"
    assert finished.stderr.count("\n") == 1
    assert "2 workers of train.py" in finished.stderr
    assert "OMP_NUM_THREADS=1; records in runs/here" in finished.stderr
    kept = folder / "runs" / "here"
    assert {path.name for path in kept.iterdir()} == {"run.json", "outcome.json", "rank-0.log", "rank-1.log"}
    assert json.loads((kept / "outcome.json").read_text())["status"] == 0
    assert (kept / "rank-1.log").read_text() == f"1 {arguments[1:]}\n"
    about = json.loads((kept / "run.json").read_text())
    assert about["workers"] == 2
    assert about["arguments"] == arguments[1:]
    assert about["command"] == ["quorate", "run", "-n", "2", "--name", "here", *arguments]
    again = quorate(folder, "run", "--name", "here", "train.py")
    assert again.returncode == 2
    assert "runs/here already holds a run" in again.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_whose_streams_are_closed_keeps_its_logs(folder: Path, closed: str) -> None:
    words = f'exec "{sys.executable}" -m quorate.cli.main run -n 2 --name closed train.py a {closed}'
    ended = subprocess.run(["sh", "-c", words], cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (ended.returncode, ended.stderr.count("Traceback")) == (0, 0)
    logs = [folder / "runs" / "closed" / f"rank-{rank}.log" for rank in (0, 1)]
    assert [log.read_text() for log in logs] == ["0 ['a']\n", "1 ['a']\n"]


def test_a_run_that_fails_has_status_1_and_no_traceback_of_ours(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import os, sys\nif os.environ['RANK'] == '1': raise ValueError('of the script')\n"
    )
    finished = quorate(folder, "run", "-n", "2", "train.py")
    assert finished.returncode == 1
    assert "rank 1 (host " in finished.stderr
    assert "  | ValueError: of the script" in finished.stderr
    assert "src/quorate" not in finished.stderr


def test_a_folder_that_cannot_be_made_is_one_sentence(folder: Path) -> None:
    (folder / "runs").write_text("a file\n")
    finished = quorate(folder, "run", "train.py")
    assert finished.returncode == 2
    assert finished.stderr.startswith("quorate: cannot make the folder runs/train-")
    assert finished.stderr.count("\n") == 1


def test_the_environment_of_other_launchers_stays_outside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUORATE_STRATEGY", "QUORATE_SEED", "QUORATE_BOARD", "RANK"):
        monkeypatch.setenv(name, "nonsense")
    finished = quorate(folder, "run", "train.py")
    assert (finished.returncode, finished.stdout) == (0, "0 []\n")


def test_a_module_runs_like_a_script(folder: Path) -> None:
    finished = quorate(folder, "run", "-m", "train", "--lr", "3")
    assert (finished.returncode, finished.stdout) == (0, "0 ['--lr', '3']\n")


def test_an_interrupt_while_the_verbs_are_imported_is_a_sentence(tmp_path: Path) -> None:
    """Another module stands in for the first that the command line needs, and is interrupted."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    command = [sys.executable, "-c", "from quorate.cli.main import main; main(['list'])"]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "quorate: interrupted\n")
