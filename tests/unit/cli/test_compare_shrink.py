"""`quorate compare --shrink`: wrong input is one sentence, and the plan of arms is shown; nothing is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.verbs import status

PRUNE = "prune:amount=0.9"
WRONG = (
    (["--shrink", "prume", "digits"], 'unknown step of --shrink "prume"; did you mean "prune"?'),
    (["--shrink", "prune", "digits"], '"prune" lacks the share of numbers to prune; write prune:amount=0.9'),
    (["--shrink", PRUNE, "--shrink", PRUNE, "digits"], "the strategy all-reduce-prune-amount=0.9 is given twice; each"),
    (["--shrink", PRUNE, "--seconds", "5", "digits"], "--shrink is for equal work; leave out --seconds and"),
    (["--shrink", PRUNE, "--target", "1", "--stop-at-target", "digits"], "--shrink is for equal work; leave out"),
    (["--shrink", PRUNE, "train.py"], '--shrink "prune:amount=0.9" is made at a share of the training, which a script'),
    (
        ["--shrink", "cluster:at=9", "--data-share", "dynamic", "digits"],
        "--shrink at a step needs workers with equally many; leave out --data-share dynamic",
    ),
    (
        ["--shrink", PRUNE, "--strategy", "one-bit-adam", "digits"],
        "quorate.shrink.prune cannot be combined with one-bit-adam, whose frozen variances and scales",
    ),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "says.py").write_text("quorate.shrink.chosen(optimizer).reached(share)\n")
    return tmp_path


@pytest.mark.parametrize(("arguments", "sentence"), WRONG)
def test_wrong_input_is_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert status("compare", "-n", "2", *arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith(f"quorate: {sentence}") and shown.err.count("\n") == 1
    assert not (folder / "runs").exists()


def test_each_strategy_has_each_model_and_ddp_the_full_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--baseline", "ddp", "--strategy", "all-reduce", "--strategy", "diloco:sync_every=4", "--shrink", "none"]
    words += ["--shrink", f"{PRUNE}+cluster", "-n", "2", "--seeds", "1", "--dry-run", "--json", "digits"]
    assert status("compare", *words) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [(arm["name"], arm["shrink"], arm["is_baseline"]) for arm in plan["arms"]] == [
        ("ddp", "none", True),
        ("all-reduce", "none", False),
        ("all-reduce-prune-amount=0.9+cluster", f"{PRUNE}+cluster", False),
        ("diloco-sync_every=4", "none", False),
        ("diloco-sync_every=4-prune-amount=0.9+cluster", f"{PRUNE}+cluster", False),
    ]


@pytest.mark.parametrize("words", [["cluster:at=9", "train.py"], ["cluster", "says.py"]])
def test_scripts_have_steps_or_say_their_shares(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert status("compare", "--virtual", "2", "--dry-run", "--shrink", "none", "--shrink", *words) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("would compare all-reduce (baseline) and all-reduce-cluster")


def test_models_and_numbers_of_workers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--shrink", "none", "--shrink", "cluster", "--scale", "1,2", "--virtual", "2", "--dry-run", "--json"]
    assert status("compare", *words, "digits") == 0
    arms = json.loads(capsys.readouterr().out)["arms"]
    assert [(arm["name"], arm["shrink"], arm["workers"], arm["is_baseline"]) for arm in arms] == [
        ("all-reduce-workers=1", "none", 1, True),
        ("all-reduce-workers=2", "none", 2, False),
        ("all-reduce-cluster-workers=1", "cluster", 1, False),
        ("all-reduce-cluster-workers=2", "cluster", 2, False),
    ]
