"""Posts are taken as often as they were made, and pieces of a sum cover all of it once."""

from __future__ import annotations

import mmap
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.wire.cut import piece
from quorate.wire.real.semaphores import SEMAPHORE_BYTES, Semaphores, are_there

needs_semaphores = pytest.mark.skipif(not are_there(), reason="this system has no semaphores that processes share")


def semaphores(count: int) -> Semaphores:
    made = Semaphores(np.frombuffer(mmap.mmap(-1, count * SEMAPHORE_BYTES), np.uint8))
    made.initialize()
    return made


@needs_semaphores
def test_a_wait_succeeds_as_often_as_there_was_a_post() -> None:
    both = semaphores(2)
    assert not both.try_wait(0)
    for _ in range(3):
        both.post(0)
    assert [both.try_wait(0) for _ in range(4)] == [True, True, True, False]
    assert not both.try_wait(1)


@needs_semaphores
def test_a_wait_ends_with_the_post_or_with_its_time() -> None:
    semaphore = semaphores(1)
    assert not semaphore.wait(0, 0.0)
    assert not semaphore.wait(0, 0.01)
    poster = threading.Thread(target=semaphore.post, args=(0,))
    poster.start()
    assert semaphore.wait(0, 10.0)
    poster.join()
    assert not semaphore.try_wait(0), "heard once, and posted once"


@given(numel=st.integers(0, 5000), size=st.integers(1, 9))
def test_pieces_cover_everything_once_and_in_order(numel: int, size: int) -> None:
    taken = [index for rank in range(size) for index in range(numel)[piece(numel, rank, size)]]
    assert taken == list(range(numel))
