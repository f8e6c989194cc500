"""The zygote of the tests: the product's own, with more imported, and kept until this process ends."""

from __future__ import annotations

import atexit
import os
import socket
from functools import cache

from quorate.launch.local.orphans import death_with_parent
from quorate.launch.warm.forks import CAN_FORK, Forks, kept
from quorate.launch.warm.zygote import serve

PRELOADED = "tests.support.preloaded"


def forks() -> Forks:
    """Return what starts all that tests do not start as users do, once its zygote is ready, where there can be one."""
    common = kept() or start()
    assert common.wait() or not CAN_FORK, f"the zygote {common.last_words}"
    return common


@cache
def start() -> Forks:
    """Start it, without waiting."""
    common = Forks(imported=[PRELOADED])
    atexit.register(common.__exit__)
    return common


class ForksOfThis(Forks):
    """Their zygote is forked from this process, which has one thread, and has imported everything."""

    def _begun(self, client: socket.socket) -> ForkOfThis:
        self._socket.set_inheritable(False)
        die_with_parent = death_with_parent()
        assert die_with_parent is not None
        pid = os.fork()
        if pid == 0:
            die_with_parent()
            os.setsid()
            self._socket.close()
            nothing = os.open(os.devnull, os.O_RDWR)
            for standard in range(3):
                os.dup2(nothing, standard)
            life = serve(client)
            if life is not None:
                life()
            os._exit(0)
        return ForkOfThis(pid)


class ForkOfThis:
    """A child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status
