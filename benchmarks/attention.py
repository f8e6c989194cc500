"""Is attention to a window of three blocks and one global block faster than dense attention, and does it learn as well?

Forward and backward, 4 heads of 64, causal, on two threads. At each length the ways take turns: sparse attention,
torch's fused dense attention, and up to 4,096 positions scores that are materialized, as matrix products write them.
Then a process for each way tries longer and longer sequences, until its memory has grown by 1 GB. With --loss, which
takes some twenty minutes, a model of bytes with sparse and one with dense attention train in turns on the same
sequences of 8,192 bytes, and again of 2,048. The figures are the held-out losses in bits, and the time in which sparse
attention reaches the last loss of dense attention.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

SPARSE, FUSED, MATERIALIZED = "sparse", "fused", "materialized"
PATTERN, HEADS, SIZE = "longformer:width=3,block=64", 4, 64
LARGEST = {SPARSE: 16_384, FUSED: 16_384, MATERIALIZED: 4_096}
LIMIT = 2**30
"""Bytes by which the memory of a process may grow."""


def ways() -> dict[str, Callable[..., Any]]:
    """The ways to compute causal attention, by name."""
    import torch
    import torch.nn.functional as F

    import quorate

    def materialized(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        scores = (q @ k.mT * SIZE**-0.5).masked_fill(later, -torch.inf)
        return scores.softmax(-1) @ v

    return {
        SPARSE: lambda q, k, v: quorate.sparse_attention(q, k, v, PATTERN, is_causal=True),
        FUSED: lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        MATERIALIZED: materialized,
    }


def seconds(way: Callable[..., Any], length: int) -> float:
    """The seconds of a forward and a backward pass."""
    import torch

    q, k, v = (torch.randn(1, HEADS, length, SIZE, requires_grad=True) for _ in range(3))
    gradient = torch.ones(1, HEADS, length, SIZE)
    begin = time.perf_counter()
    way(q, k, v).backward(gradient)
    return time.perf_counter() - begin


def speed(report: Any, lengths: tuple[int, ...], repeats: dict[int, int]) -> None:
    """Measure all ways in turns."""
    import record

    every = ways()
    medians: dict[tuple[str, int], float] = {}
    for way in every.values():
        seconds(way, 1024)  # warms up
    for length in lengths:
        names = [name for name in every if length <= LARGEST[name]]
        if repeats[length] > 1:
            seconds(every[SPARSE], length)
        measured: dict[str, list[float]] = {name: [] for name in names}
        for number in range(repeats[length]):
            first = number % len(names)
            for name in (*names[first:], *names[:first]):
                measured[name].append(seconds(every[name], length))
        for name in names:
            row = record.figure(f"ms, {name}, {length}", [1e3 * each for each in measured[name]])
            report.rows.append(row)
            medians[name, length] = row.median
            print(f"{row.name}: {row.median:.0f}", file=sys.stderr)

    def ratio(other: str, length: int) -> float | None:
        if (other, length) not in medians:
            return None
        return medians[other, length] / medians[SPARSE, length]

    report.bar("4,096 positions, materialized / sparse", ratio(MATERIALIZED, 4096), at_least=6.3)
    report.bar("4,096 positions, fused / sparse", ratio(FUSED, 4096), at_least=4.0)
    report.bar("16,384 positions, fused / sparse", ratio(FUSED, 16_384), at_least=10.0)


def longest(name: str, first: int, step: int) -> None:
    """Print the largest length, among `first` and every `step` further, with which memory grows by 1 GB at most."""
    way, reached = ways()[name], 0
    seconds(way, 256)
    before = _peak()
    for length in range(first, 2**18, step):
        seconds(way, length)
        if _peak() - before > LIMIT:
            break
        reached = length
    print(reached)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory(report: Any, *, is_quick: bool) -> None:
    """Measure how long sequences may be, in a process for each way."""
    import record

    reached = {}
    for name, first, step in (
        (SPARSE, 65_536, 16_384 if is_quick else 4_096),
        (MATERIALIZED, 3_072, 512 if is_quick else 128),
    ):
        command = [sys.executable, __file__, "--longest", name, str(first), str(step)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        reached[name] = int(output)
        report.rows.append(record.figure(f"positions in 1 GB, {name}", [float(output)]))
    ratio = reached[SPARSE] / reached[MATERIALIZED] if reached[MATERIALIZED] else None
    report.bar("positions in 1 GB, sparse / materialized", ratio, at_least=10.0)


def losses(report: Any, length: int, steps: int, *, has_bars: bool) -> None:
    """Train two models in turns on the same windows of a text, and report held-out bits and times.

    The one with sparse attention goes on until it has the loss of the other, at most as long.
    """
    import record
    import torch

    from quorate.workloads import stdlib_bytes

    workload = stdlib_bytes.StdlibBytes(length=length, width=HEADS * SIZE, layers=2, heads=HEADS, test_windows=8)
    training, test = workload.dataset(train=True), workload.dataset(train=False)
    order = torch.randperm(len(training), generator=torch.Generator().manual_seed(0)).tolist()
    held_out = workload.collate([test[i] for i in range(len(test))])
    attend = ways()
    models = {name: workload.model(seed=1) for name in (SPARSE, FUSED)}
    optimizers = {name: workload.optimizer(model) for name, model in models.items()}
    spent, bits = dict.fromkeys(models, 0.0), {name: list[tuple[float, float]]() for name in models}
    every = max(1, steps // 20)

    def train(name: str, step: int) -> None:
        batch = workload.collate([training[order[step % len(order)]]])
        stdlib_bytes.scaled_dot_product_attention = _causal(attend[name])  # type: ignore[assignment]
        begin = time.perf_counter()
        optimizers[name].zero_grad()
        workload.loss(models[name], batch).backward()
        optimizers[name].step()
        spent[name] += time.perf_counter() - begin
        if (step + 1) % every == 0:
            quality = [
                workload.quality(models[name], stdlib_bytes.Windows(window.unsqueeze(0)))["bits_per_byte"]
                for window in held_out.text
            ]
            bits[name].append((spent[name], sum(quality) / len(quality)))
            print(f"{length}: step {step + 1}, {name}: {bits[name][-1][1]:.3f} bits", file=sys.stderr)

    for step in range(steps):
        for name in (SPARSE, FUSED) if step % 2 else (FUSED, SPARSE):
            train(name, step)
    last = {name: points[-1][1] for name, points in bits.items()}
    of_steps, step = dict(spent), steps
    while bits[SPARSE][-1][1] > last[FUSED] and spent[SPARSE] < spent[FUSED]:
        train(SPARSE, step)
        step += 1
    reached = next((when for when, value in bits[SPARSE] if value <= last[FUSED]), None)
    for name in models:
        report.rows.append(record.figure(f"held-out bits, {name}, {length}", [last[name]]))
        report.rows.append(record.figure(f"seconds of {steps} steps, {name}, {length}", [of_steps[name]]))
    share = None if reached is None else reached / spent[FUSED]
    if share is not None:
        report.rows.append(record.figure(f"time to the loss of fused, sparse / fused, {length}", [share]))
    if has_bars:
        report.bar(f"held-out loss, sparse / fused, {length}", last[SPARSE] / last[FUSED], at_most=1.01)
        report.bar(f"time to the same loss, sparse / fused, {length}", share, at_most=0.5)


def _causal(way: Callable[..., Any]) -> Callable[..., Any]:
    return lambda q, k, v, is_causal: way(q, k, v)


def main() -> int:
    """Measure, and report."""
    import record
    import torch

    parser = record.arguments(__doc__ or "")
    parser.add_argument("--loss", action="store_true", help="train models of bytes, too")
    parser.add_argument("--steps", type=int, default=200, help="of a training (200)")
    parser.add_argument("--only-loss", action="store_true", help="measure neither times of attention nor memory")
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    lengths = (4096, 16_384) if options.quick else (1024, 2048, 4096, 8192, 16_384)
    repeats = dict.fromkeys(lengths, 2 if options.quick else 7) | {16_384: 1 if options.quick else 3}
    about = {"pattern": PATTERN, "heads": HEADS, "size": SIZE, "threads": 2, "dtype": "float32"}
    report = record.Report("attention", about | {"steps": options.steps, "repeats": repeats[4096]})
    if not options.only_loss:
        speed(report, lengths, repeats)
        memory(report, is_quick=options.quick)
    if options.loss or options.only_loss:
        losses(report, 8192, options.steps, has_bars=True)
        losses(report, 2048, options.steps, has_bars=False)
    else:
        report.bar("held-out loss, sparse / fused, 8192", None, at_most=1.01)
        report.bar("time to the same loss, sparse / fused, 8192", None, at_most=0.5)
    return report.show(options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--longest"]:
        longest(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(main())
