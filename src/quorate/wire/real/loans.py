"""Memory that processes of one host read and write at once: loans, whoever's memory it is, and memory in common.

A loan says which process holds the file open (see `wire.real.shared`), under which descriptor, and where in the file
the memory lies. The system shows descriptors to processes of the same user. Each file is mapped once, up to its
furthest loan. Linux only.

Memory in common is an anonymous file in memory (`memfd`), as the arenas of messages are. It ends with the last process
that has it, even if all are killed. Any of them may invite others, even after its maker's death.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quorate.core.contracts import Common, Message
from quorate.core.errors import ConfigurationError
from quorate.core.fields import Fields, Header
from quorate.wire.real.shared import is_possible

_LEAST_WINDOW = 1 << 30
"""Bytes of a file that are mapped at least; only those that are used take memory."""
_FORGOTTEN = 4096
"""Loans after which a file without any is released."""


@dataclass(frozen=True, slots=True)
class Loan(Fields):
    """The place of some bytes: in the file numbered `file`, which `process` holds open as `descriptor`."""

    process: int
    descriptor: int
    file: int
    offset: int
    bytes: int

    @classmethod
    def of(cls, x: Tensor, descriptor: int, offset: int) -> Loan:
        """Return the loan of `x`, which lies at `offset` in a file of this process."""
        return cls(os.getpid(), descriptor, os.fstat(descriptor).st_ino, offset, x.numel() * x.element_size())


class Borrower:
    """The files of other processes of which this one has borrowed memory; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: dict[int, tuple[mmap.mmap, int]] = {}
        """By number of the file, the mapping and the count of loans at its last one."""
        self._count = 0

    def borrow(self, loan: Header, *, copy_of: Tensor | None = None) -> Tensor:
        """Return the bytes of `loan`, or a copy: see `Wire.borrow`. Raises `ConfigurationError` where they cannot be
        reached."""
        place = Loan.read(loan)
        if copy_of is not None:
            copied = np.frombuffer(_mapped(place, is_copy=True), np.uint8, place.bytes)
            weakref.finalize(copied, id, copy_of).atexit = False  # pages that are not copied are those of the tensor
            return torch.from_numpy(copied)
        with self._lock:
            self._count += 1
            window, _ = self._windows.get(place.file, (None, 0))
            if window is None or len(window) < place.offset + place.bytes:
                window = _mapped(place)
            self._windows[place.file] = window, self._count
            if self._count % _FORGOTTEN == 0:
                limit = self._count - _FORGOTTEN
                self._windows = {file: known for file, known in self._windows.items() if known[1] > limit}
        return torch.from_numpy(np.frombuffer(window, np.uint8, place.bytes, place.offset))


def _mapped(place: Loan, *, is_copy: bool = False) -> mmap.mmap:
    descriptor = _opened(place.process, place.descriptor)
    try:
        if os.fstat(descriptor).st_ino != place.file:
            raise ConfigurationError(f"process {place.process} no longer lends this memory")
        if is_copy:
            return mmap.mmap(descriptor, place.bytes, mmap.MAP_PRIVATE, offset=place.offset)
        nbytes = max(_LEAST_WINDOW, 1 << (place.offset + place.bytes - 1).bit_length())
        return mmap.mmap(descriptor, min(nbytes, os.fstat(descriptor).st_size))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the memory of process {place.process} cannot be mapped: {error}") from None
    finally:
        os.close(descriptor)


def _opened(process: int, descriptor: int, remedy: str = "") -> int:
    """Return a descriptor of the file that `process` holds open as `descriptor`."""
    try:
        return os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(
            f"the memory of process {process} cannot be reached from here ({error.strerror}){remedy}"
        ) from None


def make_common(nbytes: int) -> Common:
    """See `Wire.make_common`."""
    if not is_possible():
        raise ConfigurationError("this system has no memory that processes can share (Linux has)")
    fd = os.memfd_create("quorate-common", os.MFD_CLOEXEC)
    os.ftruncate(fd, max(1, nbytes))
    return _in_common(fd, nbytes)


def find_common(invitation: Message) -> Common:
    """See `Wire.find_common`."""
    process, descriptor = int(invitation.header["process"]), int(invitation.header["descriptor"])
    remedy = "; workers that share memory run as one user, where they see each other's processes"
    return _in_common(_opened(process, descriptor, remedy), int(invitation.header["bytes"]))


def _in_common(fd: int, nbytes: int) -> Common:
    """Map the memory; the descriptor is closed once this process no longer holds it."""
    whole = np.frombuffer(mmap.mmap(fd, max(1, nbytes)), np.uint8)
    weakref.finalize(whole, os.close, fd).atexit = False
    header = {"process": os.getpid(), "descriptor": fd, "bytes": nbytes}
    return Common(torch.from_numpy(whole)[:nbytes], Message(header=header))
