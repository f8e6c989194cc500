"""Memory that the processes of one host share, so that large messages are not copied through the kernel.

Each process owns an `Arena`: an anonymous file in memory, whose descriptor it sends to the others over their
connection. It is cut into blocks; a block is used again once its owner and all its readers have released it. A table at
the beginning of the file counts how often each reader has released each block; each cell of the table has one
writer. Linux only; elsewhere messages go through sockets.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quorate.wire.real import semaphores
from quorate.wire.real.gpus import on_gpu

LEAST_BYTES = 1 << 16
"""Smallest tensor that gets a block, in bytes."""
_FILE_BYTES = 1 << 43
"""Address space of the file; only written pages take memory."""
_MOST_BLOCKS = 1 << 14
_PAGE = 1 << 16
_SURPLUS_BYTES, _SURPLUS_TAKES = 1 << 20, 16
"""Size of blocks whose memory is given back where so many takes in a row have left them free."""
_LARGE_BYTES = 1 << 25
"""Size of blocks of which one at most keeps its memory while it is free."""
_NAP = 1e-4
"""Seconds between two looks for a released block."""
_POPULATE_WRITE = 23
"""`MADV_POPULATE_WRITE`: Linux 5.14."""


def is_possible() -> bool:
    """Whether this system has files in memory that can be passed to another process."""
    return sys.platform.startswith("linux") and hasattr(os, "memfd_create") and semaphores.are_there()


def _rounded(nbytes: int) -> int:
    """Return `nbytes` rounded up by an eighth at most, so that blocks fit again."""
    step = max(_PAGE, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


def _window(fd: int, position: int, nbytes: int) -> mmap.mmap:
    return mmap.mmap(fd, nbytes, offset=position)


@cache
def _madvise() -> Callable[[int, int, int], int]:
    """Return the system's `madvise`, which lets other threads run (`mmap.madvise` stops them, 0.1 s for 100 MB)."""
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def _make_pages(address: int, nbytes: int) -> None:
    """Make all pages at once, cheaper than one by one at the first write; does nothing where the kernel cannot."""
    _madvise()(address, nbytes, _POPULATE_WRITE)


class _Block:
    """One piece of the file."""

    def __init__(self, number: int, position: int, nbytes: int, window: mmap.mmap, readers: int) -> None:
        self.number, self.position, self.nbytes, self.window = number, position, nbytes, window
        self.sent = np.zeros(readers, np.uint32)
        self.mapped = np.zeros(readers, np.int32)
        """How often each reader has the block only as a place of sums, where it looks while the owner holds it."""
        self.address = np.frombuffer(window, np.uint8).ctypes.data
        self.is_filled = self.is_pinned = self.is_single = False
        """Whether it may take memory, whether that is pinned, and whether it has a copy of a tensor in other memory.
        Only its owner writes to these, while it has the block."""


class Mapped:
    """A block that readers have as a place of sums."""

    def __init__(self, block: _Block, readers: Sequence[int]) -> None:
        self._block, self._readers = block, list(readers)
        self._block.mapped[self._readers] += 1

    def end(self) -> None:
        """Count the block as free only once the readers have released it."""
        self._block.mapped[self._readers] -= 1
        self._readers = []


class Arena:
    """The blocks of one process; its methods may be called from any thread."""

    def __init__(self, size: int) -> None:
        self.fd = os.memfd_create("quorate", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, _FILE_BYTES)
        self._lock = threading.Lock()
        table = _rounded(4 * size * _MOST_BLOCKS)
        self._table = np.frombuffer(_window(self.fd, 0, table), np.uint32)[: size * _MOST_BLOCKS].reshape(-1, size)
        self._end, self._size = table, size
        self._count = 0
        self._held: dict[int, _Block] = {}
        """Blocks held by the owner, by address."""
        self._released = deque[int]()
        self._resting: dict[int, list[_Block]] = {}
        """Blocks released by the owner, by size, the newest last."""
        self._has_large = False
        """Whether any block is large."""
        self._surplus: dict[int, tuple[int, int]] = {}
        """By size: how often one of several free blocks was taken, and the fewest that were left."""
        self.dead: Collection[int] = ()
        """Readers that have ended, and hold no block any more."""
        self.gpu: torch.device | None = None
        """The GPU that may access the blocks; None: the current one of the thread."""

    def empty(self, numel: int, dtype: torch.dtype, patience: float = 0.0) -> Tensor:
        """Return a tensor (numel,) in a block of its own; in ordinary memory where it is small. See `Wire.empty`."""
        nbytes = numel * dtype.itemsize
        until = time.monotonic() + patience if patience and nbytes >= LEAST_BYTES else 0.0
        while until and self._is_read(nbytes) and time.monotonic() < until:
            time.sleep(_NAP)
        block = self._take(nbytes) if nbytes >= LEAST_BYTES else None
        if block is None:
            return torch.empty(numel, dtype=dtype)
        block.is_single = False
        if not block.is_filled:
            _make_pages(block.address, nbytes)  # the block is up to an eighth larger
            block.is_filled = True
        block.is_pinned = block.is_pinned or pin(block.address, block.nbytes, self.gpu)
        array = np.frombuffer(block.window, np.uint8, nbytes)
        x = torch.from_numpy(array)
        address = x.data_ptr()
        with self._lock:
            self._held[address] = block
        weakref.finalize(array, self._released.append, address).atexit = False
        return x.view(dtype)

    def place(self, x: Tensor, to: int) -> tuple[int, int, int, int] | None:
        """Return the place of a contiguous CPU tensor for reader `to`: (block, its position and bytes, offset).

        The numbers are copied where they are in no block yet; None where the tensor is small.
        """
        nbytes = x.numel() * x.element_size()
        if nbytes < LEAST_BYTES:
            return None
        address = x.untyped_storage().data_ptr()
        with self._lock:
            block = self._held.get(address)
            if block is not None:
                block.sent[to] += 1
        if block is not None:
            return block.number, block.position, block.nbytes, x.data_ptr() - address
        copied = self.empty(nbytes, torch.uint8)
        copied.copy_(x.view(-1).view(torch.uint8))
        if (block := self._held.get(copied.untyped_storage().data_ptr())) is None:
            return None
        block.is_single = True
        return self.place(copied, to)

    def offset_of(self, address: int) -> int | None:
        """Return where in the file the block lies that begins at `address`, if this process holds it."""
        with self._lock:
            block = self._held.get(address)
        return None if block is None else block.position

    def lends(self, address: int) -> bool:
        """Whether a block that this process holds begins at `address`."""
        with self._lock:
            self._put_to_rest()
            return address in self._held

    def let_map(self, address: int, readers: Sequence[int]) -> Mapped | None:
        """Let `readers` keep the block at `address`, which this process holds, as a place of sums. It is free once
        this process has released it, until `Mapped.end`. None where no block begins there."""
        with self._lock:
            block = self._held.get(address)
            return None if block is None else Mapped(block, readers)

    def _put_to_rest(self) -> None:
        while self._released:
            block = self._held.pop(self._released.popleft())
            self._resting.setdefault(block.nbytes, []).append(block)

    def _take(self, nbytes: int) -> _Block | None:
        wanted = _rounded(nbytes)
        with self._lock:
            self._put_to_rest()
            resting = self._resting.get(wanted, [])
            if wanted < _SURPLUS_BYTES:  # surplus of small blocks is not counted: the newest free one will do
                for index in reversed(range(len(resting))):
                    if resting[index].is_filled and self._is_free(resting[index]):
                        return resting.pop(index)
            free = [index for index in reversed(range(len(resting))) if self._is_free(resting[index])]
            if free:
                newest = next((index for index in free if resting[index].is_filled), free[0])
                block = resting.pop(newest)  # so that what is surplus stays free
                if wanted >= _SURPLUS_BYTES:
                    self._give_surplus_back(wanted, len(free) - 1)
                return block
            self._surplus.pop(wanted, None)
            self._give_memory_back(wanted)
            if self._count == _MOST_BLOCKS:
                return None
            try:
                window = _window(self.fd, self._end, wanted)
            except OSError:
                return None  # no address space left: messages use the socket
            block = _Block(self._count, self._end, wanted, window, self._size)
            self._has_large |= wanted >= _LARGE_BYTES
            self._count += 1
            self._end += wanted
            return block

    def _is_read(self, nbytes: int) -> bool:
        """Whether there are blocks for `nbytes`, but readers hold all of them."""
        with self._lock:
            self._put_to_rest()
            resting = [block for block in self._resting.get(_rounded(nbytes), []) if block.is_filled]
            return bool(resting) and not any(map(self._is_free, resting))

    def give_large_blocks_back(self) -> None:
        """Release the memory of large blocks that no process holds, but for the newest of each size, unless that had
        a copy."""
        if not self._has_large:
            return
        with self._lock:
            self._put_to_rest()
            for nbytes, resting in self._resting.items():
                if nbytes >= _LARGE_BYTES:
                    free = [block for block in resting if block.is_filled and self._is_free(block)]
                    for block in free if free and free[-1].is_single else free[:-1]:
                        self._release(block)

    def trim(self) -> None:
        """Release the memory of all blocks that no process holds."""
        with self._lock:
            self._put_to_rest()
            self._give_memory_back(0)

    def _give_memory_back(self, wanted: int) -> None:
        """Release the memory, not the addresses, of blocks of other sizes that no process holds."""
        for nbytes, resting in self._resting.items():
            for block in resting if nbytes != wanted else ():
                if block.is_filled and self._is_free(block):
                    self._release(block)

    def _give_surplus_back(self, nbytes: int, free: int) -> None:
        """Note that so many blocks are left free, and release the memory of those that were in the last takes, too."""
        takes, least = self._surplus.get(nbytes, (0, free))
        takes, least = takes + 1, min(least, free)
        if takes < _SURPLUS_TAKES:
            self._surplus[nbytes] = takes, least
            return
        del self._surplus[nbytes]
        for block in [block for block in self._resting[nbytes] if block.is_filled and self._is_free(block)][:least]:
            self._release(block)

    def _release(self, block: _Block) -> None:
        if block.is_pinned:
            unpin(block.address, self.gpu)
            block.is_pinned = False
        _madvise()(block.address, block.nbytes, mmap.MADV_REMOVE)
        block.is_filled = False

    def _is_free(self, block: _Block) -> bool:
        held = (block.sent - self._table[block.number]).view(np.int32) > block.mapped
        if not held.any():
            return True
        return all(reader in self.dead for reader in np.flatnonzero(held).tolist())

    def close(self) -> None:
        """End the arena; blocks that others hold exist until they are released."""
        os.close(self.fd)


class Lender:
    """The view of `rank` on another process's arena; `tensor` belongs to one thread."""

    def __init__(self, fd: int, rank: int, size: int) -> None:
        self.fd, self._rank = fd, rank
        table = _rounded(4 * size * _MOST_BLOCKS)
        self._table = np.frombuffer(_window(fd, 0, table), np.uint32)[: size * _MOST_BLOCKS].reshape(-1, size)
        self._windows: dict[int, mmap.mmap] = {}
        self._addresses: dict[int, range] = {}
        """By position of a window, where it lies in this process."""
        self._released = deque[int]()
        self._reporting = threading.Lock()

    def tensor(self, dtype: torch.dtype, shape: Sequence[int], place: Sequence[int]) -> Tensor:
        """Return the tensor at `place` (see `Arena.place`), not copied. Raises `ValueError` for an impossible place."""
        block, position, length, offset = place
        nbytes = dtype.itemsize * math.prod(shape)
        lies_in_it = min(shape, default=0) >= 0 and nbytes > 0 and 0 <= offset <= length - nbytes
        if not lies_in_it or not 0 <= block < _MOST_BLOCKS:
            raise ValueError(f"a message of {nbytes} bytes at {offset} does not lie in its block of {length} bytes")
        window = self._windows.get(position)
        if window is None:
            try:
                window = self._windows[position] = _window(self.fd, position, length)
            except (OSError, OverflowError) as error:
                raise ValueError(f"no block of {length} bytes can be at {position}: {error}") from None
            address = np.frombuffer(window, np.uint8).ctypes.data
            self._addresses[position] = range(address, address + length)
        array = np.frombuffer(window, np.uint8, nbytes, offset)
        weakref.finalize(array, self._note_release, block).atexit = False
        return torch.from_numpy(array).view(dtype).view(tuple(shape))

    def offset_of(self, address: int) -> int | None:
        """Return where in the file the memory at `address` lies, if it is of this lender."""
        for position, addresses in tuple(self._addresses.items()):
            if address in addresses:
                return position + address - addresses.start
        return None

    def _note_release(self, block: int) -> None:
        """Note a release, in any thread, even within `report_releases`."""
        self._released.append(block)
        self.report_releases()

    def report_releases(self) -> None:
        """Count the released blocks in the owner's table, unless another thread does; from any thread."""
        while self._released and self._reporting.acquire(blocking=False):  # again for releases while it was held
            try:
                while self._released:
                    self._table[self._released.popleft(), self._rank] += 1
            finally:
                self._reporting.release()

    def close(self) -> None:
        os.close(self.fd)


def pin(address: int, nbytes: int, gpu: torch.device | None = None) -> bool:
    """Let `gpu`, or the thread's current one, access `nbytes` from `address` on, until `unpin`; return whether it can.

    Does nothing where this process has not begun to compute on a GPU. Cost: some 0.3 ms per MB, once.
    """
    if not _has_begun():
        return False
    with on_gpu(gpu):  # another thread's current GPU is the first, where this would make a context
        return bool(_runtime().cudaHostRegister(address, nbytes, 0) == _runtime().cudaError.success)


def unpin(address: int, gpu: torch.device | None = None) -> None:
    """Undo `pin`, before the memory is released."""
    if _has_begun():
        with on_gpu(gpu):
            _runtime().cudaHostUnregister(address)


def _has_begun() -> bool:
    return bool(torch.cuda.is_initialized())


def _runtime() -> Any:
    return torch.cuda.cudart()
