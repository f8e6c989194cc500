"""`quorate tune`: the file that `quorate run --config` takes, the picture, and wrong input."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate.train import part_tuning
from tests.support.verbs import status

SCRIPT = """
import torch
import quorate

world = quorate.join()
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(12, 12) for _ in range(6)])
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)
batches = quorate.loader([torch.randn(12) for _ in range(8)], batch_size=4)
for epoch in range(EPOCHS):
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


@pytest.fixture(autouse=True)
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(part_tuning, "STEPS", 80)
    monkeypatch.setattr(part_tuning, "SAMPLES", ((64, 1), (1 << 12, 1)))
    before = dict(os.environ)
    yield
    os.environ.clear()  # runs in this process leave their variables there
    os.environ.update(before)


SLOW = ("--virtual", 2, "--latency", "200us", "--bandwidth", "8Mbit")


def test_what_is_faster_is_written_for_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("EPOCHS", "150"))
    assert status("tune", *SLOW, "--picture", "t.svg", "train.py") == 0
    shown = capfd.readouterr().out
    assert "parts cut by measured times" in shown and "quorate run --config tuned.toml" in " ".join(shown.split())
    (records,) = (tmp_path / "runs").glob("*/rank-0.jsonl")
    assert records.read_text().count('"kind":"step"') < 100, "the training ends with the tuning"
    written = tomllib.loads((tmp_path / "tuned.toml").read_text())
    assert written["set"]["part_layout"] == "measured" and written["virtual"] == 2 and written["latency"] == "200us"
    assert (tmp_path / "tuned.toml").read_text().count("# ") == 3
    assert "<svg" in (tmp_path / "t.svg").read_text() and "predicted" in (tmp_path / "t.svg").read_text()
    (tmp_path / "train.py").write_text(SCRIPT.replace("EPOCHS", "20"))
    assert status("run", "--config", "tuned.toml", "--name", "again") == 0
    rows = [json.loads(line) for line in (tmp_path / "runs/again/rank-0.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["kind"] == "tuned"]
    assert row["settings"]["part_layout"] == "measured" and row["tried"] == []


def test_a_script_that_ends_too_early_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("EPOCHS", "3"))
    assert status("tune", *SLOW, "train.py") == 1
    assert "ended before its tuning" in capfd.readouterr().err and not (tmp_path / "tuned.toml").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--to", "tuned.json"], "ends in .toml"),
        (["--picture", "nowhere/t.svg"], "in a folder that exists"),
        (["--set", "part_layout=measured"], "leave them out"),
    ],
)
def test_wrong_input(words: list[str], sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    assert status("tune", *words, "train.py") == 2
    assert sentence in capfd.readouterr().err
    assert not (tmp_path / "runs").exists()
