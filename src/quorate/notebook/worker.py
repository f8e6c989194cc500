"""A process that calls a function for `quorate.launch`: `python -m quorate.notebook.worker FILE`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from quorate.notebook.function import put_raised, put_result, receive


def main() -> None:
    """Call the function, and keep what it returns, or raises."""
    rank, folder = int(os.environ["RANK"]), Path(os.environ["QUORATE_RUN"])
    function, args, file = receive(Path(sys.argv[1]))
    sys.argv = [getattr(function, "__name__", "function")]
    try:
        put_result(folder, rank, function(*args))
    except Exception as error:
        put_raised(folder, rank, error, file)
        raise


if __name__ == "__main__":
    main()
