"""Bells are heard as often as they were rung, and pieces of a sum cover all of it once."""

from __future__ import annotations

import mmap
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.wire.real.bells import BELL_BYTES, Bells, are_there
from quorate.wire.real.ground import piece

needs_bells = pytest.mark.skipif(not are_there(), reason="this system has no semaphores that processes share")


def bells(count: int) -> Bells:
    made = Bells(np.frombuffer(mmap.mmap(-1, count * BELL_BYTES), np.uint8))
    made.hang()
    return made


@needs_bells
def test_a_bell_is_heard_as_often_as_it_was_rung() -> None:
    both = bells(2)
    assert not both.heard(0)
    for _ in range(3):
        both.ring(0)
    assert [both.heard(0) for _ in range(4)] == [True, True, True, False]
    assert not both.heard(1)


@needs_bells
def test_a_wait_ends_with_the_bell_or_with_its_time() -> None:
    one = bells(1)
    assert not one.wait(0, 0.0)
    assert not one.wait(0, 0.01)
    ringer = threading.Thread(target=one.ring, args=(0,))
    ringer.start()
    assert one.wait(0, 10.0)
    ringer.join()
    assert not one.heard(0), "heard once, and rung once"


@given(numel=st.integers(0, 5000), size=st.integers(1, 9))
def test_pieces_cover_everything_once_and_in_order(numel: int, size: int) -> None:
    taken = [index for rank in range(size) for index in range(numel)[piece(numel, rank, size)]]
    assert taken == list(range(numel))
