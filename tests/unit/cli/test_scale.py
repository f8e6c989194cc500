"""`quorate compare --scale`: wrong input is one sentence, and the plan of arms is told; nothing is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.verbs import status

WRONG = (
    (["--scale", "4", "digits"], '--scale "4": give several numbers, such as 1,2,4,8; a single one is -n 4'),
    (["--scale", "1,x", "digits"], '--scale "1,x": give several numbers from 1 to 100,000, such as 1,2,4,8'),
    (["--scale", "0,1", "digits"], '--scale "0,1": give several numbers from 1 to 100,000'),
    (["--workers", "1,2", "digits"], "--workers 1,2: give one number; --scale 1,2 compares several"),
    (["--workers=1,2,4", "digits"], "--workers=1,2,4: give one number; --scale 1,2,4 compares several"),
    (["-n", "1,2", "digits"], "-n 1,2: give one number; --scale 1,2 compares several"),
    (["--scale", "1,2", "--hosts", "a:2", "digits"], "--scale compares numbers of workers on this machine; leave out"),
    (["--scale", "1,2", "-n", "2", "--virtual", "2", "digits"], "give -n (processes) or --virtual (virtual workers)"),
    (["--scale", "1,9999", "digits"], "-n 9999: a run on one machine can have at most 4096 such workers"),
    (["--scale", "1,2", "--virtual", "0", "digits"], "--virtual 0: a run needs at least one worker"),
    (["--scale", "1,2", "--virtual", "2", "--strategy", "ddp", "digits"], "the baseline ddp needs processes (-n)"),
    (["--scale", "1,2", "--scaling", "soft", "digits"], 'unknown scaling "soft". Known: both, strong, weak'),
    (["--scale", "1,2", "--price", "-1", "digits"], "--price -1: the price of one worker for one hour must be above 0"),
    (["--scale", "4,8", "-n", "2", "digits"], "none of 4 and 8 workers is at most 2"),
    (["--scale", "1,2", "-n", "1", "digits"], "2 workers are more than are run here, and simulating them needs a run"),
    (
        ["--scale", "1,2,4", "-n", "2", "--strategy", "parameter-server", "digits"],
        "4 workers are more than are run here, and recorded times are not enough to simulate parameter-server; ",
    ),
    (["--scale", "1,2", "--scaling", "strong", "train.py"], "--scaling strong cuts the batch of a workload; a script"),
    (
        ["--scale", "1,3", "--scaling", "strong", "--batch", "8", "digits"],
        "3 workers cannot share a batch of 8 examples evenly",
    ),
    (["-n", "2", "--price", "1", "digits"], "--price can be given with --scale N,N,… only"),
    (["--scale", "1,2", "digitz"], 'unknown workload or script "digitz"; did you mean "digits"?'),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    return tmp_path


@pytest.mark.parametrize(("arguments", "sentence"), WRONG)
def test_wrong_input_is_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert status("compare", *arguments) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith(f"quorate: {sentence}") and told.err.count("\n") == 1
    assert not (folder / "runs").exists()


def test_every_strategy_has_every_number_of_workers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strategies = ["--strategy", "all-reduce", "--strategy", "eager-solo:max_staleness=2"]
    words = [*strategies, "--scale", "4,1,2", "--virtual", "8", "--seeds", "1", "--name", "x", "--dry-run", "digits"]
    assert status("compare", *words) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("would compare all-reduce-workers=1 (baseline), all-reduce-workers=2, ")
    assert first.endswith(" on digits, 1, 2 and 4 virtual workers, seed 0: 6 runs in runs/x")
    assert rest == [
        f"  {strategy}-workers={workers}, seed 0"
        for strategy in ("all-reduce", "eager-solo-max_staleness=2")
        for workers in (1, 2, 4)
    ]
    assert status("compare", *words, "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["workers"], plan["simulated"], plan["price"]) == (4, [], None)
    assert [(arm["workers"], arm["is_baseline"]) for arm in plan["arms"]][:4] == [
        (1, True), (2, False), (4, False), (1, False)
    ]  # fmt: skip
    assert not (folder / "runs").exists()


def test_both_kinds_of_scaling_and_numbers_past_the_machine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--scale", "8,1,2", "-n", "2", "--scaling", "both", "--price", "2", "--seeds", "1", "--dry-run", "digits"]
    assert status("compare", *words) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  all-reduce-workers=1, seed 0", "  all-reduce-workers=2, seed 0", "  all-reduce-workers=2-batch=16, seed 0",
        "  simulated: 8 workers",
    ]  # fmt: skip
    assert status("compare", *words, "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["workers"], plan["simulated"], plan["price"]) == (2, [8], 2)
    assert [arm.get("batch") for arm in plan["arms"]] == [None, None, 16]
    assert status("compare", *words[:-4], "--scaling", "strong", "--scale", "1,2", "--dry-run", "--json", "digits") == 0
    arms = json.loads(capsys.readouterr().out)["arms"]
    assert [(arm["workers"], arm.get("batch")) for arm in arms] == [(1, None), (2, 16)]


def test_a_baseline_has_every_number_of_workers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("compare", "--scale", "1,2", "--baseline", "ddp", "--dry-run", "--json", "train.py", "--lr", "3") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["subject"]["arguments"] == ["--lr", "3"]
    assert [arm["name"] + "*" * arm["is_baseline"] for arm in plan["arms"]] == [
        "ddp-workers=1*", "ddp-workers=2", "all-reduce-workers=1", "all-reduce-workers=2"
    ]  # fmt: skip


def test_a_file_may_have_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "x.toml").write_text('subject = "digits"\nworkers = 4\nseeds = 1\nprice = 2\nscale = [1, 2]\n')
    assert status("compare", "--config", "x.toml", "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["price"], [arm["workers"] for arm in plan["arms"]], plan["seeds"]) == (2, [1, 2], [0])


def test_workers_are_n_everywhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("compare", "--workers", "3", "--dry-run", "--json", "digits") == 0
    assert json.loads(capsys.readouterr().out)["workers"] == 3
    assert status("compare", "-n", "2", "--dry-run", "--json", "train.py", "--workers", "1,2") == 0
    assert json.loads(capsys.readouterr().out)["subject"]["arguments"] == ["--workers", "1,2"]
    assert status("run", "--workers", "0", "train.py") == 2
    assert capsys.readouterr().err.startswith("quorate: -n 0: a run needs at least one worker")
