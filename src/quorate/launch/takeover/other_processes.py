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


class _Mark:
    """A part of a process object, which forbids groups in the process where it is unpickled."""

    def __reduce__(self) -> Any:
        return _forbid_groups, ()


def _forbid_groups() -> None:
    after_import_of_torch(lambda: _refuse_groups(lambda: True))


def refuse_other_groups() -> None:
    """Let `init_process_group` raise `ConfigurationError` for another number of processes than there are workers.

    It does so for any number in processes that this one starts, forked or spawned.
    """
    pid, plain = os.getpid(), BaseProcess.start
    _refuse_groups(lambda: os.getpid() != pid)

    def start(self: Any) -> None:
        self._quorate = _Mark()
        plain(self)

    BaseProcess.start = start  # type: ignore[method-assign]


def _refuse_groups(is_refused: Callable[[], bool]) -> None:
    import torch.distributed as dist

    plain = dist.init_process_group

    def init_process_group(*arguments: Any, **named: Any) -> Any:
        if current.place() is None:
            sys.excepthook = OneSentence(names_line=True)
        workers, size = os.environ.get("WORLD_SIZE", ""), named.get("world_size", (*arguments, *[-1] * 4)[3])
        if workers.isdecimal() and size not in (-1, int(workers)):
            raise ConfigurationError(
                f"the script makes a group of {size} processes (init_process_group), and {workers} workers were "
                f"started of it; start it with -n {size}, or ask for {workers}, as by devices={workers} in Lightning"
            )
        if is_refused():
            raise ConfigurationError(
                "the script starts processes that train by itself (multiprocessing.Process), and each worker would "
                "start all of them; start them by torch.multiprocessing.spawn, as many as there are workers"
            )
        return plain(*arguments, **named)

    for module in (dist, dist.distributed_c10d):
        module.init_process_group = init_process_group  # type: ignore[attr-defined]
