"""Two of six workers are killed: is the loss curve that of a run without a death, and do the others work at full speed?

Six workers, which mostly sleep (20 ms for each micro-batch of 8 examples), train a perceptron on labels of a random
teacher. A step has 24 micro-batches, four of each worker. Ranks 1 and 4 are killed (SIGKILL) after a third and half of
the updates. With `batch="kept"` the other four compute six micro-batches each, under all-reduce and in rounds of all;
`batch="shrunk"` goes on with four each, on the equal split. Each seed draws another model and another order, for all
arms alike.

The curve is the mean loss of the micro-batches of an update, over a window of updates. Its difference from the run
without a death with the same seed is held against the spread of seeds of such runs, the standard deviation. The rate
after the deaths is held against that of one worker before them, times the four that live.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

WORKERS, EACH, BATCH, PACE = 6, 4, 8, 0.02
WINDOW = 5
"""Updates over which a curve is smoothed."""
ARMS = {"no death": "kept", "kept": "kept", "kept, rounds of all": "kept", "shrunk": "shrunk"}
TIMEOUT = 120.0


def deaths_of(arm: str, updates: int) -> dict[int, int]:
    """The update in which each rank is killed."""
    return {} if arm == "no death" else {1: updates // 3, 4: updates // 2}


def train(arm: str, seed: int, updates: int, folder: Path) -> None:
    """One worker; it writes a line for each micro-batch: update, first example, examples, loss, time."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    import quorate

    torch.set_num_threads(1)
    world = quorate.join(timeout=TIMEOUT)
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(WORKERS * EACH * BATCH * 20, 32, generator=draw)
    labels = (inputs @ torch.randn(32, 10, generator=draw)).argmax(1)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10))
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    settings: dict[str, Any] = {"batch": "kept", "micro_batches": EACH} if ARMS[arm] == "kept" else {}
    strategy = "quorum" if "rounds" in arm else "all-reduce"
    settings |= {"wait_for": "all"} if "rounds" in arm else {}
    optimizer = quorate.distribute(plain, model, strategy, on_death="continue", **settings)
    data = TensorDataset(inputs, labels, torch.arange(len(inputs)))
    loader = quorate.loader(data, BATCH, seed=seed, share="static")
    update, passes, die_at = 0, 0, deaths_of(arm, updates).get(world.rank)
    with open(folder / f"micro-batches-{world.rank}", "w") as file:
        while update < updates:
            for x, y, numbers in loader:
                passes += 1
                optimizer.zero_grad() if settings or passes % EACH == 1 else None
                loss = nn.functional.cross_entropy(model(x), y)
                time.sleep(PACE)
                file.write(f"{update} {int(numbers[0])} {len(x)} {float(loss.detach())} {time.monotonic()}\n")
                file.flush()
                if update == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if settings:
                    loss.backward()
                    optimizer.step()
                    update += optimizer.has_updated
                elif passes % EACH:
                    with optimizer.accumulate():
                        (loss / EACH).backward()
                else:
                    (loss / EACH).backward()
                    optimizer.step()
                    update += 1
                if update == updates and optimizer.has_updated:
                    break
    optimizer.finish()


def measured(server: Any, arm: str, seed: int, updates: int) -> tuple[list[float], float, float]:
    """The smoothed losses, and the examples per second before the first death and after the last."""
    from quorate.launch.warm.request import RunRequest

    with tempfile.TemporaryDirectory() as place:
        arguments = ["--train", arm, str(seed), str(updates), place]
        script = str(Path(__file__).resolve())
        run = server.start(RunRequest(script=script, arguments=arguments, size=WORKERS, folder=Path(place)))
        run.wait(TIMEOUT)
        lines = [line.split() for path in Path(place).glob("micro-batches-*") for line in path.read_text().splitlines()]
    rows = [(int(update), int(first), int(count), float(loss), float(at)) for update, first, count, loss, at in lines]
    losses: list[dict[int, float]] = [{} for _ in range(updates)]
    for update, first, _, loss, _ in rows:
        losses[update][first] = loss
    means = [float(np.mean(list(of_update.values()))) for of_update in losses]
    curve = np.convolve(means, np.ones(WINDOW) / WINDOW, "valid").tolist()
    first_death, last_death = updates // 3, updates // 2
    return curve, rate(rows, 2, first_death), rate(rows, last_death + 1, updates)


def rate(rows: list[tuple[int, int, int, float, float]], begin: int, end: int) -> float:
    """The examples per second of the updates from `begin` to `end`, counted from the end of the one before."""
    since = max(at for update, *_, at in rows if update == begin - 1)
    inside = [(count, at) for update, _, count, _, at in rows if begin <= update < end]
    return sum(count for count, _ in inside) / (max(at for _, at in inside) - since)


def main() -> int:
    import record

    options = record.arguments(__doc__ or "").parse_args()
    updates, seeds = (24, 2) if options.quick else (100, 5)

    from rich.progress import Progress

    from quorate.launch.warm.run_server import RunServer

    settings = {"workers": WORKERS, "micro-batches": EACH, "batch": BATCH, "pace": PACE, "updates": updates}
    report = record.Report("kept_batch", {**settings, "seeds": seeds})
    curves: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    rates: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with Progress(disable=not sys.stderr.isatty()) as progress, RunServer() as server:
        task = progress.add_task("trainings", total=seeds * len(ARMS))
        for seed in range(seeds):
            for arm in ARMS:
                live = WORKERS - len(deaths_of(arm, updates))
                curve, before, after = measured(server, arm, seed, updates)
                curves[arm].append(curve)
                rates[arm].append(after / (before * live / WORKERS))
                progress.update(task, advance=1, description=arm)
    undisturbed = np.array(curves["no death"])
    spread = undisturbed.std(0, ddof=1).mean()
    report.rows.append(record.figure("no death: last loss", undisturbed[:, -1]))
    distances = {}
    for arm in ("kept", "kept, rounds of all", "shrunk"):
        distances[arm] = (np.abs(np.array(curves[arm]) - undisturbed).max(1) / spread).tolist()
        report.rows.append(record.figure(f"{arm}: last loss", np.array(curves[arm])[:, -1]))
        report.rows.append(record.figure(f"{arm}: greatest distance from no death / spread of seeds", distances[arm]))
    for arm, ratios in rates.items():
        report.rows.append(record.figure(f"{arm}: examples per second / of the live workers", ratios))
    for arm in ("kept", "kept, rounds of all"):
        report.bar(f"{arm}: greatest distance from no death / spread of seeds", max(distances[arm]), at_most=1.0)
        report.bar(f"{arm}: examples per second / of the live workers", record.median_of(rates[arm]), at_least=0.95)
    return report.show(options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.exit(main())
