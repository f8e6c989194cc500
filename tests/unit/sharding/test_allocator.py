"""The C library gives back what is free, where it can be told to."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from quorate.sharding import by_fsdp


@pytest.fixture(autouse=True)
def _asks_again() -> Iterator[None]:
    by_fsdp._trim.cache_clear()
    yield
    by_fsdp._trim.cache_clear()


def resident() -> int:
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_what_is_free_is_given_back() -> None:
    small = [torch.ones(1 << 14) for _ in range(2000)]  # 131 MB in pieces that are no mappings of their own
    last = torch.ones(1 << 14)  # behind which the heap does not shrink by itself
    held = resident()
    del small
    kept = resident()
    assert by_fsdp.give_back()
    assert held - kept < 60e6 < kept - resident()
    del last


@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_another_library_is_left_alone(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert not by_fsdp.give_back()
