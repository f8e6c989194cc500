"""The entry point of `quorate`; imports the verbs where an interrupt is reported in one sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from quorate.core.telling import tell

INTERRUPTED = 130


def open_streams() -> None:
    """Put the null device in place of standard streams that are closed; files would get their numbers otherwise."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            if null != number:
                os.close(null)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit with its status."""
    open_streams()
    try:
        from quorate.cli.verbs import status_of

        status = status_of(arguments)
    except KeyboardInterrupt:
        tell("quorate: interrupted\n")
        status = INTERRUPTED
    sys.exit(status)


if __name__ == "__main__":
    main()
