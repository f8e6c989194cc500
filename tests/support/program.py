"""The process of `tests.support.programs`, which is as a program that was started; its workers are forked from it."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import sys
import termios
from contextlib import ExitStack

from quorate.launch.warm.forks import CAN_FORK, keeping
from quorate.launch.warm.script import live_as_main
from tests.support.hosts import enter
from tests.support.zygote import ForksOfThis

_ERRORS = "strict" if sys.__stdout__ is None else sys.__stdout__.errors
"""What a program that is started in this locale does with what cannot be encoded."""


def main() -> None:
    life = json.loads(sys.argv[1])
    words = life["words"]
    del sys.path[0]
    if life["has_terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if life["inside"] is not None:
        enter(life["inside"], "net", "uts")
    os.chdir(life["folder"])
    _renew_streams()
    atexit._clear()  # what pytest and others have imported for
    with ExitStack() as stack:
        if CAN_FORK:
            forks = ForksOfThis()
            atexit.register(forks.__exit__)
            forks.wait()
            stack.enter_context(keeping(forks))
        is_module = words[0] == "-m"
        live_as_main(words[is_module], words[1 + is_module :], is_module=is_module)


def _renew_streams() -> None:
    sys.stdin = open(0, encoding="utf-8", errors=_ERRORS, closefd=False)  # noqa: SIM115 - open as long as the process lives
    for number, name in ((1, "stdout"), (2, "stderr")):
        errors = _ERRORS if name == "stdout" else "backslashreplace"
        stream = open(number, "w", encoding="utf-8", errors=errors, buffering=1, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    main()
