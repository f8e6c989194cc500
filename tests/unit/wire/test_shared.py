"""Blocks of shared memory: what is written is found, and nothing is used again while somebody holds it."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from quorate.wire.real import shared
from quorate.wire.real.shared import _SURPLUS_BYTES, _SURPLUS_TAKES, LEAST_BYTES, Arena, Lender, is_possible

pytestmark = pytest.mark.skipif(not is_possible(), reason="this system has no files in memory")

READERS = 3
NUMEL = LEAST_BYTES // 2
"""Of float32: twice the least."""


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(READERS)
    yield made
    made.close()


def lender(arena: Arena, rank: int) -> Lender:
    return Lender(os.dup(arena.fd), rank, READERS)


def lent(arena: Arena, to: Lender, rank: int, x: torch.Tensor) -> torch.Tensor:
    place = arena.place(x, rank)
    assert place is not None
    return to.tensor(x.dtype, x.shape, place)


def test_a_reader_sees_what_the_owner_wrote_without_a_copy(arena: Arena) -> None:
    reader = lender(arena, 1)
    x = arena.empty(NUMEL, torch.float32)
    x.copy_(torch.arange(NUMEL))
    seen = lent(arena, reader, 1, x[10:-6].view(-1, 2))
    assert seen.shape == ((NUMEL - 16) // 2, 2)
    assert torch.equal(seen.flatten(), torch.arange(10.0, NUMEL - 6))
    x[10] = -1.0
    assert seen[0, 0] == -1.0


def test_a_tensor_of_ordinary_memory_is_copied_into_a_block(arena: Arena) -> None:
    x = torch.randn(NUMEL, dtype=torch.float64)
    seen = lent(arena, lender(arena, 0), 0, x)
    assert torch.equal(seen, x)
    x.zero_()
    assert seen.abs().sum() > 0


def test_small_tensors_have_no_place(arena: Arena) -> None:
    assert arena.place(torch.zeros(8), 0) is None
    assert arena.place(arena.empty(8, torch.float32), 0) is None


def test_a_block_is_used_again_when_all_have_let_go_of_it_and_not_before(arena: Arena) -> None:
    readers = [lender(arena, rank) for rank in range(READERS)]
    x = arena.empty(NUMEL, torch.float32)
    address = x.data_ptr()
    seen = [lent(arena, reader, rank, x) for rank, reader in enumerate(readers)]
    again = lent(arena, readers[1], 1, x)  # twice to the same reader
    del x
    gc.collect()
    for rank in range(READERS):
        assert arena.empty(NUMEL, torch.float32).data_ptr() != address
        seen[rank] = torch.empty(0)
        readers[rank].report_releases()
    assert arena.empty(NUMEL, torch.float32).data_ptr() != address, "one reader holds it still"
    del again
    readers[1].report_releases()
    addresses = {arena.empty(NUMEL, torch.float32).data_ptr() for _ in range(2)}
    kept = [arena.empty(NUMEL, torch.float32) for _ in range(3)]
    assert address in addresses | {x.data_ptr() for x in kept}
    assert len({x.data_ptr() for x in kept}) == 3


def test_a_reader_that_lets_go_tells_the_owner_at_once(arena: Arena) -> None:
    reader = lender(arena, 1)
    x = arena.empty(NUMEL, torch.float32)
    address, seen = x.data_ptr(), lent(arena, reader, 1, x)
    del x
    assert seen.numel() == NUMEL
    del seen
    assert arena.empty(NUMEL, torch.float32).data_ptr() == address


def test_a_block_is_waited_for_as_long_as_patience_lasts(arena: Arena) -> None:
    """For one that a reader holds, not for one that the owner does."""
    reader = lender(arena, 1)
    x = arena.empty(NUMEL, torch.float32)
    address, seen = x.data_ptr(), [lent(arena, reader, 1, x)]
    assert arena.empty(NUMEL, torch.float32, patience=3600.0).data_ptr() != address
    arena.trim()
    del x
    begin = time.monotonic()
    assert arena.empty(NUMEL, torch.float32, patience=0.3).data_ptr() != address
    assert time.monotonic() - begin >= 0.3
    arena.trim()
    timer = threading.Timer(0.2, seen.clear)
    timer.start()
    assert arena.empty(NUMEL, torch.float32, patience=3600.0).data_ptr() == address
    timer.join()


def test_the_owner_holds_a_block_too(arena: Arena) -> None:
    x = arena.empty(NUMEL, torch.float32)
    view = x[3:]
    address = x.data_ptr()
    del x
    assert arena.empty(NUMEL, torch.float32).data_ptr() != address
    del view
    others = [arena.empty(NUMEL, torch.float32) for _ in range(2)]
    assert address in {x.data_ptr() for x in others}


def test_readers_that_have_ended_hold_nothing(arena: Arena) -> None:
    x = arena.empty(NUMEL, torch.float32)
    address = x.data_ptr()
    arena.place(x, 2)
    del x
    assert arena.empty(NUMEL, torch.float32).data_ptr() != address
    arena.dead = {2}
    others = [arena.empty(NUMEL, torch.float32) for _ in range(2)]
    assert address in {x.data_ptr() for x in others}


def memory_of(arena: Arena) -> int:
    return os.fstat(arena.fd).st_blocks * 512


def test_blocks_of_a_size_that_is_not_wanted_any_more_give_their_memory_back(arena: Arena) -> None:
    before = memory_of(arena)
    x = arena.empty(1 << 20, torch.float32)
    x.zero_()
    assert memory_of(arena) - before >= 4 << 20
    del x
    arena.empty(3 << 20, torch.float32)
    assert memory_of(arena) - before < 13 << 20
    again = arena.empty(1 << 20, torch.float32)
    again.fill_(2.0)
    assert again.sum() == 2 << 20


@pytest.mark.parametrize(
    "place",
    [
        (0, 1 << 20, 1 << 20, -4),
        (0, 1 << 20, 64, 0),
        (1 << 14, 1 << 20, 1 << 20, 0),
        (-1, 1 << 20, 1 << 20, 0),
        (0, 1 << 60, 1 << 20, 0),
        (0, -(1 << 20), 1 << 20, 0),
        (0, 12345, 1 << 20, 0),
        (0, 1 << 20, 1 << 62, 0),
        (0, 1 << 42, (1 << 42) + (1 << 20), 0),
        (0, 1 << 20, 1 << 20),
        (0, "1", 1 << 20, 0),
    ],
)
def test_a_place_that_cannot_be_is_refused(arena: Arena, place: tuple[int, ...]) -> None:
    with pytest.raises((ValueError, TypeError)):
        lender(arena, 0).tensor(torch.float32, (NUMEL,), place)


def test_a_shape_with_negative_extents_is_refused(arena: Arena) -> None:
    for shape in ((-4, 8), (-4, -8)):
        with pytest.raises(ValueError, match="does not lie in its block"):
            lender(arena, 0).tensor(torch.float32, shape, (0, 1 << 20, 1 << 20, 0))


def test_a_new_block_has_its_memory_before_anyone_writes_to_it(arena: Arena) -> None:
    before = _pages_of(arena)
    x = arena.empty(1 << 20, torch.uint8)
    assert x.numel() == 1 << 20
    if _pages_of(arena) == before:
        pytest.skip("this kernel makes pages only as they are written to")
    assert _pages_of(arena) - before >= (1 << 20) // 512


def test_memory_that_was_given_back_is_there_again_where_its_block_is_taken(arena: Arena) -> None:
    x = arena.empty(1 << 20, torch.uint8)
    with_it = _pages_of(arena)
    del x
    y = arena.empty(1 << 19, torch.uint8)  # of another size: the first one's memory goes
    gc.collect()
    assert _pages_of(arena) < with_it
    x = arena.empty(1 << 20, torch.uint8)
    assert x.fill_(7).eq(7).all()
    assert y.numel() == 1 << 19
    assert _pages_of(arena) >= with_it


def _pages_of(arena: Arena) -> int:
    """In units of 512 bytes."""
    return os.fstat(arena.fd).st_blocks


def test_blocks_that_stay_free_give_their_memory_back(arena: Arena) -> None:
    """Of three that were needed at once, one is used on; the other two are empty after some takes."""
    numel = _SURPLUS_BYTES // 4
    together = [arena.empty(numel, torch.float32) for _ in range(3)]
    assert len(arena._held) == 3
    del together
    for _ in range(2 * _SURPLUS_TAKES):
        arena.empty(numel, torch.float32)
    arena.lends(0)
    (blocks,) = arena._resting.values()
    assert [block.is_filled for block in blocks].count(True) == 1
    two = [arena.empty(numel, torch.float32).fill_(number) for number in range(2)]
    assert [float(x.mean()) for x in two] == [0.0, 1.0]


def test_one_large_block_keeps_its_memory_while_it_is_free(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_LARGE_BYTES", 1)
    blocks = [arena.empty(NUMEL, torch.float32).fill_(1.0) for _ in range(3)]
    newest = blocks[2].data_ptr()
    seen = lent(arena, lender(arena, 1), 1, blocks[0])
    while blocks:
        del blocks[0]
    arena.give_large_blocks_back()
    filled = [block for resting in arena._resting.values() for block in resting if block.is_filled]
    assert len(filled) == 2, "one is read, and one free"
    assert newest in {block.address for block in filled} and seen.sum() == NUMEL
    del seen
    arena.give_large_blocks_back()
    assert sum(block.is_filled for resting in arena._resting.values() for block in resting) == 1


def test_a_large_block_with_a_copy_keeps_no_memory_while_it_is_free(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of a replica, say, which is sent once."""
    monkeypatch.setattr(shared, "_LARGE_BYTES", 1)
    reader, x = lender(arena, 1), torch.ones(NUMEL)
    assert lent(arena, reader, 1, x).sum() == NUMEL
    reader.report_releases()
    arena.give_large_blocks_back()
    assert [block.is_filled for resting in arena._resting.values() for block in resting] == [False]
    again = arena.empty(NUMEL, torch.float32).fill_(1.0)  # the same block, which is used again and again from now on
    del again
    arena.give_large_blocks_back()
    assert [block.is_filled for resting in arena._resting.values() for block in resting] == [True]


def test_a_block_has_pages_for_its_tensor_only(arena: Arena) -> None:
    """It is up to an eighth larger than its tensor."""
    arena.empty((1 << 22) + 4, torch.uint8)
    assert os.fstat(arena.fd).st_blocks * 512 < (1 << 22) + (1 << 18)


def test_a_block_that_readers_have_only_as_a_place_of_sums_is_used_again(arena: Arena) -> None:
    reader = lender(arena, 1)
    x = arena.empty(NUMEL, torch.float32)
    address, place = x.data_ptr(), lent(arena, reader, 1, x)
    mapped = arena.let_map(address, [1])
    assert mapped is not None
    del x
    x = arena.empty(NUMEL, torch.float32)
    assert x.data_ptr() == address
    mapped.end()
    del x
    assert arena.empty(NUMEL, torch.float32).data_ptr() != address, "the place may be read from now on"
    del place
    kept = [arena.empty(NUMEL, torch.float32) for _ in range(2)]
    assert address in {x.data_ptr() for x in kept}


def test_a_message_in_the_memory_of_a_place_is_read_first(arena: Arena) -> None:
    reader = lender(arena, 1)
    x = arena.empty(NUMEL, torch.float32)
    address, place = x.data_ptr(), lent(arena, reader, 1, x)
    assert arena.let_map(address, [1]) is not None
    message = lent(arena, reader, 1, x)
    del x
    assert arena.empty(NUMEL, torch.float32).data_ptr() != address
    assert place.numel() == message.numel()
