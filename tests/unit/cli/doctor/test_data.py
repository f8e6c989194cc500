"""`quorate doctor --data`: whether the loader of a script is what its workers wait for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quorate.cli.doctor import data
from quorate.launch.warm import loading
from tests.support.doctor import doctor

SCRIPT = """
import sys
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import quorate
from quorate.launch.warm import loading

loading.SECONDS, loading.TRIAL_SECONDS, loading.PROCESSES = 0.2, 0.3, (0, 1)

class Examples(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        if "slow" in sys.argv:
            time.sleep(0.002)
        return torch.ones(64)

model = nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
if "ours" in sys.argv:
    quorate.join()
    quorate.distribute(optimizer, model)
    batches = quorate.loader(Examples(), batch_size=8)
elif "none" in sys.argv:
    batches = [torch.ones(8, 64)] * 500
else:
    batches = DataLoader(Examples(), batch_size=8, shuffle=True)
for batch in batches:
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if "short" in sys.argv:
        break
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py"


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("kind", ["slow", "slow ours"])
def test_waits_of_a_slow_dataset_are_seen(script: str, capfd: pytest.CaptureFixture[str], kind: str) -> None:
    """16 ms of each step are sleep in the dataset."""
    status, out, _ = doctor(capfd, "--data", "--json", script, *kind.split())
    outcome = json.loads(out)
    (worker,) = outcome["workers"]
    assert status == 0 and worker["processes"] == 0 and worker["batch_bytes"] == 8 * 64 * 4
    assert worker["waited"] >= 0.016 and worker["waited"] < worker["seconds"]
    assert set(outcome["rates"]) == {"0", "1"} and 0 < outcome["rates"]["0"] <= 1 / 0.016
    assert outcome["waits"]["0"] >= 0.016


@pytest.mark.usefixtures("warm")
def test_a_script_is_told_what_it_lacks(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, _, err = doctor(capfd, "--data", script, "none")
    assert status == 2 and "train.py iterates over no torch.utils.data.DataLoader" in err
    status, _, err = doctor(capfd, "--data", script, "short")
    assert status == 2 and "has ended before its optimizer.step() number 8" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data"], "--data needs a script: quorate doctor --data SCRIPT"),
        (["--data", "--memory", "train.py"], "leave out all but one"),
        (["--data", "--bandwidth", "train.py"], "--data measures processes on this machine; leave out --bandwidth"),
        (["train.py"], "a script can be given with --memory, --data or --cost only"),
    ],
)
def test_what_cannot_be_asked_together(
    script: str, capfd: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    status, _, err = doctor(capfd, *arguments)
    assert status == 2 and sentence in err


def answer_of(waited: float, busy: float, rates: dict[int, float | None], processes: int = 0) -> dict[str, Any]:
    trials = [{"processes": number, "rate": rate, "error": "OSError: no"} for number, rate in rates.items()]
    return {
        "steps": 100, "seconds": waited + busy, "waited": waited, "busy": busy, "loader": True,
        "processes": processes, "batch_bytes": 1000, "trials": trials,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "suffices", "advice"),
    [
        ([answer_of(0.03, 0.01, {0: 33.0, 1: 30.0, 2: 60.0, 4: 120.0})], 4, "Pass num_workers=4"),
        ([answer_of(0.03, 0.01, {0: 33.0, 1: 30.0, 2: None, 4: 60.0})], None, "num_workers=4 is the best"),
        ([answer_of(0.0001, 0.01, {0: 9000.0, 1: 30.0})], 0, "is not the bottleneck: 1.0%"),
        ([answer_of(0.03, 0.01, {0: 30.0, 2: 150.0}, processes=2)], 2, "share the cores"),
        ([answer_of(0.02, 0.01, {0: 50.0, 1: 200.0}), answer_of(0.02, 0.01, {0: 50.0, 1: 80.0})], None, "no number"),
    ],
)
def test_the_advice_follows_from_rates_and_waits(
    answers: list[dict[str, Any]], suffices: int | None, advice: str
) -> None:
    assert data.verdict(answers)["suffices"] == suffices
    assert advice in " ".join(" ".join(data.in_words("train.py", answers)).split())


def test_without_processes_a_step_waits_for_all_of_a_batch() -> None:
    assert data.expected_wait(0, 100.0, 0.05) == pytest.approx(0.01)
    assert data.expected_wait(1, 100.0, 0.004) == pytest.approx(0.006)
    assert data.expected_wait(1, 100.0, 0.05) == 0.0


def test_steps_and_their_waits_are_measured_after_the_first() -> None:
    now = [0.0]
    waits = loading.Waits(lambda: now[0])
    steps = loading.Steps(waits, lambda: now[0])
    for _ in range(loading.WARM_UP + loading.FEWEST):
        assert not steps.is_enough
        waits.seconds += 2.0
        now[0] += 5.0
        steps.stepped()
    assert steps.measured == [(5.0, 2.0)] * loading.FEWEST and steps.is_enough


def test_bytes_of_batches() -> None:
    import torch

    x = torch.ones(4, dtype=torch.float64)
    assert loading.bytes_of({"x": x, "y": (x, [x], "text")}) == 3 * 32
