"""Groups of processes that a script would wait in for ever, as their processes are not the workers of the run.

A script may start processes by hand, and each worker would start all of them, under the same ranks and the same
address. They may load data, and are refused where they would train. Or a script may count on more processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.core.script_errors import OneSentence
from quorate.launch.takeover.torch_import import after_import_of_torch
from quorate.wire import current

_REFUSED = 81
"""The exit status of a process that was refused a group: no status of Python's, of a shell's, or of a signal."""


class _Mark:
    """A part of a process object, which forbids groups in the process where it is unpickled."""

    def __reduce__(self) -> Any:
        return _forbid_groups, ()


def _forbid_groups() -> None:
    after_import_of_torch(lambda: _watch_groups(_end_child))


def refuse_groups_of_children() -> None:
    """Let processes that this one starts, forked or spawned, end where they would make a group.

    `join` of such a process raises `ConfigurationError`, once. A group of one process is its own affair. torch is not
    imported for it.
    """
    pid, plain_start, plain_join, state = os.getpid(), BaseProcess.start, BaseProcess.join, {"watches": False}

    def end_fork(size: int) -> None:
        if os.getpid() != pid:
            _end_child(size)

    def start(self: Any) -> None:
        self._quorate = _Mark()
        if not state["watches"]:
            state["watches"] = True
            after_import_of_torch(lambda: _watch_groups(end_fork))
        plain_start(self)

    def join(self: Any, timeout: float | None = None) -> None:
        plain_join(self, timeout)
        if self.exitcode == _REFUSED and os.getpid() == pid:
            BaseProcess.join = plain_join  # type: ignore[method-assign]
            _refuse(
                "the script starts processes that train by itself (multiprocessing.Process), and each worker would "
                "start all of them. Start the script with python, or one process for each worker by "
                "torch.multiprocessing.spawn under --strategy"
            )

    BaseProcess.start, BaseProcess.join = start, join  # type: ignore[method-assign]


def refuse_other_sizes() -> None:
    """Let `init_process_group` raise `ConfigurationError` for another number of processes than there are workers."""
    pid, workers = os.getpid(), os.environ.get("WORLD_SIZE", "")

    def look(size: int) -> None:
        if os.getpid() == pid and workers.isdecimal() and size not in (-1, int(workers)):
            _refuse(
                f"the script makes a group of {size} processes (init_process_group), and {workers} workers were "
                f"started of it; start it with -n {size}, or ask for {workers}, as by devices={workers} in Lightning"
            )

    _watch_groups(look)


def _refuse(sentence: str) -> None:
    if current.place() is None:
        sys.excepthook = OneSentence(names_line=True)
    raise ConfigurationError(sentence)


def _end_child(size: int) -> None:
    if size != 1:
        raise SystemExit(_REFUSED)


def _watch_groups(look: Callable[[int], None]) -> None:
    """Call `look` with the number of processes, -1 where the environment says it, before a group is made."""
    import torch.distributed as dist

    plain = dist.init_process_group

    def init_process_group(*arguments: Any, **named: Any) -> Any:
        look(named.get("world_size", (*arguments, *[-1] * 4)[3]))
        return plain(*arguments, **named)

    for module in (dist, dist.distributed_c10d):
        module.init_process_group = init_process_group  # type: ignore[attr-defined]
