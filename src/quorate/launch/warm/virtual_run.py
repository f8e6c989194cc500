"""A run in a virtual world as a process of its own: `python -m quorate.launch.warm.virtual_run REQUEST`."""

from __future__ import annotations

import os
import sys

from quorate.launch.run.requests import asked_in_one_process, status_after
from quorate.launch.warm.request import RunRequest, run_request
from quorate.launch.warm.script import flush_files


def main() -> None:
    """Carry out the run; python's own end, which takes longer than a short run, is left out."""
    from quorate.launch.virtual.run import INTERRUPTED

    del sys.path[0]  # the present folder; the script's takes its place
    request = RunRequest.from_line(sys.argv[1].encode())
    assert request.virtual is not None
    with asked_in_one_process() as asked:
        try:
            status = run_request(request, request.virtual)
        except KeyboardInterrupt:
            status = INTERRUPTED
    flush_files()
    os._exit(status_after(asked[0]) if asked and status else status)


if __name__ == "__main__":
    main()
