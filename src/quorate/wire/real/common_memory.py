"""Memory that processes of one host read and write at once, without any order among them.

It is an anonymous file in memory (`memfd`), as the arenas of messages are (`wire.real.shared`). It ends with the last
process that has it, even if all are killed. Any of them may invite others, even after its maker's death. An invitation
has a process that holds it open, and the descriptor there, which the system shows to processes of the same user. Linux
only.
"""

from __future__ import annotations

import mmap
import os
import weakref

import numpy as np
import torch

from quorate.core.contracts import Common, Message
from quorate.core.errors import ConfigurationError
from quorate.wire.real.shared import is_possible


def make_common(nbytes: int) -> Common:
    """See `Wire.make_common`."""
    if not is_possible():
        raise ConfigurationError("this system has no memory that processes can share (Linux has)")
    fd = os.memfd_create("quorate-common", os.MFD_CLOEXEC)
    os.ftruncate(fd, max(1, nbytes))
    return _mapped(fd, nbytes)


def find_common(invitation: Message) -> Common:
    """See `Wire.find_common`."""
    process, descriptor = int(invitation.header["process"]), int(invitation.header["descriptor"])
    try:
        fd = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(
            f"the memory of process {process} cannot be reached from here ({error.strerror}); workers that share "
            "memory run as one user, where they see each other's processes"
        ) from None
    return _mapped(fd, int(invitation.header["bytes"]))


def _mapped(fd: int, nbytes: int) -> Common:
    """Map the memory; the descriptor is closed once this process no longer holds it."""
    whole = np.frombuffer(mmap.mmap(fd, max(1, nbytes)), np.uint8)
    weakref.finalize(whole, os.close, fd).atexit = False
    header = {"process": os.getpid(), "descriptor": fd, "bytes": nbytes}
    return Common(torch.from_numpy(whole)[:nbytes], Message(header=header))
