"""The C library is told from which size on pieces are mappings of their own, where it can be told."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from quorate.sharding import allocator


def test_the_threshold_is_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Library:
        def mallopt(self, name: int, value: int) -> int:
            asked.append((name, value))
            return 1

    def load(name: str) -> Any:
        assert name == "libc.so.6"
        return Library()

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert allocator.fix_threshold()
    assert asked == [(-3, 131072)]


@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_another_library_is_left_alone(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert not allocator.fix_threshold()
