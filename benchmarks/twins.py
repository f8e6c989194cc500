"""Does a virtual run behave like the real run it stands for, and what does the virtual world say of larger ones?

The runs of `light_imbalance` and `persistent_straggler`, in real processes and in the virtual world, with the same
seeds and so the same delays. Of the real world a twin is told three numbers, all from a real run without imbalance
(with all-reduce for the twin of that, whose exchange is another one): how long a worker's own part of a step is, how
much that scatters, and how long an exchange takes. Held against each other are rounds per second (of either clock),
workers with something in a round, and bytes per round.

Then the same light imbalance, one worker late in every eight, with 64 and 512 virtual workers: figures only, and
virtual seconds, but for the last one, which says what the simulation takes.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import readings
import record
from trainings import ALL_REDUCE, MAJORITY, QUORUM, SOLO, Runs, Setting, Side

from quorate.observe.backward import FORWARD_SHARE

SMALL = {"points": 4096, "features": 1024}
STEPS = 12
"""Of every worker, in large worlds."""
WORDS = {"per_second": "rounds per second", "contributors": "contributors", "bytes": "bytes per round"}
"""By field of `readings.Rounds`."""


@dataclass(frozen=True)
class Case:
    """What is run in both worlds."""

    name: str
    pace: float
    setting: Setting
    sides: tuple[Side, ...]

    @property
    def plain(self) -> Setting:
        """Without imbalance, to measure a step."""
        return replace(self.setting, imbalance=None, steps=min(self.setting.steps, 40))

    def typical(self, runs: Runs, side: Side, seed: int) -> readings.Typical:
        """What the twin of `side` is told: of a run without imbalance, with the same kind of exchange."""
        if side is ALL_REDUCE:
            return readings.typical_together(runs.train(ALL_REDUCE, self.plain, seed))
        return readings.typical(runs.train(SOLO, self.plain, seed))

    def twin(self, typical: readings.Typical, side: Side) -> Setting:
        """In the virtual world.

        The pace holds a worker until its forward pass has ended; the rest of what it computes comes on top. An exchange
        that the leader calls for is two messages long: it asks, and is answered; a sum goes twice around a ring.
        """
        hops = 2 * (self.setting.workers - 1) if side is ALL_REDUCE else 2
        rest = max(0.0, typical.own - self.pace) / (1 - FORWARD_SHARE)
        return replace(
            self.setting,
            is_virtual=True,
            compute=f"normal:{rest * 1e3:.3f}ms:{typical.scatter / (1 - FORWARD_SHARE) * 1e3:.3f}ms",
            latency=typical.exchange / hops,
        )


def cases(*, is_quick: bool) -> list[Case]:
    few = (SOLO,) if is_quick else (ALL_REDUCE, SOLO, MAJORITY)
    light, slow = (24, 80) if is_quick else (100, 200)
    late = {"imbalance": "one-of:200ms", "pace": "280ms"}
    return [
        Case("light", 0.28, Setting(workers=8, steps=light, batch=32, workload=SMALL, **late), few),
        Case(
            "straggler",
            0.05,
            Setting(workers=4, steps=slow, batch=32, workload=SMALL, pace="50ms", imbalance="rank:3:x3"),
            (SOLO,) if is_quick else (SOLO, QUORUM),
        ),
    ]


def large(workers: int) -> Setting:
    """One worker in eight late by 200 ms, drawn anew in every step."""
    late = f"{workers // 8}-of:200ms"
    return Setting(
        workers=workers, steps=STEPS, batch=32, workload=SMALL, pace="280ms", imbalance=late, is_virtual=True
    )


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--small", action="store_true", help="leave out the large virtual worlds")
    parser.add_argument("--repeats", type=int, default=3, help="of every run, each with a seed of its own (3)")
    options = parser.parse_args()
    repeats = 1 if options.quick else options.repeats
    sizes = (64,) if options.quick else () if options.small else (64, 512)
    chosen = cases(is_quick=options.quick)
    sides = (SOLO,) if options.quick else (SOLO, ALL_REDUCE)

    report = record.Report("twins", {"repeats": repeats, "sizes": list(sizes)})
    plain = {case.name: [kind for kind in (ALL_REDUCE, SOLO) if kind is SOLO or kind in case.sides] for case in chosen}
    count = sum(repeats * (len(plain[case.name]) + 2 * len(case.sides)) for case in chosen)
    with Runs(count + len(sizes) * len(sides)) as runs:
        for case in chosen:
            found: dict[tuple[str, str], list[tuple[float, float]]] = {}
            told: dict[str, list[float]] = {}
            for seed in range(repeats):
                typical = {kind.name: case.typical(runs, kind, seed) for kind in plain[case.name]}
                for kind, one in typical.items():
                    for field in fields(one):
                        told.setdefault(f"{field.name} ({kind})", []).append(getattr(one, field.name))
                for side in case.sides:
                    real = readings.rounds_of(runs.train(side, case.setting, seed))
                    same = typical.get(side.name, typical[SOLO.name])
                    twin = readings.rounds_of(runs.train(side, case.twin(same, side), seed))
                    for what in ("per_second", "contributors", "bytes"):
                        found.setdefault((side.name, what), []).append((getattr(real, what), getattr(twin, what)))
            report.rows += [record.figure(f"{case.name}, told the twin: seconds, {n}", v) for n, v in told.items()]
            for (side_name, what), pairs in found.items():
                name = f"{case.name}, {side_name}, {WORDS[what]}"
                report.rows.append(record.figure(f"{name}, real", [real for real, _ in pairs]))
                report.rows.append(record.figure(f"{name}, virtual", [twin for _, twin in pairs]))
                ratio = record.figure(f"{name}, virtual / real", [twin / real for real, twin in pairs])
                report.rows.append(ratio)
                report.bar(f"{name}, virtual off real by", abs(ratio.median - 1), at_most=0.1)
        for size in sizes:
            for side in sides:
                begin = time.perf_counter()
                run = runs.train(side, large(size))
                took, rounds = time.perf_counter() - begin, readings.rounds_of(run)
                rate = readings.gradients_per_second(run, 32)
                name = f"{size} virtual workers, {side.name}"
                report.rows.append(record.figure(f"{name}: gradients per virtual second", [rate]))
                report.rows.append(record.figure(f"{name}: rounds per virtual second", [rounds.per_second]))
                report.rows.append(record.figure(f"{name}: contributors", [rounds.contributors]))
                report.rows.append(record.figure(f"{name}: bytes per round", [rounds.bytes]))
                report.rows.append(record.figure(f"{name}: seconds of this machine for {STEPS} steps each", [took]))
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
