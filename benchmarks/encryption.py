"""What TLS 1.3 between hosts costs: large messages and small ones, with it and without it in turn.

    python benchmarks/encryption.py [--quick]

Two processes send each other messages over the loopback interface, as workers on two hosts do. Seconds of the processor
are those of both together: a network that is slower than this one hides the time, but not them. The bar: a gigabyte
costs at most 2 s of the processor more.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import record

LARGE, SMALL, SMALL_ONES = 16 << 20, 1 << 10, 200
LABELS = {True: "TLS 1.3", False: "plain"}


def end(rank: int, *, is_encrypted: bool, pipe: Connection) -> Any:
    """A mailbox, and its inbox; addresses are exchanged through the pipe."""
    from quorate.wire.boxes import Inbox
    from quorate.wire.real.encryption import Encryption
    from quorate.wire.real.mailbox import Mailbox

    inbox = Inbox()
    place: list[str] = []
    own = Encryption() if is_encrypted else None
    box = Mailbox(rank, 2, inbox, None, "127.0.0.1", b"a key", lambda peer: place[0], own)
    pipe.send(box.address)
    place.append(pipe.recv())
    return box, inbox


def echo(pipe: Connection, is_encrypted: bool) -> None:
    """Answer every message with an empty one; at the end tell the seconds of the processor."""
    from quorate.core.contracts import Message

    box, inbox = end(1, is_encrypted=is_encrypted, pipe=pipe)
    while True:
        waiting = inbox.ask(0, "t")
        waiting.filled.wait()
        assert waiting.result is not None
        what = waiting.result[1].header["what"]
        if what == "cost":
            pipe.send(time.process_time())
        box.send(Message(), 0, "t")
        if what == "end":
            pipe.recv()
            return


def measure(is_encrypted: bool, large_ones: int) -> tuple[float, float, float]:
    """Megabytes a second, seconds of the processor for a gigabyte, and microseconds for a small message to and fro."""
    import torch

    from quorate.core.contracts import Message

    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("fork").Process(target=echo, args=(theirs, is_encrypted))
    other.start()
    box, inbox = end(0, is_encrypted=is_encrypted, pipe=ours)

    def goes(size: int, what: str = "") -> None:
        waiting = inbox.ask(1, "t")
        box.send(Message((torch.zeros(size, dtype=torch.uint8),) if size else (), {"what": what}), 1, "t")
        assert waiting.filled.wait(60.0)

    def cost() -> float:
        goes(0, "cost")
        return float(ours.recv()) + time.process_time()

    goes(LARGE)
    spent, begin = cost(), time.perf_counter()
    for _ in range(large_ones):
        goes(LARGE)
    took, spent = time.perf_counter() - begin, cost() - spent
    begin = time.perf_counter()
    for _ in range(SMALL_ONES):
        goes(SMALL)
    small = (time.perf_counter() - begin) / SMALL_ONES
    goes(0, "end")
    ours.send("good bye")
    other.join(10.0)
    box.close()
    return large_ones * LARGE / took / 1e6, spent / (large_ones * LARGE / 1e9), small * 1e6


def main() -> int:
    options = record.arguments(__doc__ or "").parse_args()
    repeats, large_ones = (5, 8) if options.quick else (15, 20)
    found: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
    for number in range(repeats):
        for is_encrypted in (True, False):
            found[is_encrypted].append(measure(is_encrypted, large_ones))
        print(f"\r{number + 1} of {repeats}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    report = record.Report("encryption", {"repeats": repeats, "large_ones": large_ones, "large": LARGE, "small": SMALL})
    units = ("megabytes a second", "seconds of the processor for a gigabyte", "microseconds for 1 KiB to and fro")
    for place, unit in enumerate(units):
        for is_encrypted, label in LABELS.items():
            report.rows.append(record.figure(f"{label}: {unit}", [one[place] for one in found[is_encrypted]]))
    more = [mine[1] - theirs[1] for mine, theirs in zip(found[True], found[False], strict=True)]
    report.rows.append(record.figure("seconds of the processor more for a gigabyte", more))
    report.bar("seconds of the processor more for a gigabyte", report.rows[-1].median, at_most=2.0)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
