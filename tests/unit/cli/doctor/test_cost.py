"""`quorate doctor --cost`: what each layer and part of a script's step takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

from quorate.cli.doctor import cost
from quorate.launch.warm.costing import Steps, report
from quorate.launch.warm.loading import Waits
from tests.support.doctor import doctor

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader
import quorate
from quorate.launch.warm import costing

costing._SECONDS, costing._PROBES = 0.0, 2
quorate.join()
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(inplace=True), nn.Linear(256, 3))
optimizer = quorate.distribute(torch.optim.Adam(model.parameters()), model)
for batch in DataLoader(torch.ones(10 * int(sys.argv[1]), 64), batch_size=10):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("stepped")
"""
PARAMETERS = [64 * 256 + 256, 256 * 3 + 3]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py"


def test_a_script_is_measured_layer_by_layer(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = doctor(capfd, "--cost", "--json", "-n", "3", "--network", "1ms:1Gbit", script, "40")
    sheet = json.loads(out)
    assert (status, sheet["model"], sheet["optimizer"], sheet["network"]) == (0, "Sequential", "Adam", "1ms:1Gbit")
    layers = {layer["name"]: layer for layer in sheet["layers"]}
    assert [layers[name]["parameters"] for name in ("0", "2")] == PARAMETERS
    assert [layers[name]["gradients"] for name in ("0", "1", "2")] == [4 * PARAMETERS[0], 0, 4 * PARAMETERS[1]]
    assert layers["0"]["flops"] == 2 * 2 * 10 * 64 * 256, "no gradient of the batch"
    assert layers["2"]["flops"] == 3 * 2 * 10 * 256 * 3 and layers["1"]["flops"] == 0
    assert sum(layer["kept"] for layer in sheet["layers"]) == sheet["memory"]["activations"]
    assert layers["2"]["wire"] == pytest.approx(2 * 2 / 3 * 4 * PARAMETERS[1] / 125e6, rel=0.01)
    for layer in layers.values():
        assert layer["seconds"] == pytest.approx(layer["forward"] + layer["backward"]) and layer["forward"] > 0
    step = sheet["step"]
    assert step["total"] == pytest.approx(step["in_layers"] + step["outside"] + step["data"] + step["update"])
    assert 0 < step["data"] < step["total"] and 0 < step["update"] < step["total"]
    assert sheet["peak"] > 0 and sheet["bandwidth"] > 0 and sheet["advice_for"] == 3
    workers = {row["workers"]: row for row in sheet["workers"]}
    assert list(workers) == [1, 2, 3, 8, 64, 1000]
    assert workers[1]["wire"] == 0 < workers[2]["wire"] < workers[1000]["wire"]
    assert 0 < len(sheet["cuts"]) <= 3
    assert 8 <= err.count("stepped") < 40, "the ninth step ends the script"
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["train.py"]


@pytest.mark.parametrize("columns", [80, 60])
def test_it_is_told_in_words(
    script: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    status, out, _ = doctor(capfd, "--cost", script, "9")
    words = " ".join(out.split())
    assert status == 0 and max(map(len, out.splitlines())) <= columns
    assert words.startswith("Sequential: 17,411 parameters, Adam, on cpu with ")
    assert " 655 kFLOP " in words and "over 8 workers keeps a link busy (50us:10Gbit)." in words
    assert words.count("can be saved: ") in (1, 2, 3)


def test_what_is_refused(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, _, err = doctor(capfd, "--cost", script, "8")
    assert status == 2 and "train.py has ended before its optimizer.step() number 9" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--cost"], "--cost needs a script: quorate doctor --cost SCRIPT"),
        (["--cost", "--data", "x.py"], "--data and --cost are measured one after the other; leave out all but one"),
        (["--cost", "--hosts", "a,b", "x.py"], "--cost measures one process on this machine; leave out --hosts"),
        (["--cost", "-n", "0", __file__], "-n 0: the cost sheet is for 1 to 10,000 workers"),
        (["--cost", "--network", "fast", __file__], '--network "fast": write LATENCY:BANDWIDTH'),
        (["--network", "1ms:1Gbit"], "--network can be given with --cost only"),
        (["x.py"], "a script can be given with --memory, --data or --cost only"),
    ],
)
def test_words_that_are_refused(words: list[str], sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, _, err = doctor(capfd, *words)
    assert status == 2 and sentence in err


def test_operations_in_words() -> None:
    assert [cost.flops_in_words(x) for x in (12, 655_360, 2.5e9)] == ["12 FLOP", "655 kFLOP", "2.50 GFLOP"]


def test_parameters_that_are_shared_count_once() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10))
    model[1].weight = model[0].weight
    steps = Steps(None, Waits(), lambda: 0.0)
    steps.plain = [{"seconds": seconds, "data": 1.0, "update": 2.0} for seconds in (5.0, 6.0, 7.0, 90.0)]
    answer = report(steps, model, None, {})
    assert [(row["parameters"], row["gradients"]) for row in answer["layers"]] == [(40, 160), (10, 40)]
    assert answer["seconds"] == 6.5, "outliers do not count"
    assert answer["steps"] == [5, 6, 7, 90]
