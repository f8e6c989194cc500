"""How tensors of GPUs are summed is found by all workers alike; memory that is sent is made reachable for a GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quorate.core.errors import WireTimeout
from quorate.wire.board import MemoryBoard
from quorate.wire.real import gpus, shared
from quorate.wire.real.gpus import gpu_backend
from quorate.wire.real.shared import Arena, is_possible


def found_by(owned: list[list[str] | None], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    board, own = MemoryBoard(), iter(owned)
    monkeypatch.setattr(gpus, "own_gpu", lambda: next(own))
    with ThreadPoolExecutor(len(owned)) as threads:
        asked = [threads.submit(gpu_backend, board, rank, len(owned), "", 5.0) for rank in range(len(owned))]
        return {future.result() for future in asked}


@pytest.mark.parametrize(
    ("owned", "wanted"),
    [
        ([["a"], ["b"]], "nccl"),
        ([["a"], ["a"]], "host"),
        ([["a"], ["b"], ["a"]], "host"),
        ([["a", "bus 1"], ["b", "bus 1"]], "host"),  # two slices of one GPU
        ([["a"], None], "host"),
        ([None] * 2, "host"),
    ],
)
def test_nccl_only_where_each_has_a_gpu_to_itself(
    owned: list[list[str] | None], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found_by(owned, monkeypatch) == {wanted}


def test_what_is_chosen_is_taken_and_one_alone_asks_nobody() -> None:
    board = MemoryBoard()
    assert gpu_backend(board, 0, 2, "nccl", 0.01) == "nccl"
    assert gpu_backend(board, 0, 1, "", 0.01) == "nccl"
    with pytest.raises(WireTimeout):
        gpu_backend(board, 0, 2, "", 0.01)


@pytest.mark.skipif(not is_possible(), reason="needs memory that processes share")
def test_blocks_are_pinned_once_and_let_go_before_their_memory_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []

    class Runtime:
        cudaError = SimpleNamespace(success=0)

        def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
            calls.append(("pin", nbytes))
            return 0

        def cudaHostUnregister(self, address: int) -> int:
            calls.append(("unpin", 0))
            return 0

    arena: Any = Arena(2)
    x = arena.empty(1 << 18, torch.float32)
    assert calls == [] and x.numel() == 1 << 18  # there is no GPU
    del x
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(shared, "_runtime", Runtime)
    for _ in range(2):
        x = arena.empty(1 << 18, torch.float32)
        del x
    assert [name for name, _ in calls] == ["pin"] and calls[0][1] >= 1 << 20
    arena.trim()
    assert [name for name, _ in calls] == ["pin", "unpin"]
    y = arena.empty(1 << 18, torch.float32)
    assert [name for name, _ in calls] == ["pin", "unpin", "pin"] and y.numel()
    arena.close()
