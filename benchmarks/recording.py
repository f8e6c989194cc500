"""What keeping records costs: training with and without them in one run, and the cost of one row.

    python benchmarks/recording.py [--quick]

Two workers train a small MLP on the CPU; in blocks of ten steps records are kept, and are not, in turn. The bar: they
take less than 1 % of a step of 20 ms, that is less than 200 microseconds. (Stopping the time of a step goes on without
records; the second bar takes all of it, timer and row, alone. The third is how much longer a step is while
`quorate run --watch` draws progress on a terminal and a browser looks at the live page, in runs that take turns.)
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

BLOCK = 10
STEP_SECONDS = 0.020


def work(blocks: int) -> None:
    """Train on this worker; rank 0 tells the seconds of a step, by block: with records, without, with, ..."""
    import torch

    import quorate
    from quorate.observe.step_times import Timing
    from quorate.wire import current

    torch.set_num_threads(1)
    world = quorate.join(records=True)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)
    timer = current.here().context(Timing).timers[0]
    recorder = timer.recorder
    same = torch.Generator().manual_seed(0)  # on all workers
    data = torch.utils.data.TensorDataset(torch.randn(64 * BLOCK * blocks * world.size, 256, generator=same))
    took = []
    last = time.perf_counter()
    for step, (inputs,) in enumerate(quorate.loader(data, 64)):
        timer.recorder = None if step // BLOCK % 2 else recorder
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        now = time.perf_counter()
        took.append(now - last)
        last = now
    optimizer.finish()
    if world.is_first:
        print(json.dumps([sorted(took[i : i + BLOCK])[BLOCK // 2] for i in range(0, len(took), BLOCK)]), flush=True)


def microseconds_a_step(repeats: int) -> list[float]:
    """What stopping the time of one step and writing its row costs the training thread, without any training."""
    from quorate.observe.step_times import StepTimer, Timing
    from quorate.records.records import Recorder, records_of
    from quorate.wire import current
    from quorate.wire.board import MemoryBoard
    from quorate.wire.metered import Meter
    from quorate.wire.real.endpoint import Endpoint
    from quorate.wire.real.wire import RealWire

    costs = []
    place = current.Place(RealWire(Endpoint(MemoryBoard(), 0, 1)))
    with tempfile.TemporaryDirectory() as folder:
        place.context(Timing).recorder = Recorder(records_of(Path(folder), 0))
        timer, meter = StepTimer(place, "1", Meter()), Meter()
        for _ in range(repeats):
            begin = time.perf_counter()
            for _ in range(200):
                timer.arrived()
                for activity in ("encode", "wait", "decode", "update"):
                    with timer.spending(activity):
                        meter.sent("all_reduce", 1, 1)
                timer.ended()
            costs.append((time.perf_counter() - begin) / 200 * 1e6)
        place.context(Timing).recorder.close()
    return costs


def main() -> int:
    from record import Report, arguments, figure
    from watched import watched_lines
    from workers import json_lines

    parser = arguments("What keeping records costs.")
    parser.add_argument("--work", type=int, metavar="BLOCKS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work)
        return 0
    blocks, runs = (40, 2) if options.quick else (80, 5)
    report = Report("recording", {"blocks": blocks, "steps a block": BLOCK, "runs": runs, "workers": 2})
    with_them: list[float] = []
    without: list[float] = []
    watched: list[float] = []
    script = str(Path(__file__).resolve())
    for run in range(runs):
        (line,) = json_lines(script, 2, "--work", str(blocks), options=("--no-progress",))
        medians = json.loads(line)[2:]  # the first blocks warm up
        with_them += medians[0::2]
        without += medians[1::2]
        (line,) = watched_lines(script, 2, "--work", str(blocks))
        watched += json.loads(line)[2::2]
        print(f"run {run + 1} of {runs}", flush=True)
    extra = [a - b for a, b in zip(with_them, without, strict=True)]
    report.rows += [
        figure("milliseconds a step, without records", [x * 1e3 for x in without]),
        figure("milliseconds a step, with records", [x * 1e3 for x in with_them]),
        figure("microseconds a step more with records (neighbouring blocks)", [x * 1e6 for x in extra]),
        figure("milliseconds a step, with records, the display and the live page", [x * 1e3 for x in watched]),
        figure("microseconds of timer and row, alone", microseconds_a_step(10 if options.quick else 40)),
    ]
    for row, name in ((report.rows[2], "records"), (report.rows[4], "timer and row alone")):
        report.bar(f"{name}, share of a step of 20 ms", row.median / (STEP_SECONDS * 1e6), at_most=0.01)
    more = (report.rows[3].median - report.rows[1].median) / (STEP_SECONDS * 1e3)
    report.bar("display and live page, share of a step of 20 ms", more, at_most=0.01)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
