"""What encoding and decoding cost, as multiples of a copy of the same bytes.

    python benchmarks/codecs.py [--quick] [--only NAME ...]

Vectors of 1, 10 and 100 MB of normally distributed float32, half of it a matrix of 1,000 columns and half a tensor of
convolutions. In each turn the vector is copied, cast to float16 (what the compression of torch's DDP hooks is), encoded
and decoded by each codec, one after the other (A B C, A B C, ...), in one thread; the figure is the ratio of the
processor's times in one turn. New memory is taken each time, as in training. The bars, at 10 MB, are of encoding and
decoding together. Bits a number, and what one code leaves out, are told beside. ATOMO, which decomposes matrices, is
measured with 1 MB only.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import record
import torch
from rich.progress import Progress
from torch import Tensor

from quorate.codecs import codecs
from quorate.core.codec import Draw

MEGABYTES = (1, 10, 100)
BARS = {"half": 3.0, "qsgd": 25.0, "top-k": 40.0, "one-bit": 12.0, "sign": 12.0}
"""Multiples of a copy, at most."""
BAR_AT = 10
"""Megabytes."""
SMALL_ONLY = {"atomo"}
CAST = "a cast to float16"


class Calls(NamedTuple):
    """What is measured of one codec."""

    encode: Callable[[], object]
    decode: Callable[[], object]
    bits: float
    lost: float
    """Of the squared norm, in one vector, with nothing remembered: the squared error of what is decoded."""


def shapes_of(numel: int) -> tuple[tuple[int, ...], ...]:
    """A matrix, a tensor of convolutions, and what is left as a bias."""
    rows, filters = numel // 2000, numel // 2 // (64 * 9)
    return (rows, 1000), (filters, 64, 3, 3), (numel - 1000 * rows - 576 * filters,)


def seconds(call: Callable[[], object]) -> float:
    """Of the processor, for one call: others on the machine lengthen it little."""
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


def lost(x: Tensor, decoded: Tensor) -> float:
    """The squared error, of the squared norm."""
    return float((x - decoded).square().sum() / x.square().sum())


def of_cast(x: Tensor) -> Calls:
    """Encoding and decoding as a cast does it, the bits of a number, and what is lost."""
    small = x.to(torch.float16)
    return Calls(lambda: x.to(torch.float16), small.float, 16.0, lost(x, small.float()))


def of_codec(name: str, x: Tensor) -> Calls:
    """The same by a codec with its defaults."""
    codec, shapes, draw = codecs.get(name)(), shapes_of(x.numel()), Draw()
    memory = {one: torch.zeros_like(x) for one in codec.memories}
    code, _ = codec.encode(x, shapes, memory, draw)
    return Calls(
        lambda: codec.encode(x, shapes, memory, draw),
        lambda: codec.decode(code, shapes, draw),
        8 * code.nbytes / x.numel(),
        lost(x, codec.decode(code, shapes, draw)),
    )


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--turns", type=int, default=15, help="of all codecs, for each size (15)")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=sorted(codecs), help="leave out other codecs")
    options = parser.parse_args()
    turns, sizes = (5, MEGABYTES[:2]) if options.quick else (options.turns, MEGABYTES)
    torch.set_num_threads(1)
    report = record.Report("codecs", {"turns": turns, "megabytes": list(sizes), "threads": 1})
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("turns", total=(turns + 1) * len(sizes))
        for megabytes in sizes:
            x = torch.randn(megabytes * 250_000, generator=torch.Generator().manual_seed(0))
            names = [name for name in options.only or sorted(codecs) if megabytes == 1 or name not in SMALL_ONLY]
            sides = {CAST: of_cast(x), **{name: of_codec(name, x) for name in names}}
            copies = list[float]()
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
            for turn in range(turns + 1):  # the first one warms up
                copy = statistics.median(seconds(x.clone) for _ in range(3))
                took = {name: (seconds(one.encode) / copy, seconds(one.decode) / copy) for name, one in sides.items()}
                if turn:
                    copies.append(1e3 * copy)
                    for name, ratios in took.items():
                        found[name].append(ratios)
                progress.update(task, advance=1, description=f"{megabytes} MB")
            report.rows.append(record.figure(f"{megabytes} MB: ms, a copy", copies))
            for name, one in sides.items():
                start = f"{megabytes} MB, {name}"
                report.rows.append(record.figure(f"{start}: bits", [one.bits]))
                report.rows.append(record.figure(f"{start}: squared error / squared norm", [one.lost]))
                report.rows.append(record.figure(f"{start}: copies, encode", [encode for encode, _ in found[name]]))
                report.rows.append(record.figure(f"{start}: copies, decode", [decode for _, decode in found[name]]))
                together = record.figure(f"{start}: copies, both", list(map(sum, found[name])))
                report.rows.append(together)
                if megabytes == BAR_AT and name in BARS:
                    report.bar(f"{name}: copies, both", together.median, at_most=BARS[name])
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
