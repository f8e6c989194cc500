"""`quorate pack` and `quorate unpack`: files, the table, and wrong input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.verbs import status
from tests.unit.shrink.test_packed import pruned


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file of a pruned and clustered model."""
    save_file({"fc.weight": pruned(), "fc.bias": torch.arange(9.0)}, tmp_path / "model.safetensors", {"format": "pt"})
    return tmp_path / "model.safetensors"


def test_there_and_back(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("pack", model) == 0
    packed = model.with_name("model.packed.safetensors")
    shown = capsys.readouterr().out
    assert re.search(r"fc.weight +20,000", shown) and "times fewer than model.safetensors" in shown
    assert packed.stat().st_size < model.stat().st_size / 25
    assert status("unpack", packed, "--output", model.with_name("again.safetensors"), "--json") == 0
    assert sorted(json.loads(capsys.readouterr().out)["tensors"]) == ["fc.bias", "fc.weight"]
    assert model.with_name("again.safetensors").read_bytes() == model.read_bytes()
    assert {name: x.tolist() for name, x in load_file(model).items()}["fc.bias"] == list(range(9))


def test_json(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("pack", model, "--json") == 0
    about = json.loads(capsys.readouterr().out)
    assert about["bytes"] == Path(about["path"]).stat().st_size
    assert {tensor["name"]: tensor["values"] for tensor in about["tensors"]} == {"fc.weight": 16, "fc.bias": 8}


def test_wrong_input(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = model.with_name("model.packed.safetensors")
    status("pack", model)
    cut = model.with_name("cut.packed.safetensors")
    cut.write_bytes(packed.read_bytes()[:-7])
    text = model.with_name("notes.safetensors")
    text.write_text("no tensors")
    capsys.readouterr()
    cases = {
        ("pack", model): "exists already; name the file to write with --output",
        ("pack", packed, "--output", cut.with_name("x")): "is packed already",
        ("pack", text): "notes.safetensors cannot be read",
        ("pack", model.with_name("none")): "there is no file",
        ("unpack", packed): "exists already",
        ("unpack", model, "--output", model.with_name("x")): "model.safetensors was not written by quorate pack",
        ("unpack", cut): "is no packed file, or it is cut short",
        ("unpack", text, "--output", model.with_name("x")): "is no packed file",
        ("unpack", packed, "--output", packed): "or the file to be read",
        ("unpack", packed, "--output", model / "x"): "there is no folder",
    }
    for words, sentence in cases.items():
        assert status(*words) == 2, words
        said = capsys.readouterr().err
        assert sentence in said.replace("\n", " ") and said.count("\n") <= 4, said
    assert not model.with_name("x").exists()
