"""What is foreseen of layouts for `model_parallel.py`: bubbles of schedules, and seconds of steps."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import record

from quorate.core.contracts import Wire
from quorate.planning.layouts import Layout
from tests.support.processes import run_real

CASES = (("gpipe", 4, 1), ("1f1b", 4, 1), ("interleaved-1f1b", 4, 2), ("looped-bfs", 4, 2))
SPLIT = (("interleaved-zero-bubble", 4, 2), ("zbv", 4, 2), ("dualpipev", 4, 2))
EXAMPLES = 8
"""Of each worker's batch, where each has one of its own."""


def bubbles(report: record.Report, forward: float, inputs: float, weights: float) -> None:
    """Each schedule's, of 4 workers and 8 and 16 micro-batches, with these seconds of passes, over its formula.

    With passes F, B (inputs) and W (weights) and p workers: idle are (p - 1) (F + B + W) under schedules with whole
    backward passes, and (p - 1) (F + B - W) where they are in two parts (ZB-H1; Qi et al. 2024, table 1), of
    v m (F + B + W) computed.
    """
    from quorate.sharding.stages.clock import clock
    from quorate.sharding.stages.orders import order

    report.rows.append(record.figure("a block's passes: forward, ms", [1000 * forward]))
    report.rows.append(record.figure("a block's passes: gradient of the input, ms", [1000 * inputs]))
    report.rows.append(record.figure("a block's passes: gradient of the weights, ms", [1000 * weights]))
    for name, workers, chunks in (*CASES, *SPLIT):
        for microbatches in (8, 16):
            equal = [1.0] * (workers * chunks)
            times = [[seconds * x for x in equal] for seconds in (forward, inputs, weights)]
            played = clock(order(name, workers, chunks, microbatches), *times)
            whole = forward + inputs + weights
            idle = (workers - 1) * (forward + inputs - weights if (name, workers, chunks) in SPLIT else whole)
            formula = idle / (chunks * microbatches * whole + idle)
            found = sum(played.bubble) / workers
            where = f"{name}, {workers} workers, {microbatches} micro-batches"
            report.rows.append(record.figure(f"{where}: bubble, played", [found]))
            report.bar(f"{where}: |played / formula - 1|", abs(found / formula - 1), at_most=0.05)


def exchanged(numbers: int, repeats: int, wire: Wire) -> float:
    """Median seconds of an all-reduce behind a millisecond of computing, as in a step: workers do not come at once."""
    import torch

    torch.set_num_threads(1)
    x, y, seconds = torch.ones(numbers), torch.ones(320, 320), []
    for _ in range(repeats):
        wire.barrier().wait()
        y @ y
        begin = time.perf_counter()
        wire.all_reduce(x).wait()
        seconds.append(time.perf_counter() - begin)
    return sorted(seconds)[repeats // 2]


def link() -> tuple[float, float]:
    """Latency (seconds) and bandwidth (bytes a second) of a worker, as rings of two would have them."""
    from functools import partial

    small = max(run_real(2, partial(exchanged, 16, 101)))
    large = max(run_real(2, partial(exchanged, 1 << 20, 31)))
    return small / 2, 4 * (1 << 20) / max(large - small, 1e-9)


def foreseen(
    report: record.Report, script: Path, run: Callable[[Any, int], float], *, turns: int, sizes: Sequence[int]
) -> None:
    """Layouts of 2 and 4 workers: `run(layout, examples)` gives the seconds of a step."""
    from quorate.cli.planner.timed import timed
    from quorate.planning.cluster import Cluster
    from quorate.planning.measured import model_from
    from quorate.planning.prediction import predict
    from quorate.planning.search import plan

    some: dict[int, list[Layout]] = {
        2: [
            Layout(replicas=2, strategy="all-reduce"),
            Layout(shards=2, zero=2),
            Layout(shards=2, zero=3),
            Layout(tensor=2),
            Layout(stages=2, schedule="1f1b", microbatches=4),
            Layout(stages=2, schedule="gpipe", microbatches=8),
            Layout(stages=2, schedule="interleaved-1f1b", chunks=2, microbatches=4),
        ],
        4: [
            Layout(replicas=4, strategy="all-reduce"),
            Layout(replicas=2, shards=2, zero=3, strategy="all-reduce"),
            Layout(replicas=2, tensor=2, strategy="all-reduce"),
            Layout(replicas=2, stages=2, schedule="1f1b", microbatches=4, strategy="all-reduce"),
            Layout(stages=4, schedule="1f1b", microbatches=8),
            Layout(shards=4, zero=3),
            Layout(stages=2, tensor=2, schedule="1f1b", microbatches=4),
            Layout(stages=2, shards=2, zero=2, schedule="1f1b", microbatches=4),
            Layout(shards=2, tensor=2, zero=3),
        ],
    }
    cores = len(os.sched_getaffinity(0))
    medians = []
    for workers, listed in some.items():
        if workers not in sizes:
            continue
        taken: dict[Layout, list[float]] = {}
        said: dict[Layout, list[float]] = {}
        first: list[Layout] = []
        for turn in range(turns):  # what changes on the machine meets what is foreseen, too
            latency, bandwidth = link()
            told = timed(
                str(script), [json.dumps({"examples": EXAMPLES})], at_once=min(cores, workers), crowd=workers / cores
            )
            model = model_from(told, EXAMPLES * workers, workers)
            cluster = Cluster(workers=workers, memory=2**40, bandwidth=bandwidth, latency=latency, cores=cores)
            first.append(plan(model, cluster, ways=("all-reduce",), as_fast=0.05).best[0].layout)
            for layout in dict.fromkeys([*listed, *first]):
                examples = EXAMPLES * workers // (layout.replicas * layout.shards)
                taken.setdefault(layout, []).append(run(layout, examples))
                said.setdefault(layout, []).append(predict(layout, model, cluster).seconds)
                print(
                    f"turn {turn + 1}, {workers} workers, {layout.in_words}: {said[layout][-1]:.3f} s foreseen, "
                    f"{taken[layout][-1]:.3f} s taken",
                    flush=True,
                )
        for layout, seconds in taken.items():
            name = f"{workers} workers, {layout.in_words}"
            ratios = [one / other for one, other in zip(said[layout], seconds, strict=True)]
            medians.append(sorted(ratios)[len(ratios) // 2])
            report.rows.append(record.figure(f"{name}: s a step", seconds))
            report.rows.append(record.figure(f"{name}: foreseen / taken", ratios))
        middle = {layout: sorted(seconds)[len(seconds) // 2] for layout, seconds in taken.items()}
        worst = max(middle[layout] for layout in first) / min(middle.values())
        report.bar(f"{workers} workers: first choice over the best taken", worst, at_most=1.1)
    within = sum(abs(ratio - 1) <= 0.15 for ratio in medians)
    report.bar(f"layouts of {len(medians)} foreseen within 15 %", within, at_least=12)
