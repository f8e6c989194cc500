"""What do heartbeats between hosts cost a worker that does nothing else?

    python benchmarks/heartbeats.py [--quick] [--hosts 8] [--seconds 30]     (as root, on Linux)

Workers on hosts of their own (network namespaces) join and sleep. The processor time of the thread that sends and
receives heartbeats, over the time that passes, is what they cost a worker; the first one leads. The kernel's work for a
message that is received on another host is in it here, as all hosts are one machine.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import record  # noqa: E402

from tests.support.hosts import hosts  # noqa: E402
from tests.support.processes import run_real_world  # noqa: E402


def rests(seconds: float, world: Any) -> float:
    """Processor seconds that the thread takes in a second of sleep."""
    world.barrier()
    time.sleep(2.0)
    began, busy = time.monotonic(), of_thread()
    time.sleep(seconds)
    found = (of_thread() - busy) / (time.monotonic() - began)
    world.barrier()
    return found


def of_thread() -> float:
    """The processor seconds that the thread of the replicated board has taken."""
    (one,) = (thread for thread in threading.enumerate() if thread.name == "quorate-lines")
    return int(Path(f"/proc/self/task/{one.native_id}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def main() -> int:
    parser = record.arguments(str(__doc__))
    parser.add_argument("--hosts", type=int, default=8, help="of one worker each (8)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of sleep (30)")
    parser.add_argument("--turns", type=int, default=3, help="(3)")
    told = parser.parse_args()
    turns, seconds = (1, 10.0) if told.quick else (told.turns, told.seconds)
    report = record.Report("heartbeats", {"turns": turns, "hosts": told.hosts, "seconds": seconds})
    leader, others = [], []
    for turn in range(turns):
        with hosts(told.hosts) as on:
            said = run_real_world(told.hosts, partial(rests, seconds), seconds + 60, on=on)
        leader.append(100 * said[0])
        others.append(100 * sum(said[1:]) / len(said[1:]))
        print(f"turn {turn + 1}: leader {leader[-1]:.3f} %, others {others[-1]:.3f} %", flush=True)
    report.rows.append(record.figure("leader: % of a processor", leader))
    report.rows.append(record.figure("others: % of a processor", others))
    report.bar("leader: % of a processor", report.rows[0].median, at_most=0.1)
    return report.show(told)


if __name__ == "__main__":
    sys.exit(main())
