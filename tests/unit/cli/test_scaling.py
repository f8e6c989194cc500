"""`quorate compare --workers`: wrong input is one sentence, and a plan is told; nothing is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorate.cli.main import main

WRONG = (
    (["--workers", "4", "digits"], '--workers "4": give several numbers, such as 1,2,4,8; a single one is -n 4'),
    (["--workers", "1,x", "digits"], '--workers "1,x": give several numbers from 1 to 100,000, such as 1,2,4,8'),
    (["--workers", "0,1", "digits"], '--workers "0,1": give several numbers from 1 to 100,000'),
    (
        ["--workers", "1,2", "-n", "2", "digits"],
        "--workers compares numbers of workers on this machine; it cannot be combined with -n",
    ),
    (["--workers", "1,2", "--virtual", "2", "digits"], "--workers compares numbers of workers on this machine; it "),
    (["--workers", "1,2", "--seconds", "2", "digits"], "--workers compares numbers of workers on this machine; it "),
    (
        ["--workers", "1,2", "--strategy", "quorum", "--strategy", "sgp", "digits"],
        "--workers compares numbers of workers under one strategy; give one --strategy",
    ),
    (["--workers", "1,2", "--scaling", "soft", "digits"], '--scaling "soft" is unknown; known: weak, strong and both'),
    (
        ["--workers", "1,2", "--price", "-1", "digits"],
        "--price -1: the price of one worker for one hour must be above 0",
    ),
    (["--workers", "1,2", "--most", "0", "digits"], "--most 0: one machine can run 1 to 4096 workers"),
    (["--workers", "4,8", "--most", "2", "digits"], "none of 4 and 8 workers can be run: --most 2"),
    (["--workers", "1,2", "--most", "1", "digits"], "2 workers are more than can be run here, and simulating them ne"),
    (
        ["--workers", "1,2,4", "--most", "2", "--strategy", "parameter-server", "digits"],
        "4 workers are more than can be run here, and recorded times are not enough to simulate "
        "parameter-server; leave them out, ",
    ),
    (
        ["--workers", "1,2", "--scaling", "strong", "train.py"],
        "--scaling strong cuts the batch of a workload; a script",
    ),
    (
        ["--workers", "1,3", "--most", "3", "--scaling", "strong", "--batch", "8", "digits"],
        "3 workers cannot share a batch of 8 examples evenly",
    ),
    (["-n", "2", "--price", "1", "digits"], "--price can be given with several numbers of workers: --workers 1,2,4,8"),
    (["--workers", "1,2", "digitz"], 'unknown workload or script "digitz"; did you mean "digits"?'),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    return tmp_path


def status(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(("arguments", "sentence"), WRONG)
def test_wrong_input_is_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert status("compare", *arguments) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith(f"quorate: {sentence}") and told.err.count("\n") == 1
    assert not (folder / "runs").exists()


def test_a_plan_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--workers", "8,1,2", "--most", "2", "--scaling", "both", "--name", "x", "--dry-run", "digits"]
    assert status("compare", *words) == 0
    assert capsys.readouterr().out.splitlines() == [
        "would compare digits under all-reduce with 1, 2 and 8 workers: 4 comparisons in runs/x",
        "  weak: 1 worker", "  weak: 2 workers", "  strong: 1 worker", "  strong: 2 workers, batches of 16",
        "  simulated: 8 workers",
    ]  # fmt: skip
    assert status("compare", *words, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["to_simulate"] == [8] and told["epochs"] > 0
    assert [(row["regime"], row["workers"], row["folder"]) for row in told["rows"]] == [
        ("weak", 1, "weak-1"), ("weak", 2, "weak-2"), ("strong", 1, "weak-1"), ("strong", 2, "strong-2"),
    ]  # fmt: skip
    assert not (folder / "runs").exists()


def test_a_script_has_its_own_batch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("compare", "--workers", "1,2", "--dry-run", "--json", "train.py", "--lr", "3") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["epochs"] is None and told["plan"]["subject"]["arguments"] == ["--lr", "3"]


def test_numbers_that_are_typed_take_the_place_of_one_in_a_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "x.toml").write_text('subject = "digits"\nworkers = 4\nseeds = 1\nprice = 2\n')
    assert status("compare", "--config", "x.toml", "--workers", "1,2", "--dry-run", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["price"], [row["workers"] for row in told["rows"]], told["plan"]["seeds"]) == (2, [1, 2], [0])
