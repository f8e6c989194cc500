"""`quorate doctor --memory`: what a script's workers will hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quorate.cli.doctor import memory
from quorate.launch.warm.alone import measured
from tests.support.doctor import doctor

SCRIPT = """
import sys
from pathlib import Path
import torch
from torch import nn
import quorate

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
        self.register_buffer("scale", torch.ones(64))

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x))) * self.scale.to(x.dtype)

print("told", sys.argv[1:])
world = quorate.join(records=True)
model = nn.Sequential(Block(), Block(), nn.Linear(64, 3))
mesh = world.mesh(shards=8)
listed = {"blocks": ["0"]} if "listed" in sys.argv else {}
quorate.parallelize(model, mesh, precision="bfloat16" if "bfloat16" in sys.argv else None, **listed)
optimizer = quorate.distribute(torch.optim.Adam(model.parameters()), model)
for _ in range(2):
    model(torch.ones(10, 64)).sum().backward()
    optimizer.step()
    print("went on")
Path("left").write_text("went on")
"""
BLOCK = 64 * 256 + 256 + 256 * 64 + 64
BUFFERS = 4 * 2 * 64
NUMBERS = 2 * BLOCK + 64 * 3 + 3


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py"


def test_a_script_is_measured_up_to_its_first_step(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = doctor(capfd, "--memory", "--json", "--shards", "8", "--fits", "1MB", script)
    told = json.loads(out)
    assert (status, told["model"], told["optimizer"], told["precision"]) == (0, "Sequential", "Adam", None)
    assert told["blocks"] == "2 blocks of Block (0 to 1), and the rest as one piece"
    each = 4 * (10 * 64 + 10 * 256)
    assert told["activations"] == {"0": each, "1": each, "": 4 * 10 * 64}
    alone, replicas, *sharded = told["workers"]
    assert (alone["zero"], alone["workers"]) == (0, 1) and (replicas["zero"], replicas["workers"]) == (0, 8)
    assert [(one["zero"], one["workers"]) for one in sharded] == [(1, 8), (2, 8), (3, 8)]
    steps = 10 * 4
    assert alone["held"] == {
        "parameters": 4 * NUMBERS + BUFFERS, "gradients": 4 * NUMBERS, "optimizer": 8 * NUMBERS + steps,
        "gathered": 0, "exchanged": 0, "activations": 2 * each + 4 * 10 * 64, "host": 0,
    }  # fmt: skip
    assert not alone["fits"] and sharded[2]["fits"]
    assert sharded[2]["held"]["parameters"] == 4 * (2 * BLOCK // 8 + 64 + 1) + BUFFERS, "3 rows are one for each"
    assert "told []" in err and "went on" not in err
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["train.py"]


@pytest.mark.usefixtures("warm")
def test_its_arguments_are_its_own_and_precision_is_seen(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = doctor(capfd, "--memory", script, "bfloat16", "--shards", "2")
    assert status == 0 and "told ['bfloat16', '--shards', '2']" in err
    assert "used in bfloat16" in out and "2 blocks of Block (0 to 1)" in out
    assert [line.split()[1] for line in out.splitlines() if line.strip()[:2] in ("1 ", "2 ", "3 ")] == [
        workers for workers in ("2", "4", "8", "16") for _ in range(3)
    ]


@pytest.mark.usefixtures("warm")
def test_blocks_are_those_that_are_listed(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    for words in (["listed"], ["listed", "bfloat16"]):
        status, out, err = doctor(capfd, "--memory", script, *words)
        assert status == 0 and "1 block of Block (0), and the rest as one piece" in out
        assert ("over 1 worker for each of 1 replica: 1 block of Block (0)" in err) == ("bfloat16" in words)


@pytest.mark.usefixtures("warm")
def test_what_the_host_holds(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    """As the script says, whose step has been made there, or an option instead."""
    Path(script).write_text(SCRIPT.replace("mesh, precision", 'mesh, offload="optimizer", precision'))
    own, instead = (
        json.loads(doctor(capfd, "--memory", "--json", "--shards", "8", *arguments)[1])["workers"][-1]["held"]
        for arguments in ((script,), ("--offload", "all", script))
    )
    piece, steps = own["parameters"] - BUFFERS, 10 * 4
    assert own["gradients"] == piece and own["optimizer"] == 0 and own["host"] == 4 * piece + steps
    assert instead == {**own, "parameters": BUFFERS, "gradients": 0}


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("text", "status", "sentence"),
    [
        ("import torch", 2, "has ended without an optimizer.step(), so there is nothing to measure"),
        ("import sys; sys.exit(3)", 1, "exited with status 3 before the end of its first optimizer.step()"),
        ("this is no python", 2, "is not a valid Python script"),
    ],
)
def test_scripts_that_make_no_step(
    script: str, text: str, status: int, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path(script).write_text(text)
    found, _, err = doctor(capfd, "--memory", script)
    assert found == status
    assert sentence in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--memory"], "--memory needs a script"),
        (["--memory", "none.py"], 'there is no script "none.py"'),
        (["--memory", "--shards", "0", "train.py"], "--shards is a number of workers from 1 to 1,048,576, not 0"),
        (["--memory", "--fits", "much", "train.py"], '"much" is not a size such as 24GB or 16GiB'),
        (["--memory", "--hosts", "a,b", "train.py"], "leave out --hosts"),
        (["--memory", "-n", "2", "train.py"], "leave out -n"),
        (["-n", "0"], "a run needs at least one worker"),
        (["-n", "2", "--hosts", "a,b"], "as in a:4,b:4; leave out -n"),
        (["--strategy", "diloco"], "--strategy can be given with --hosts only"),
        (["train.py"], "a script can be given with --memory, --data or --cost only"),
        (["--shards", "2"], "--shards can be given with --memory only"),
    ],
)
def test_wrong_input(script: str, arguments: Sequence[str], sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, _, err = doctor(capfd, *arguments)
    assert status == 2
    assert sentence in err


def test_a_script_that_takes_too_long_is_ended(script: str) -> None:
    Path(script).write_text("import time\ntime.sleep(600)")
    with pytest.raises(Exception, match=r"has made no step within 0\.2 s"):
        measured(script, [], seconds=0.2)


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [(10**9, "One worker alone fits"), (600_000, "The first that fits"), (100, "None of these fits")],
)
def test_what_fits_is_said(limit: int, sentence: str) -> None:
    one: dict[str, Any] = {"numbers": 30_000, "rows": 3000, "bytes": 120_000, "gathered_bytes": 120_000,
                           "kept_like": 240_000, "block": "a"}  # fmt: skip
    whole = {"sizes": [one | {"is_trained": True, "kept_apart": 0}], "buffers": 0, "activations": 130_000}
    told = {"model": "M", "optimizer": "Adam", "device": "cpu", "precision": None, "blocks": "one piece",
            "activations": {"a": 130_000}, "memory": whole}  # fmt: skip
    text = list(memory.in_words(told, list(memory.lines(told, 8, limit, None)), limit))
    assert sentence in text[-1] and max(map(len, text)) <= 80
