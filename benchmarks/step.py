"""What does one step cost under each strategy, against torch DDP, and where does the time go?

    python benchmarks/step.py [--quick] [--workers 4] [--models tiny layers40] [--keep]

Processes with one torch thread each train the same model by SGD with momentum 0.9 in every way, in turn (A B C, B C A,
...), and nobody is late. Each figure is a ratio of the milliseconds of a step, ours over DDP's, turn by turn; "plain"
is the same step without any exchange. CPU time is that of the whole process. In a second run the parts of a step are
timed, each without what it calls of the others (exclusive), so that they add up to the step.

`--keep` appends the ratios to `benchmarks/step_history.jsonl` with the commit, and names what has become dearer by more
than 5 % since the entry before of the same number of workers.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import record
import workers

TIMEOUT = 120.0
"""Seconds a wait lasts at most."""
HISTORY = Path(__file__).with_name("step_history.jsonl")
DEARER = 1.05
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "all-reduce": ("all-reduce", {}),
    "quorum of all": ("quorum", {"wait_for": "all"}),
    "eager-solo": ("eager-solo", {}),
    "local-sgd": ("local-sgd", {}),
    "d-psgd": ("d-psgd", {}),
}
# name: (depth, width, examples of a batch, steps of a block). With two workers the plain step of one process takes some
# 0.65 of DDP's by this batch; that of the tiny model and of the one with many tensors is as it comes.
MODELS: dict[str, tuple[int, int, int, int]] = {
    "tiny": (1, 10, 8, 200),
    "layers40": (40, 32, 64, 30),
    "tensors400": (200, 16, 16, 8),
    "4m": (4, 1024, 96, 8),
    "25m": (6, 2048, 112, 2),
}
BARS = {"tiny": 1.7, "layers40": 1.2, "tensors400": 1.2, "4m": 1.05, "25m": 1.05}
"""At most, for eager-solo over DDP; for all-reduce it is 0.95 for every model."""


def built(name: str) -> tuple[Any, Any]:
    """A model and a batch of it."""
    import torch
    from torch import nn

    depth, width, batch, _ = MODELS[name]
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers), torch.randn(batch, width)


def worker(models: Sequence[str], turns: int, share: float) -> None:
    """One of the processes; rank 0 prints a JSON line per model and turn: seconds and CPU seconds of a step, by arm."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import quorate

    torch.set_num_threads(1)
    world = quorate.join(timeout=TIMEOUT)
    for name in models:
        steps = max(1, round(MODELS[name][3] * share))
        arms: dict[str, tuple[Any, Any]] = {}
        for arm in ("plain", "ddp", *ARMS):
            model, x = built(name)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
            if arm in ARMS:
                strategy, settings = ARMS[arm]
                quorate.distribute(optimizer, model, strategy=strategy, **settings)
            arms[arm] = (DistributedDataParallel(model) if arm == "ddp" else model), optimizer

        def block(arm: str, count: int, x: Any = x, arms: Any = arms) -> tuple[float, float]:
            model, optimizer = arms[arm]
            world.barrier()
            begin, cpu = time.perf_counter(), time.process_time()
            for _ in range(count):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            world.barrier()
            return (time.perf_counter() - begin) / count, (time.process_time() - cpu) / count

        for arm in arms:
            block(arm, 3)
        names = list(arms)
        for turn in range(turns):
            first = turn % len(names)
            measured = {arm: block(arm, steps) for arm in [*names[first:], *names[:first]]}
            if world.is_first:
                print(json.dumps({"model": name, "turn": turn, "measured": measured}), flush=True)
        for arm in ARMS:
            arms[arm][1].finish()


# -- where the time goes


class Parts:
    """Exclusive seconds of the parts of a step, in one thread: a part that calls another one pauses."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def inside(self, part: str) -> Iterator[None]:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._open.append(part)
        self._since = now
        try:
            yield
        finally:
            now = time.perf_counter()
            self.seconds[self._open.pop()] += now - self._since
            self._since = now

    def time(self, owner: Any, name: str, part: str) -> None:
        """Count the calls of a method as `part`."""
        plain = getattr(owner, name)

        @wraps(plain)
        def timed(*args: Any, **kwargs: Any) -> Any:
            import threading

            if threading.current_thread() is not threading.main_thread() or not self._open:
                return plain(*args, **kwargs)
            with self.inside(part):
                return plain(*args, **kwargs)

        setattr(owner, name, timed)


def timed_parts() -> Parts:
    """Put clocks around the methods that are the parts of a step."""
    from quorate.buckets.ready import ReadyGradients
    from quorate.means.headers import Headers
    from quorate.means.means import MeansOfAll
    from quorate.means.reducer import Reducer
    from quorate.observe.step_observer import Observers
    from quorate.observe.step_times import StepTimer, Timed
    from quorate.quorums import rounds as quorum_rounds
    from quorate.quorums.round_watch import RoundRows, RoundWatch
    from quorate.records.records import Recorder
    from quorate.replica.options_in_force import OptionsInForce
    from quorate.replica.replica import Replica
    from quorate.replica.worker_momentum import WorkerMomentum
    from quorate.wire.real.sums import Sums

    parts = Parts()
    methods: list[tuple[Any, str, Sequence[str]]] = [
        (ReadyGradients, "ready", ("begin", "complete", "pack", "_hand_on")),
        (MeansOfAll, "ready", ("write_gradient",)),
        (Headers, "header", ("look", "of_gradient", "learn", "learn_gradients", "compare", "of_sum")),
        (Reducer, "encode", ("start",)),
        (quorum_rounds.WorkerRounds, "encode", ("contribute", "_gradient")),
        (quorum_rounds.WorkerRounds, "read", ("_mean_of", "completed")),
        (WorkerMomentum, "momentum", ("ahead",)),
        (OptionsInForce, "options", ("to_give", "complete", "in_force")),
        (Timed, "wait", ("wait",)),
        (Sums, "sum", ("_add",)),
        (Replica, "update", ("update",)),
        (StepTimer, "record", ("ended", "saw", "arrived")),
        (Recorder, "record", ("step", "write", "flush", "hold")),
        (RoundRows, "record", ("applied",)),
        (RoundWatch, "observers", ("measure_gradient", "note_round", "applied", "measure_noise", "leaves_out")),
        (Observers, "observers", ("step_begins", "step_ended")),
    ]
    for owner, part, names in methods:
        for name in names:
            parts.time(owner, name, part)
    return parts


def parts_worker(models: Sequence[str], share: float) -> None:
    """One of the processes; rank 0 prints exclusive milliseconds of a step by part, for each model and arm."""
    import torch

    import quorate

    torch.set_num_threads(1)
    parts = timed_parts()
    world = quorate.join(timeout=TIMEOUT)
    for name in models:
        steps = max(2, round(3 * MODELS[name][3] * share))
        for arm, (strategy, settings) in ARMS.items():
            model, x = built(name)
            optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
            quorate.distribute(optimizer, model, strategy=strategy, **settings)
            for count in (3, steps):
                parts.seconds.clear()
                world.barrier()
                for _ in range(count):
                    with parts.inside("forward"):
                        loss = model(x).square().mean()
                    with parts.inside("backward and exchange"):
                        loss.backward()
                    with parts.inside("step"):
                        optimizer.step()
                    optimizer.zero_grad()
            optimizer.finish()
            if world.is_first:
                found = {part: 1000 * seconds / steps for part, seconds in parts.seconds.items()}
                print(json.dumps({"model": name, "arm": arm, "parts": found}), flush=True)


# -- the benchmark


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--turns", type=int, default=7, help="of all ways, for each model (7)")
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS), help="(all)")
    parser.add_argument("--keep", action="store_true", help=f"append the ratios to {HISTORY.name}")
    options = parser.parse_args()
    turns, share = (3, 0.3) if options.quick else (options.turns, 1.0)

    from rich.progress import Progress

    report = record.Report("step", {"workers": options.workers, "turns": turns, "threads": 1, "models": options.models})
    measured: dict[str, list[dict[str, list[float]]]] = {name: [] for name in options.models}
    script, listed = str(Path(__file__).resolve()), ",".join(options.models)
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("turns", total=turns * len(options.models))
        for line in workers.json_lines(script, options.workers, "--worker", listed, str(turns), str(share)):
            row = json.loads(line)
            measured[row["model"]].append(row["measured"])
            progress.update(task, advance=1, description=row["model"])
        task = progress.add_task("parts", total=len(ARMS) * len(options.models))
        parts = []
        for line in workers.json_lines(script, options.workers, "--parts", listed, str(share)):
            parts.append(json.loads(line))
            progress.update(task, advance=1, description=parts[-1]["model"])
    ratios: dict[str, dict[str, float]] = {}
    for name, rows in measured.items():
        ratios[name] = add_rows(report, name, rows, has_bars=options.workers == 2)
    report.settings["parts_ms"] = parts
    show_parts(parts)
    if options.keep:
        keep(ratios, options.workers)
    return report.show(options)


def add_rows(
    report: record.Report, name: str, rows: Sequence[dict[str, list[float]]], *, has_bars: bool
) -> dict[str, float]:
    """Add the figures of one model; returns the median ratios, by arm."""
    report.rows.append(record.figure(f"{name}: ms per step, DDP", [1000 * row["ddp"][0] for row in rows]))
    ratios = {}
    for arm in ("plain", *ARMS):
        ratio = record.figure(f"{name}: ms per step, {arm} / DDP", [row[arm][0] / row["ddp"][0] for row in rows])
        cpu = record.figure(f"{name}: CPU time, {arm} / DDP", [row[arm][1] / row["ddp"][1] for row in rows])
        report.rows += [ratio, cpu]
        ratios[arm] = round(ratio.median, 4)
    if has_bars:
        report.bar(f"{name}: all-reduce / DDP", ratios["all-reduce"], at_most=0.95)
        report.bar(f"{name}: eager-solo / DDP", ratios["eager-solo"], at_most=BARS[name])
    return ratios


def show_parts(parts: Sequence[dict[str, Any]]) -> None:
    """Print exclusive milliseconds of a step, a row for each model and arm."""
    for row in parts:
        each = sorted(row["parts"].items(), key=lambda item: -item[1])
        total = sum(row["parts"].values())
        words = ", ".join(f"{part} {milliseconds:.3f}" for part, milliseconds in each)
        print(f"{row['model']} {row['arm']}: {total:.2f} ms: {words}")


def keep(ratios: dict[str, dict[str, float]], size: int) -> None:
    """Append the ratios to the history, and name what is dearer than in the entry before."""
    entries = [json.loads(line) for line in HISTORY.read_text().splitlines()] if HISTORY.exists() else []
    before = next((entry["ratios"] for entry in reversed(entries) if entry["workers"] == size), {})
    for name, arms in ratios.items():
        for arm, ratio in arms.items():
            old = before.get(name, {}).get(arm)
            if old is not None and ratio > DEARER * old:
                print(f"dearer: {name}, {arm}: {ratio:.2f} times DDP's step, {old:.2f} before")
    machine = record.machine()
    entry = {"date": datetime.date.today().isoformat(), "commit": machine["commit"], "workers": size}
    with HISTORY.open("a") as file:
        file.write(json.dumps({**entry, "cores": machine["cores"], "ratios": ratios}) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2].split(","), int(sys.argv[3]), float(sys.argv[4]))
    elif sys.argv[1:2] == ["--parts"]:
        parts_worker(sys.argv[2].split(","), float(sys.argv[3]))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.exit(main())
