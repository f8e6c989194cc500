"""How long do the others stand still when one worker of four stops for five seconds, and then goes on?

Four workers with steps of 20 ms. One of them stops itself with SIGSTOP, all its threads at once, and gets SIGCONT from
outside five seconds later. It stops

- between two exchanges: where a step of the training loop begins;
- inside an exchange: another worker's round has begun, its gradient has been asked for, and it does not answer;
- as the one that leads (rank 0), between two exchanges;
- as the one that leads, inside an exchange: it has everyone's gradients and is about to tell the first one the result.

The figure is the longest time between two steps of any worker that was not stopped. With torch DDP that is the length
of the stop. At the end all replicas must be equal, bit for bit.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

WORKERS = 4
PACE = 0.02
BATCH = 16
AT = 40
"""Steps that the worker takes before it stops."""


@dataclass(frozen=True)
class Place:
    """Who stops, and where."""

    name: str
    rank: int
    inside: str | None
    """The kind of message that it is about to send; None: between two exchanges."""
    at_most: float
    """Seconds that the others may stand still."""


PLACES = (
    Place("between exchanges", 2, None, 0.2),
    Place("inside an exchange", 2, "give", 1.0),
    Place("the leader, between exchanges", 0, None, 1.0),
    Place("the leader, inside an exchange", 0, "round", 1.0),
)
STOPPED = "stopped"
"""The file in the run's folder that holds the process id of the worker that stops."""


def worker(stops: int, inside: str, examples: int) -> None:
    """One of the workers: rank `stops` stops itself, once."""
    import hashlib

    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    import quorate
    from quorate.wire import current

    world = quorate.join()
    steps, is_stopped = 0, False

    def stop() -> None:
        nonlocal is_stopped
        is_stopped = True
        with open(Path(os.environ["QUORATE_RUN"], STOPPED), "w") as file:
            file.write(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)

    def is_due() -> bool:
        return world.rank == stops and steps >= AT and not is_stopped

    if inside:
        place = current.here()
        place.wire = stopping_wire(place.wire, lambda kind: stop() if kind == inside and is_due() else None)
    random = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(examples, 64, generator=random), torch.randn(examples, 1, generator=random))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model)
    for inputs, targets in quorate.loader(data, BATCH):
        if not inside and is_due():
            stop()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    optimizer.finish()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    quorate.log(digest=digest.hexdigest(), stopped=is_stopped)


def stopping_wire(wire, sends: Callable[[object], None]):  # type: ignore[no-untyped-def]
    """`wire`; right before a message goes out, `sends` is told of its kind."""
    from quorate.wire.metered import Wrapped

    class Stopping(Wrapped):
        def _again(self, inner):  # type: ignore[no-untyped-def]
            return Stopping(inner)

        def _call(self, operation, launch, given, peer):  # type: ignore[no-untyped-def]
            if operation == "send" and peer != self.rank:
                sends(given.header.get("kind"))
            return launch()

    return Stopping(wire)


class Alarm:
    """Wakes the worker that has stopped, `seconds` after it did; looks when it is called."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: float | None = None
        self._pid = 0

    def __call__(self, folder: Path) -> None:
        if self._pid == 0:
            file = folder / STOPPED
            if file.exists() and (text := file.read_text()):
                self._pid, self._until = int(text), time.monotonic() + self._seconds
        elif self._until is not None and time.monotonic() >= self._until:
            self._until = None
            os.kill(self._pid, signal.SIGCONT)


def main() -> int:
    import readings
    import record
    from trainings import DDP, QUORUM, SOLO, Runs, Setting, in_milliseconds

    parser = record.arguments(__doc__ or "")
    parser.add_argument("--repeats", type=int, default=5, help="of every run (5)")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long the worker is stopped (5)")
    options = parser.parse_args()
    repeats, seconds = (1, 2.0) if options.quick else (options.repeats, options.seconds)
    batches = round(WORKERS * AT + (WORKERS - 1) * (seconds + 1.5) / PACE)
    setting = Setting(workers=WORKERS, steps=batches // WORKERS, batch=BATCH, pace=in_milliseconds(PACE))
    sides = (SOLO,) if options.quick else (SOLO, QUORUM)

    report = record.Report(
        "stalled", {"workers": WORKERS, "pace": PACE, "seconds stopped": seconds, "repeats": repeats}
    )
    silences: dict[tuple[str, str], list[float]] = {}
    unequal = []
    with Runs(repeats * (1 + len(sides) * len(PLACES))) as runs:
        for seed in range(repeats):
            for place, side in [(PLACES[0], DDP), *((place, side) for place in PLACES for side in sides)]:
                # DDP's workers compute equally many: it needs no more than the steps until the stop, and some after it.
                examples = BATCH * (WORKERS * (AT + 40) if side is DDP else batches)
                told = ["--worker", str(place.rank), place.inside or "", str(examples)]
                run = runs.script(str(Path(__file__).resolve()), told, side, setting, seed, attend=Alarm(seconds))
                said = [one.logs[-1].values for one in run.ranks]
                if not said[place.rank]["stopped"]:
                    raise SystemExit(f"{side.name}: rank {place.rank} came to no place to stop at, {place.name}")
                digests = {str(values["digest"])[:16] for values in said}
                print(f"{side.name}, {place.name}: replicas {', '.join(sorted(digests))}", flush=True)
                if len(digests) > 1:
                    unequal.append(f"{side.name}, {place.name}, seed {seed}")
                silence = readings.longest_silence(run, place.rank)
                silences.setdefault((side.name, place.name), []).append(silence)
    for (side_name, place_name), values in silences.items():
        name = f"others' longest gap, seconds: {side_name}, {place_name}"
        report.rows.append(record.figure(name, values))
        limit = next(place.at_most for place in PLACES if place.name == place_name)
        if side_name != DDP.name:
            report.bar(name, report.rows[-1].median, at_most=limit)
    report.settings["replicas unequal"] = unequal
    report.bar("runs that ended with unequal replicas", float(len(unequal)), at_most=0.0)
    return report.show(options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        sys.exit(main())
