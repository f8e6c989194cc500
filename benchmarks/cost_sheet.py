"""Is the sum of a cost sheet's lines the time of a step, and its memory what a process holds?

    python benchmarks/cost_sheet.py [--quick] [--turns 3] [--workloads digits stdlib-bytes]

`quorate doctor --cost` and a plain run of the same workload take turns, each alone and with one thread. The plain run
times its steps and looks at nothing else. Memory: bytes of the C library that were allocated and not freed, from before
the model is made until the end of a forward pass, and until the end of a step. The sheet has for the former parameters,
the optimizer's state and activations, and for the latter parameters, the state and gradients. Bars: each step within
15%, and each memory within 5%. Small workloads have no bar of memory: they hold less than a megabyte.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import record

WORKLOADS = ("digits", "hyperplane", "stdlib-functions", "stdlib-bytes", "layers")
TRAIN = Path(__file__).resolve().parents[1] / "src" / "quorate" / "compare" / "train_workload.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TIMEOUT = 240.0
WARM_UP, SECONDS, FEWEST = 3, 5.0, 6
OFF_SECONDS, OFF_BYTES = 0.15, 0.05
WIDTH, BLOCKS, BATCH = 512, 8, 32


def script_of(workload: str) -> list[str]:
    """Return a script and its arguments."""
    if workload == "layers":
        return [str(Path(__file__).resolve()), "--train"]
    return [str(TRAIN), workload, "--endless"]


def train(steps: int, *, looks: bool) -> dict[str, int]:
    """Train perceptrons with AdamW; return bytes in use at the end of a forward pass and of a step."""
    import torch
    from torch import nn

    import quorate
    from quorate.observe.memory_use import in_use

    def allocated() -> int:
        gc.collect()
        return in_use().allocated or 0

    def made(blocks: int) -> tuple[nn.Module, Any]:
        widths = [(WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH)] * blocks
        model = nn.Sequential(*(layer for pair in widths for layer in (nn.Linear(*pair), nn.ReLU())))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(model: nn.Module, optimizer: Any) -> int:
        loss = model(x).square().mean()
        bytes_forward = allocated() if looks else 0
        loss.backward()
        optimizer.step()
        return bytes_forward

    torch.manual_seed(0)
    x = torch.randn(BATCH, WIDTH)
    if not looks:
        quorate.join()
        model, optimizer = made(BLOCKS)
        optimizer = quorate.distribute(optimizer, model)
        for _ in range(steps):
            step(model, optimizer)
            optimizer.zero_grad()
        return {}
    small, its = made(1)  # what torch loads with a first training is no model's
    for _ in range(2):
        step(small, its)
    before = allocated()
    model, optimizer = made(BLOCKS)
    step(model, optimizer)
    optimizer.zero_grad()
    forward = step(model, optimizer)
    return {"forward": forward - before, "step": allocated() - before}


def plain(workload: str) -> float:
    """Return the median seconds of a step of a run in which nothing else is looked at."""
    words = [sys.executable, str(Path(__file__).resolve()), "--plain", *script_of(workload)]
    ran = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if ran.returncode:
        raise SystemExit(f"{workload}: {ran.stderr}")
    return float(json.loads(ran.stdout.splitlines()[-1])["seconds"])


def run_plain(script: list[str]) -> None:
    """Run a script alone, print the median seconds of its steps, and end it."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from quorate.launch.warm.measuring import live_alone

    ends: list[float] = []

    def stepped(*_: Any) -> None:
        ends.append(time.perf_counter())
        if len(ends) > WARM_UP + FEWEST and ends[-1] - ends[WARM_UP] > SECONDS:
            steps = [end - begin for begin, end in zip(ends[WARM_UP:], ends[WARM_UP + 1 :], strict=False)]
            print(json.dumps({"seconds": median(steps)}), flush=True)
            os._exit(0)

    register_optimizer_step_post_hook(stepped)
    live_alone(script[0], script[1:])


def sheet(workload: str) -> dict[str, Any]:
    """Return the cost sheet of a workload."""
    words = [sys.executable, "-m", "quorate.cli.main", "doctor", "--cost", "--json", *script_of(workload)]
    ran = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if ran.returncode:
        raise SystemExit(f"{workload}: {ran.stderr}")
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--turns", type=int, default=3, help="of sheet and plain run (3)")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), help="a workload, or layers (five of them)")
    options = parser.parse_args()
    turns, chosen = (1, ["digits", "layers"]) if options.quick else (options.turns, options.workloads)

    from rich.progress import Progress

    report = record.Report("cost_sheet", {"workloads": chosen, "turns": turns, "threads": 1})
    seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"sheet": [], "plain": []})
    last: dict[str, Any] = {}
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("turns", total=turns * len(chosen))
        for _ in range(turns):
            for workload in chosen:
                seconds[workload]["plain"].append(plain(workload))
                last[workload] = sheet(workload)
                seconds[workload]["sheet"].append(last[workload]["step"]["total"])
                progress.update(task, advance=1, description=workload)
    for workload in WORKLOADS:
        off = None
        if workload in seconds:
            for kind, values in seconds[workload].items():
                report.rows.append(record.figure(f"{workload}: ms of a step, {kind}", [1e3 * x for x in values]))
            off = abs(median(seconds[workload]["sheet"]) / median(seconds[workload]["plain"]) - 1)
        report.bar(f"{workload}: step, sheet against plain run", off, at_most=OFF_SECONDS)
    add_memory(report, last.get("layers"))
    return report.show(options)


def add_memory(report: record.Report, answer: dict[str, Any] | None) -> None:
    """Hold the memory of the sheet against that of a process."""
    measured = {}
    if answer is not None:
        words = [sys.executable, str(Path(__file__).resolve()), "--memory"]
        ran = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT, check=True)
        measured = json.loads(ran.stdout.splitlines()[-1])
    for moment, kind in (("forward", "activations"), ("step", "gradients")):
        off = None
        if answer is not None:
            held = sum(answer["memory"][part] for part in ("parameters", "optimizer", kind))
            report.rows.append(record.figure(f"layers: MB at the end of a {moment}, sheet", [held / 1e6]))
            report.rows.append(record.figure(f"layers: MB at the end of a {moment}, process", [measured[moment] / 1e6]))
            off = abs(held / measured[moment] - 1)
        report.bar(f"layers: memory at the end of a {moment}", off, at_most=OFF_BYTES)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--plain"]:
        run_plain(sys.argv[2:])
    elif sys.argv[1:2] == ["--train"]:
        train(1 << 30, looks=False)
    elif sys.argv[1:2] == ["--memory"]:
        print(json.dumps(train(2, looks=True)))
    else:
        sys.exit(main())
