"""torch's record of collectives, kept where a wait in a process group has passed its limit."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.core.contracts import Board
from quorate.core.errors import WireTimeout
from tests.support.processes import run_real_board


def waits(folder: Path, board: Board, rank: int, size: int) -> str:
    """The sentence of rank 0, which reduces once more often than rank 1."""
    wire: Any = quorate.join(timeout=3.0).wire
    wire.endpoint.records = folder
    x = torch.ones(3)
    for _ in range(3):
        wire.reduce(x).wait()
    told = ""
    if rank == 0:
        with pytest.raises(WireTimeout) as raised:
            wire.reduce(x).wait()
        told = str(raised.value)
        board.set("told", b"")
    board.wait(["told"], 30.0)
    return told


def test_a_dump_names_the_channel(tmp_path: Path) -> None:
    environment = {"TORCH_FR_BUFFER_SIZE": "100"}
    told, _ = run_real_board(2, partial(waits, tmp_path), environment=environment)
    assert "flight-recorder-0.json" in told
    entries = json.loads((tmp_path / "flight-recorder-0.json").read_text())["entries"]
    assert "main" in {entry["process_group"][0] for entry in entries}
