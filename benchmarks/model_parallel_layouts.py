"""What is foreseen of layouts for `model_parallel.py`: bubbles of schedules, and seconds of steps."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import record

from quorate.core.contracts import Wire
from quorate.planning.cluster import Cluster
from quorate.planning.layouts import Layout
from quorate.planning.measured import model_from
from quorate.planning.model import Model
from tests.support.processes import run_real

CASES = (("gpipe", 4, 1), ("1f1b", 4, 1), ("interleaved-1f1b", 4, 2), ("looped-bfs", 4, 2))
SPLIT = (("interleaved-zero-bubble", 4, 2), ("zbv", 4, 2), ("dualpipev", 4, 2))
_GROUP = 3
"""Layouts that run one after another between two timings."""
EXAMPLES = 8
"""Of each worker's batch, where each has one of its own."""


def bubbles(report: record.Report, forward: float, inputs: float, weights: float) -> None:
    """Each schedule's, of 4 workers and 8 and 16 micro-batches, with these seconds of passes, over its formula.

    With passes F, B (inputs) and W (weights) and p workers: idle are (p - 1) (F + B + W) under schedules with whole
    backward passes, and (p - 1) (F + B - W) where they are in two parts (ZB-H1; Qi et al. 2024, table 1), of
    v m (F + B + W) computed. The latter is of orders that are made for F = B = W. Other passes make other paths through
    the same order the longest (`longest_path`), which is the paper's where they are equal (as the tests play them).
    """
    from quorate.sharding.stages.clock import clock
    from quorate.sharding.stages.orders import order

    report.rows.append(record.figure("a block's passes: forward, ms", [1000 * forward]))
    report.rows.append(record.figure("a block's passes: gradient of the input, ms", [1000 * inputs]))
    report.rows.append(record.figure("a block's passes: gradient of the weights, ms", [1000 * weights]))
    passes = forward, inputs, weights
    for name, workers, chunks in (*CASES, *SPLIT):
        path = longest_path(name, *passes) if (name, workers, chunks) in SPLIT else sum(passes)
        for microbatches in (8, 16):
            times = [[seconds] * (workers * chunks) for seconds in passes]
            played = clock(order(name, workers, chunks, microbatches), *times)
            idle = (workers - 1) * path
            formula = idle / (chunks * microbatches * sum(passes) + idle)
            found = sum(played.bubble) / workers
            where = f"{name}, {workers} workers, {microbatches} micro-batches"
            report.rows.append(record.figure(f"{where}: bubble, played", [found]))
            report.bar(f"{where}: |played / formula - 1|", abs(found / formula - 1), at_most=0.05)


def longest_path(name: str, forward: float, inputs: float, weights: float) -> float:
    """Seconds for which a worker idles, for each worker but one, in an order with passes in two parts.

    Forward passes reach the last worker after p - 1 of them, and gradients come back to the first by as many passes of
    inputs; where a worker waits for its first gradient, it has passes of weights to make meanwhile. With F = B = W each
    of these is the formula of the paper. For ZBV it is exact where gradients of inputs take the longest, and else, as
    for DualPipeV, a lower bound (tests/unit/sharding/stages/test_clock.py plays random passes).
    """
    filling, draining, waiting = forward, inputs, forward + inputs - weights
    return max({"zbv": (filling, draining), "dualpipev": (filling, waiting)}.get(name, (filling, draining, waiting)))


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
    small = max(run_real(2, partial(exchanged, 16, 101)))
    large = max(run_real(2, partial(exchanged, 1 << 20, 31)))
    return small / 2, 4 * (1 << 20) / max(large - small, 1e-9)


def _timed(script: Path, workers: int, cores: int) -> tuple[Model, Cluster]:
    from quorate.cli.planner.trials import timed
    from quorate.launch.warm.run_server import RunServer

    latency, bandwidth = link()
    arguments = [json.dumps({"examples": EXAMPLES})]
    with RunServer() as server:
        told = timed(str(script), arguments, at_once=min(cores, workers), crowd=workers / cores, server=server)
    cluster = Cluster(workers=workers, memory=2**40, bandwidth=bandwidth, latency=latency, cores=cores)
    return model_from(told, EXAMPLES * workers, workers), cluster


def foreseen(
    report: record.Report, script: Path, run: Callable[[Any, int], float], *, turns: int, sizes: Sequence[int]
) -> None:
    """Layouts of 2 and 4 workers: `run(layout, examples)` gives the seconds of a step. Blocks and the link are timed
    before and behind each few layouts, as a machine that others use is faster in some minutes than in others; what is
    foreseen is the mean of both."""
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
        timed_now = partial(_timed, script, workers, cores)
        for turn in range(turns):  # what changes on the machine meets what is foreseen, too
            before, begun = timed_now(), 0
            first.append(plan(*before, ways=("all-reduce",), as_fast=0.05).best[0].layout)
            while begun < len(dict.fromkeys([*listed, *first])):
                group = list(dict.fromkeys([*listed, *first]))[begun : begun + _GROUP]
                begun += len(group)
                for layout in group:
                    examples = EXAMPLES * workers // (layout.replicas * layout.shards)
                    taken.setdefault(layout, []).append(run(layout, examples))
                behind = timed_now()
                for layout in group:
                    each = [predict(layout, *one).seconds for one in (before, behind)]
                    said.setdefault(layout, []).append(sum(each) / 2)
                    print(
                        f"turn {turn + 1}, {workers} workers, {layout.in_words}: {each[0]:.3f} s foreseen before and "
                        f"{each[1]:.3f} s behind, {taken[layout][-1]:.3f} s taken",
                        flush=True,
                    )
                before = behind
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
