"""Do published figures of codecs hold here: in bytes, in steps to a loss, and in seconds over a modelled link?

- PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019): 243, 136 and 72 times fewer bytes for the gradient of ResNet18
  (CIFAR) with rank 1, 2 and 4. Counted on its parameters' shapes, and of rank 2 on a wire as well.
- QSGD (Alistarh et al., NeurIPS 2017): ResNet152 to full accuracy 1.8 times faster than with 32 bits, on 16 GPUs. Here
  with 4 bits: steps to a loss, times the seconds of a step of 8 and 16 workers whose gradient is ResNet18's.
- ATOMO (Wang et al., NeurIPS 2018): of singular values, up to 2 and 3 times faster than QSGD and TernGrad. Here at as
  many bytes (of TernGrad, and of QSGD with 2 and with 4 bits): steps to a loss, seconds where nothing but the network
  counts, and how long its decomposition takes beside the others' encoding.

Steps are those of four virtual workers with plain SGD, on two small tasks (`codec_trainings`); each way at the best of
its rates (chosen with one seed), to the held-out loss to which dense sums come in 100 steps at the best of theirs.
Seconds of a step are reckoned: a backward pass whose first part leaves when it is there, and a link that sends one
exchange after the other, so that they depend on this machine in nothing. Encoding and decoding take no time in them;
what encoding takes is a ratio of the processor's seconds, measured in turns.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import record
import torch
from codec_trainings import Told, Way, model_of, shapes_of_resnet18, trained

from quorate.buckets.flat import layout_of
from quorate.core.codec import Codec, Draw, numel_of, shapes_in
from quorate.core.contracts import Wire
from quorate.core.durations import FORWARD_SHARE
from quorate.core.vectors import Flat, Layout
from quorate.means.power_sgd import PowerSGD
from quorate.means.reduction import Reduction, reduction_of
from quorate.wire.cut import all_reduce_bytes
from quorate.wire.metered import Meter, Metered
from quorate.wire.virtual.network import Network, demand_of
from quorate.wire.virtual.world import VirtualWorld

STEPS, MOST, WORKERS = 100, 4, 4
RATES = (1.6, 0.8, 0.4, 0.2, 0.1)
TASKS = ("digits", "text")
DENSE = Way(name="dense")
QSGD4 = Way(name="qsgd, 4 bits", settings={"compress": "qsgd", "levels": 7, "reduce": "gather"})
QSGD2 = Way(name="qsgd, 2 bits", settings={"compress": "qsgd", "levels": 1, "reduce": "gather"})
TWO_PHASE = Way(name="qsgd, 4 bits, two-phase", settings={"compress": "qsgd", "levels": 7, "reduce": "two-phase"})
TERNGRAD = Way(name="terngrad", settings={"compress": "terngrad", "reduce": "gather"})
ATOMO = {rank: Way(name=f"atomo, rank {rank}", settings={"compress": "atomo", "rank": rank}) for rank in (1, 2, 4, 8)}
POWER_SGD = Way(name="power-sgd, rank 2", settings={"compress": "power-sgd", "rank": 2, "start": 0})
ARC = Way(name="arc-top-k", settings={"compress": "arc-top-k"})
ARC_ALONE = Way(name="arc-top-k, momentum 0", settings={"compress": "arc-top-k", "momentum": 0.0})
TOP_K = Way(name="top-k, as many bytes", settings={"compress": "top-k", "density": 0.058, "reduce": "gather"})
"""Among four workers, for matrices of 128 by 128."""
SKETCHED = (ARC, ARC_ALONE, TOP_K)
WAYS = (QSGD4, TWO_PHASE, QSGD2, TERNGRAD, *ATOMO.values(), POWER_SGD, *SKETCHED)
PAIRS = (
    *((ATOMO[rank], other, None) for rank in (1, 2) for other in (QSGD2, TERNGRAD)),
    *((ATOMO[4], QSGD2, 2.0), (ATOMO[4], TERNGRAD, 3.0), (ATOMO[8], QSGD4, 2.0)),
)
"""ATOMO, what it is held against, and by how much it was faster, at most, as published; None: with fewer bytes."""
TIMES_FEWER = {1: 243.0, 2: 136.0, 4: 72.0}
"""By PowerSGD's rank: as published."""
RATIOS = (0.25, 0.5, 1.0, 1.5, 2.0, 4.0)
HELD_AT = 2.0
"""Seconds of a dense exchange alone, over those of forward and backward."""


# -- bytes


def resnet18(reduction: Reduction) -> Layout:
    """Its gradient, laid out as `distribute` does."""
    tensors = [(name, torch.zeros(shape)) for name, shape in shapes_of_resnet18()]
    return layout_of(tensors, header=1, coded=None if reduction.codec is None else reduction.is_coded)


def times_fewer(rank: int) -> float:
    """A dense sum's bytes over PowerSGD's, by their formulas."""
    reduction = reduction_of({"compress": "power-sgd", "rank": rank, "start": 0})
    layout, size = resnet18(reduction), 16
    dense = sum(all_reduce_bytes(part.numel * part.dtype.itemsize, size) for part in layout.parts)

    def task(wire: Wire) -> int:
        reducer = reduction.reducer(layout, wire, 0)
        assert isinstance(reducer, PowerSGD)
        return reducer.wire_bytes(size)

    return dense / VirtualWorld(1).run(task)[0]


def times_fewer_on_a_wire(rank: int) -> float:
    """The same, of one sum of two virtual workers, as it is sent."""

    def task(wire: Wire) -> tuple[int, int]:
        sent = []
        for settings in ({}, {"compress": "power-sgd", "rank": rank, "start": 0}):
            meter, reduction = Meter(), reduction_of(settings)
            layout = resnet18(reduction)
            reduction.reducer(layout, Metered(wire, meter), 0).start(Flat.zeros(layout)).wait()
            sent.append(sum(meter.bytes_out.values()))
        return sent[0], sent[1]

    dense, small = VirtualWorld(2).run(task)[0]
    return dense / small


# -- seconds


def step_seconds(way: Way, size: int, network: Network, compute: float) -> float:
    """Of a step in which the gradient of ResNet18 is agreed on: parts leave as backward has filled them, in order."""
    reduction = reduction_of(way.settings)
    layout, codec = resnet18(reduction), reduction.codec
    shapes, total = shapes_in(layout), sum(part.numel for part in layout.parts)
    done, free, second = 0, 0.0, 0.0
    for number, part in enumerate(layout.parts):
        done += part.numel
        there = compute * (FORWARD_SHARE + (1 - FORWARD_SHARE) * done / total)
        if number in shapes and isinstance(codec, Codec):
            nbytes = codec.wire_bytes(shapes[number])
            assert nbytes is not None
            if way.settings["reduce"] == "two-phase":
                takes = demand_of(network, "all_to_all", [nbytes] * size).seconds
                second += demand_of(network, "all_gather", [-(-nbytes // size)] * size).seconds
            else:
                takes = demand_of(network, "all_gather", [nbytes] * size).seconds
        else:
            takes = demand_of(network, "all_reduce", [part.numel * part.dtype.itemsize] * size).seconds
        free = max(free, there) + takes
    return max(free, compute) + second


def faster(way: Way, size: int, ratio: float) -> float:
    """Seconds of a dense step over those of this way, where a dense exchange alone takes `ratio` of the computing."""
    nbytes = 4 * sum(math.prod(shape) for _, shape in shapes_of_resnet18())
    network = Network(latency=0.0, bandwidth=all_reduce_bytes(nbytes, size) / ratio)
    return step_seconds(DENSE, size, network, 1.0) / step_seconds(way, size, network, 1.0)


# -- steps


def steps_of(task: str, ways: Sequence[Way], seeds: int, rates: Sequence[float]) -> dict[str, list[Told]]:
    """By way, of every seed, each at the best of its rates; the first is dense, which makes `STEPS`."""
    found: dict[str, list[Told]] = {}
    first = {rate: trained(task, DENSE, rate, 0, STEPS) for rate in rates}
    best = min(rates, key=lambda rate: first[rate].losses[-1][1])
    found[DENSE.name] = [first[best], *(trained(task, DENSE, best, seed, STEPS) for seed in range(1, seeds))]
    targets = [one.losses[-1][1] for one in found[DENSE.name]]
    print(f"{task}, dense: rate {best:g}, loss {targets[0]:.4f}", file=sys.stderr, flush=True)
    for way in ways:
        rate, most = rates[0], MOST * STEPS
        least: Told | None = None
        for other in rates:
            one = trained(task, way, other, 0, most, until=targets[0])
            there = one.steps_to(targets[0])
            if least is None or (there is not None and there < most):
                rate, least, most = other, one, there or most
        assert least is not None
        rest = [trained(task, way, rate, seed, MOST * STEPS, until=targets[seed]) for seed in range(1, seeds)]
        found[way.name] = [least, *rest]
        said = [one.steps_to(target) for one, target in zip(found[way.name], targets, strict=True)]
        print(f"{task}, {way.name}: rate {rate:g}, steps {said}", file=sys.stderr, flush=True)
    return found


def needed(told: Sequence[Told], dense: Sequence[Told]) -> list[float] | None:
    """Steps to the loss of dense sums, by seed; None where one seed does not come to it."""
    steps = [one.steps_to(other.losses[-1][1]) for one, other in zip(told, dense, strict=True)]
    return None if None in steps else [float(step) for step in steps if step is not None]


def encoding_seconds(task: str, ways: Sequence[Way], turns: int) -> dict[str, list[float]]:
    """Of the processor, to encode one gradient of the task's model, in turns; the first one warms up."""
    sides: dict[str, tuple[Codec, tuple[tuple[int, ...], ...], torch.Tensor]] = {}
    for way in ways:
        reduction = reduction_of(way.settings)
        shapes = tuple(tuple(p.shape) for n, p in model_of(task, 0).named_parameters() if reduction.is_coded(n, p))
        assert isinstance(reduction.codec, Codec)
        sides[way.name] = reduction.codec, shapes, torch.randn(numel_of(shapes))
    found: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns + 1):
        for name, (codec, shapes, x) in sides.items():
            begin = time.thread_time()
            codec.encode(x, shapes, {}, Draw(round=turn))
            if turn:
                found[name].append(time.thread_time() - begin)
    return found


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=3, help="of every training (3)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, help="both, unless told")
    names = [way.name for way in WAYS]
    parser.add_argument("--ways", nargs="+", choices=names, help="those whose steps are counted; all, unless told")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tasks, seeds, rates = (TASKS[:1], 1, (0.4,)) if options.quick else (options.tasks, options.seeds, RATES)
    ways = (QSGD4, TERNGRAD, ATOMO[4]) if options.quick else WAYS
    if options.ways is not None:
        ways = tuple(way for way in WAYS if way.name in options.ways)
    about = {"workers": WORKERS, "steps": STEPS, "rates": rates, "seeds": seeds, "tasks": list(tasks)}
    report = record.Report("published_codecs", about)
    for rank, published in TIMES_FEWER.items():
        fewer = times_fewer(rank)
        report.rows.append(record.figure(f"power-sgd, rank {rank}, ResNet18: times fewer bytes", [fewer]))
        report.bar(f"power-sgd, rank {rank}: off from {published:g} by", abs(fewer / published - 1), at_most=0.01)
    report.rows.append(record.figure("power-sgd, rank 2, ResNet18: times fewer, on a wire", [times_fewer_on_a_wire(2)]))
    for size in (8, 16):
        for way, ratio in itertools.product((QSGD4, TWO_PHASE), RATIOS):
            name = f"{size} workers, {ratio:g}: seconds a step, dense / {way.name}"
            report.rows.append(record.figure(name, [faster(way, size, ratio)]))
    steps: dict[tuple[str, str], list[float] | None] = {}
    nbytes: dict[tuple[str, str], float] = {}
    for task in tasks:
        told = steps_of(task, ways, seeds, rates)
        for name, found in told.items():
            nbytes[task, name] = statistics.fmean(one.nbytes for one in found)
            steps[task, name] = needed(found, told[DENSE.name])
            report.rows.append(record.figure(f"{task}, {name}: bytes a worker and step", [nbytes[task, name]]))
            if (there := steps[task, name]) is not None:
                report.rows.append(record.figure(f"{task}, {name}: steps to dense's loss", there))
        encoding = encoding_seconds(task, (QSGD4, TERNGRAD, ATOMO[4]), 5 if options.quick else 15)
        for way in (TERNGRAD, ATOMO[4]):
            pairs = zip(encoding[way.name], encoding[QSGD4.name], strict=True)
            report.rows.append(record.figure(f"{task}: encoding, {way.name} / {QSGD4.name}", [a / b for a, b in pairs]))
    for task in tasks:
        for mine, other, published in PAIRS:
            ours, theirs = steps.get((task, mine.name)), steps.get((task, other.name))
            name = f"{task}: seconds to a loss over the network, {other.name} / {mine.name}"
            measured: float | None = None
            if ours is not None and theirs is not None:
                a, b = nbytes[task, mine.name], nbytes[task, other.name]
                report.rows.append(record.figure(name, [y * b / (x * a) for x, y in zip(ours, theirs, strict=True)]))
                measured = report.rows[-1].median
            if published is not None:
                report.bar(name, measured, at_least=published)
        for way, size in itertools.product((QSGD4, TWO_PHASE), (8, 16)):
            there = steps.get((task, way.name))
            for ratio in RATIOS if there is not None else ():
                name = f"{task}, {size} workers, {ratio:g}: seconds to a loss, dense / {way.name}"
                once, dense = faster(way, size, ratio), steps[task, DENSE.name] or []
                report.rows.append(record.figure(name, [once * a / b for a, b in zip(dense, there or [], strict=True)]))
                if ratio == HELD_AT:
                    report.bar(name, report.rows[-1].median, at_least=1.8)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
