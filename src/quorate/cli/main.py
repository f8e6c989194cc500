"""`quorate`: its entrance, which imports the verbs where an interrupt is a sentence already."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from quorate.core.telling import tell

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; leaves with its exit status."""
    try:
        from quorate.cli.verbs import status_of

        status = status_of(arguments)
    except KeyboardInterrupt:
        tell("quorate: interrupted\n")
        status = INTERRUPTED
    sys.exit(status)


if __name__ == "__main__":
    main()
