"""How long until a number that each worker has alone has come to everyone, by topology, and what does that send?

64, 256 and 1,024 virtual workers, each with numbers of its own, train under `sgp` with gradients of zero, so that
parameters only mix; it goes on until they are within a hundredth of their mean (the root of the mean square distance,
of what it was). Counted: rounds, virtual seconds, bytes. Every two workers have a link of their own, in which a vector
takes 80 ms (100 MB at 10 Gbit/s); what it would take if a worker had one connection for all stands beside it. Next to
them: the same by arithmetic on the mixing matrices (the rounds must be equal; where W is symmetric and stays, by its
eigenvalues), and what closed forms of the spectral gap allow at most. Where the virtual world would take minutes, there
is arithmetic alone. Without rounds, `ad-psgd`: steps of a worker, which average with one drawn neighbour each.

`--picture FILE` draws it as SVG.
"""

from __future__ import annotations

import bisect
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import consensus_picture
import numpy as np
import record
import torch
from rich.progress import Progress

import quorate
from quorate.core.contracts import Wire
from quorate.gossip.topology import topology_of
from quorate.gossip.topology.mixing import Matrix, matrix
from quorate.wire import current
from quorate.wire.metered import Meter, Metered
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld

SIZES = (64, 256, 1024)
WIDTH = 2_048
"""Numbers in a vector, so many that the words which go with it hardly count."""
DIFFERENT = 16
"""Of these, those in which workers differ; the rest is 0."""
SHARE = 0.01
VECTOR_SECONDS = 0.08
LATENCY = 50e-6
MOST_ROUNDS = 1 << 24
KEPT_ROUNDS = 60
"""Rounds of which the distance is kept for the picture, where it follows from eigenvalues."""
COMPUTE = 0.28
"""Seconds of a step under `ad-psgd`."""
TOPOLOGIES = (
    "complete",
    "one-peer-exponential",
    "exponential",
    "random-matching",
    "random:degree=4",
    "hierarchical:per_host=8",
    "torus",
    "ring",
    "star",
)
AFFORDABLE = 30_000
"""Steps and messages of all workers, of what is run in the virtual world; some minutes in all."""


def gap_of(name: str, size: int) -> float | None:
    """The spectral gap in closed form, where there is one; of drawn pairs, that of the mean square distance."""
    if name == "ring":
        return 1 - (1 + 2 * math.cos(2 * math.pi / size)) / 3
    if name == "torus":  # of a square
        return 1 - (3 + 2 * math.cos(2 * math.pi / math.isqrt(size))) / 5
    if name == "exponential":
        return 2 / (1 + math.log2(size))
    if name == "star":
        return 1 / size
    if name == "random-matching":
        return 1 - math.sqrt((size - 2) / (size - 1) / 2)
    return None


def rounds_at_most(name: str, size: int) -> float | None:
    """By closed form: rounds until the distance is `SHARE` of what it was."""
    if name == "complete":
        return 1.0
    if name == "one-peer-exponential":
        return math.log2(size)
    gap = gap_of(name, size)
    return None if gap is None else math.ceil(math.log(SHARE) / math.log(1 - gap))


@dataclass
class Spread:
    """How numbers became equal."""

    distances: list[float]
    """After 0, 1, 2 ... rounds: of what it was."""
    rounds: int | None
    """Until it was `SHARE`; None where it was not."""
    seconds: float = 0.0
    nbytes: float = 0.0


def first_within(distances: Sequence[float]) -> int | None:
    """The round after which it is `SHARE`."""
    return next((number for number, x in enumerate(distances) if x <= SHARE), None)


def numbers_of(size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What each worker has, (size, DIFFERENT)."""
    return np.random.default_rng(size).standard_normal((size, DIFFERENT)).astype(np.float32)


def by_arithmetic(name: str, size: int) -> Spread:
    """In double precision: multiplied out, or by eigenvalues."""
    topology = topology_of(name, size)
    x = numbers_of(size).astype(float)
    x -= x.mean(axis=0)
    if name == "complete":
        return Spread([1.0, 0.0], 1)
    if not topology.directed and topology.cycle(size) == 1:
        return by_eigenvalues(matrix(topology, size, 0), x)
    matrices: dict[int, Matrix] = {}
    first = float(np.linalg.norm(x))
    found = [1.0]
    while found[-1] > SHARE:
        number = (len(found) - 1) % topology.cycle(size)
        if number not in matrices:
            matrices[number] = matrix(topology, size, number)
        x = matrices[number] @ x
        found.append(float(np.linalg.norm(x)) / first)
    return Spread(found, len(found) - 1)


def by_eigenvalues(w: Matrix, x: Matrix) -> Spread:
    """The distances of W^t x from 0, for a symmetric W: they never grow, so the round is found by halving."""
    values, vectors = np.linalg.eigh(w)
    squares = np.square(vectors.T @ x).sum(axis=1)

    def distance(rounds: int) -> float:
        return float(np.sqrt((np.abs(values) ** (2 * rounds) * squares).sum() / squares.sum()))

    rounds = bisect.bisect_left(range(MOST_ROUNDS), True, key=lambda number: distance(number) <= SHARE)
    return Spread([distance(number) for number in range(min(rounds, KEPT_ROUNDS) + 1)], rounds)


def messages_of(name: str, size: int) -> tuple[float, int]:
    """Of all workers in a round, in the mean over a cycle; and of the busiest, out of it or to it."""
    topology = topology_of(name, size)
    if name == "complete":
        return float(size * (size - 1)), size - 1
    every = range(topology.cycle(size))
    out = [[len(topology.out_edges(rank, size, round)) - 1 for rank in range(size)] for round in every]
    to = [[len(topology.in_edges(rank, size, round)) - 1 for rank in range(size)] for round in every]
    return sum(map(sum, out)) / len(out), max(max(map(max, out)), max(map(max, to)))


def in_the_virtual_world(size: int, rounds: int, compute: float, **settings: Any) -> Spread:
    """Real workers, one thread each: what `distribute` makes of an optimizer whose gradients are zero."""
    numbers = torch.nn.functional.pad(torch.from_numpy(numbers_of(size)), (0, WIDTH - DIFFERENT))
    mean = numbers.double().mean(dim=0)

    def live(wire: Wire) -> tuple[list[float], list[float], list[int]]:
        meter = Meter()
        current.enter(Metered(wire, meter), thread_only=True)
        try:
            world = quorate.join()
            model = torch.nn.Linear(WIDTH, 1, bias=False)
            torch.nn.init.zeros_(model.weight)
            optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=1.0), model, **settings)
            draw = torch.Generator().manual_seed(world.rank)
            squares, times, sent = [], [wire.clock.now()], [0]
            begun = meter.bytes_out["send"]
            for number in range(rounds + 1):
                wire.clock.sleep(compute * float(torch.rand((), generator=draw)) * 2)
                model.weight.grad = torch.zeros_like(model.weight)
                if number == 0:
                    model.weight.grad.sub_(numbers[world.rank])
                    before = float((numbers[world.rank] - mean).square().sum())
                optimizer.step()
                squares.append(float((model.weight.detach()[0] - mean).square().sum()))
                times.append(wire.clock.now())
                sent.append(meter.bytes_out["send"] - begun)
            wire.channel("end").barrier().wait()  # nobody needs anybody after it; finish() would be P messages of each
            return [before, *squares], times, sent
        finally:
            current.forget(thread_only=True)

    network = Network(latency=LATENCY, bandwidth=WIDTH * 4 / VECTOR_SECONDS)
    found = VirtualWorld(size, network=network, timeout=1e9).run(live)
    squares = np.array([one for one, _, _ in found]).sum(axis=0)
    distances = [float(x) for x in np.sqrt(squares / squares[0])]
    spread = Spread(distances, first_within(distances))
    at = rounds if spread.rounds is None else spread.rounds
    times, sent = np.array([one for _, one, _ in found]), np.array([one for _, _, one in found])
    spread.seconds = float(times[:, at].max() - times[:, 0].max())
    spread.nbytes = float(sent[:, at].sum())
    return spread


def tell(report: record.Report, name: str, size: int, reckoned: Spread, measured: Spread | None) -> None:
    """The rows and bars of one graph."""
    where = f"{name}, {size} workers"
    rounds, (messages, busiest) = reckoned.rounds, messages_of(name, size)
    bound = rounds_at_most(name, size)

    def row(what: str, value: float | None) -> None:
        if value is not None:
            report.rows.append(record.figure(f"{where}: {what}", [float(value)]))

    row("rounds, by arithmetic", rounds)
    row("rounds at most, in closed form", bound)
    row("vectors sent by a worker in all", None if rounds is None else messages / size * rounds)
    row(
        "virtual seconds, one connection each",
        None if rounds is None else rounds * (busiest * VECTOR_SECONDS + LATENCY),
    )
    if measured is not None:
        row("rounds, virtual workers", measured.rounds)
        row("virtual seconds, a link for every two", measured.seconds)
        row("bytes sent by a worker in all", measured.nbytes / size)
        apart = None if measured.rounds is None or rounds is None else abs(measured.rounds - rounds)
        report.bar(f"{where}: rounds, virtual workers, apart from arithmetic", apart, at_most=0.0)
        share = measured.nbytes / (messages * (measured.rounds or 1) * WIDTH * 4)
        if topology_of(name, size).cycle(size) == 1 or messages == size:
            report.bar(f"{where}: bytes, counted / by formula, apart from 1", abs(share - 1.0), at_most=0.0)
    if bound is not None and rounds is not None and name != "random-matching":
        report.bar(f"{where}: rounds / what the gap allows at most", rounds / bound, at_most=1.0)


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it, as SVG")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = SIZES[:1] if options.quick else SIZES
    most = AFFORDABLE // 6 if options.quick else AFFORDABLE
    report = record.Report("consensus", {"sizes": sizes, "share": SHARE, "width": WIDTH, "latency": LATENCY})
    reckoned: dict[tuple[str, int], Spread] = {}
    measured: dict[tuple[str, int], Spread] = {}
    with Progress(disable=not sys.stderr.isatty(), transient=True) as progress:
        follow: Callable[..., Any] = progress.track
        for size in sizes:
            for name in follow(TOPOLOGIES, description=f"{size} workers"):
                one = reckoned[name, size] = by_arithmetic(name, size)
                cost = math.inf if one.rounds is None else one.rounds * (size + messages_of(name, size)[0])
                if cost <= most:
                    measured[name, size] = in_the_virtual_world(
                        size, one.rounds or 0, 0.0, strategy="sgp", topology=name
                    )
                tell(report, name, size, one, measured.get((name, size)))
            drawn = in_the_virtual_world(
                size, 2 * size.bit_length() + 6, COMPUTE, strategy="ad-psgd", topology="complete"
            )
            if drawn.rounds is not None:
                report.rows.append(record.figure(f"ad-psgd, {size} workers: steps", [float(drawn.rounds)]))
                sent = drawn.nbytes / size / WIDTH / 4
                report.rows.append(record.figure(f"ad-psgd, {size} workers: vectors sent by a worker in all", [sent]))
    if options.picture is not None:
        options.picture.write_text(consensus_picture.drawn(reckoned, measured, SHARE) + "\n", encoding="utf-8")
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
