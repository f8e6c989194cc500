"""`python -m tests.soak`: as many kills as asked for; one line at the end, and status 1 where one end was wrong."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from quorate.launch.warm.run_server import RunServer
from tests.soak.kills import Soak, Trial, own_place

SHOWN_EVERY = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=55.0, help="no further run begins after so long")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    until = time.monotonic() + 60 * chosen.minutes
    with tempfile.TemporaryDirectory(prefix="qs-") as place, own_place(Path(place)), RunServer() as server:
        soak = Soak(server, Path(place))
        for number in range(chosen.kills):
            if time.monotonic() > until:
                soak.tally.wrong.append(f"only {number} of {chosen.kills} runs in {chosen.minutes:g} minutes")
                break
            trial = Trial.drawn(chosen.seed + number)
            for wrong in soak.carry_out(trial, f"run-{number}"):
                print(f"wrong: {trial}: {wrong}", file=sys.stderr, flush=True)
            if (number + 1) % SHOWN_EVERY == 0:
                print(f"{number + 1} of {chosen.kills}", file=sys.stderr, flush=True)
    print(soak.tally.line)
    return 1 if soak.tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
