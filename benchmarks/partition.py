"""How soon does a training go on when a host is cut off, and does anything go wrong?

Three hosts (network namespaces, so for root on Linux) of one worker, steps of some 15 ms, under `all-reduce` with
`on_death="continue"`, `eager-majority` and `diloco`. The cable of one of them, drawn at random, is cut at a random
moment: for 3 s, which is shorter than the silence after which a worker is taken for dead (5 s), for 30 s, and for good.
What is counted, over 20 cuts of each kind and strategy:

- hangs: workers that neither train on nor end by themselves within 30 s after all is over;
- split brains: cuts in which both sides make steps later than a second after the silence, while it lasts; or whose
  workers end with different parameters;
- lost updates: workers of the side that goes on that have fewer updates than before the cut, or other parameters after
  as many updates as another one;
- and of cuts that outlast the silence the seconds until every worker of the side that goes on has made a step that ends
  with one more update, and whose exchange began after the cut.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from record import Report, arguments, figure  # noqa: E402

from tests.support.cut_trainings import CutTraining  # noqa: E402
from tests.support.hosts import Host, are_possible, hosts  # noqa: E402

SILENCE = 5.0
HOSTS = 3
STRATEGIES: dict[str, dict[str, Any]] = {
    "all-reduce": {"strategy": "all-reduce", "on_death": "continue"},
    "eager-majority": {"strategy": "eager-majority"},
    "diloco": {"strategy": "diloco", "sync_every": 4},
}
FOR_GOOD = float("inf")
LIMIT = 30.0


class Cut:
    """One of them, and what came of it."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        """Until the side that goes on has."""
        self.hangs = self.splits = self.lost = 0
        self.expired = 0.0
        """Gradients of the side that goes on that no round has taken, as they were too many rounds old."""
        self.void = 0.0
        """Updates that the one which was cut off has made by itself, and given up for the others' when it came back."""

    def __str__(self) -> str:
        after = "" if self.seconds is None else f"went on after {self.seconds:.2f} s, "
        wrong = f"{self.hangs} hangs, {self.splits} split brains, {self.lost} lost updates"
        return f"{after}{wrong}, {self.expired:g} expired, {self.void:g} void"


def cut_off(on: list[Host], strategy: str, lasts: float, draw: random.Random) -> Cut:
    """A training in which one host is."""
    found, away = Cut(), draw.randrange(len(on))
    with (
        tempfile.TemporaryDirectory() as folder,
        CutTraining(on, Path(folder), SILENCE, **STRATEGIES[strategy]) as all_,
    ):
        time.sleep(draw.uniform(0.0, 1.0))
        everyone = range(len(on))
        left = [rank for rank in everyone if rank != away]
        on[away].cut()
        before = {rank: all_.told(rank)[-1].updates for rank in everyone}
        begin = time.monotonic()
        is_short = lasts < SILENCE
        if is_short:
            time.sleep(lasts)
        else:
            moved = [_first_step(all_, rank, begin, before[rank] + 1) for rank in left]
            found.hangs += sum(at is None for at in moved)
            found.seconds = max((at - begin for at in moved if at is not None), default=None)
            time.sleep(max(0.0, begin + min(lasts, SILENCE + 3.0) - time.monotonic()))
            late = begin + SILENCE + 1.0
            found.splits += all_.times(away)[-1] > late and any(all_.times(rank)[-1] > late for rank in left)
            time.sleep(0.0 if lasts == FOR_GOOD else max(0.0, begin + lasts - time.monotonic()))
        if lasts < FOR_GOOD:
            on[away].heal()
        there = list(everyone) if is_short else left
        since = time.monotonic()
        found.hangs += sum(_first_step(all_, rank, since, before[rank] + 1) is None for rank in there)
        ends = {}
        (Path(folder) / "stop").touch()
        for rank in everyone:
            try:
                ended = all_.stopped(rank, LIMIT)
            except (subprocess.TimeoutExpired, TimeoutError):
                found.hangs += 1
                continue
            if (ended.status == 0) != (rank in there):
                found.lost += 1
                print(f"rank {rank} (rank {away} was cut off) ended with {ended.status}: {ended.said}", flush=True)
            elif rank in there:
                ends[rank] = ended.out.split()
        found.splits += len({digest for _, digest, _ in ends.values()}) > 1
        found.lost += _missing(all_, left, before, strategy)
        found.expired = sum(float(ends[rank][2]) for rank in left if rank in ends)
        found.void = _void(all_, away, left) if is_short and strategy == "eager-majority" else 0.0
        on[away].heal()
    return found


def _first_step(training: CutTraining, rank: int, since: float, updates: int) -> float | None:
    """When a step of it has ended whose exchange began later, and that has so many; None where there is none."""
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        for step in training.told(rank):
            if step.arrive > since and step.updates >= updates:
                return step.end
        time.sleep(0.02)
    return None


def _missing(training: CutTraining, ranks: list[int], before: dict[int, int], strategy: str) -> int:
    """Of those that go on, how many have lost updates."""
    digests: dict[int, str] = {}
    count = 0
    for rank in ranks:
        told = training.told(rank)
        updates = [step.updates for step in told]
        is_worse = updates != sorted(updates) or updates[-1] < before[rank]
        if strategy != "diloco":  # there the parameters of each are its own between two means
            is_worse |= any(digests.setdefault(step.updates, step.digest) != step.digest for step in told)
        count += is_worse
    return count


def _void(training: CutTraining, away: int, left: list[int]) -> int:
    """How many updates of the one that was cut off are none of the others'."""
    theirs = {step.updates: step.digest for rank in left for step in training.told(rank)}
    return sum(theirs.get(step.updates, step.digest) != step.digest for step in training.told(away))


def one_strategy(strategy: str, count: int, lengths: list[float], seed: int) -> dict[float, list[Cut]]:
    """All its cuts, on hosts of its own."""
    draw = random.Random(f"{strategy} {seed}")
    found: dict[float, list[Cut]] = {lasts: [] for lasts in lengths}
    for number in range(count):
        for lasts in lengths:
            with hosts(HOSTS) as on:
                cut = cut_off(on, strategy, lasts, draw)
            found[lasts].append(cut)
            print(f"{strategy}, cut {number + 1} {words(lasts)}: {cut}", flush=True)
    return found


def _voids(found: dict[str, dict[float, list[Cut]]]) -> list[float]:
    return [cut.void for cut in found["eager-majority"][3.0]]


def words(lasts: float) -> str:
    """How long it lasts."""
    return "for good" if lasts == FOR_GOOD else f"of {lasts:g} s"


def main() -> int:
    parser = arguments(str(__doc__))
    parser.add_argument("--cuts", type=int, help="of each kind and strategy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--beside", type=int, default=1, help="strategies that are measured at the same time")
    told = parser.parse_args()
    if not are_possible():
        print("benchmarks/partition.py needs root on Linux, to make network namespaces", file=sys.stderr)
        return 2
    count = told.cuts or (1 if told.quick else 20)
    lengths = [3.0, 8.0 if told.quick else 30.0, FOR_GOOD]
    settings = {"cuts": count, "silence": SILENCE, "hosts": HOSTS, "seed": told.seed, "lengths": [*map(words, lengths)]}
    report = Report("partition", settings)
    with ThreadPoolExecutor(len(STRATEGIES) if told.quick else told.beside) as pool:
        runs = {name: pool.submit(one_strategy, name, count, lengths, told.seed) for name in STRATEGIES}
        found = {name: run.result() for name, run in runs.items()}
    cuts = [cut for kinds in found.values() for some in kinds.values() for cut in some]
    for name, kinds in found.items():
        for lasts in lengths[1:]:
            seconds = [cut.seconds for cut in kinds[lasts] if cut.seconds is not None]
            if seconds:
                report.rows.append(figure(f"{name}, cut {words(lasts)}: seconds until the majority goes on", seconds))
    report.rows.append(figure("eager-majority: updates that are void after a cut of 3 s", _voids(found)))
    report.rows.append(figure("gradients of the majority that have expired, a cut", [cut.expired for cut in cuts]))
    report.bar("hangs", sum(cut.hangs for cut in cuts), at_most=0)
    report.bar("split brains", sum(cut.splits for cut in cuts), at_most=0)
    report.bar("lost updates", sum(cut.lost for cut in cuts), at_most=0)
    took = [cut.seconds for cut in cuts if cut.seconds is not None]
    tail = float(np.percentile(took, 95)) if took else None
    report.bar("seconds until the majority goes on, 95th percentile", tail, at_most=SILENCE + 1.0)
    return report.show(told)


if __name__ == "__main__":
    sys.exit(main())
