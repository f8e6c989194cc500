"""The entry point of `quorate`; imports the verbs where an interrupt is reported in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from quorate.core.telling import tell

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit with its status."""
    try:
        from quorate.cli.verbs import status_of

        status = status_of(arguments)
    except KeyboardInterrupt:
        tell("quorate: interrupted\n")
        status = INTERRUPTED
    sys.exit(status)


if __name__ == "__main__":
    main()
