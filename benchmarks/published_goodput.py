"""Does the simulation of failures tell the goodput that is published for 1.2 and 2.4 million chips?

Douillard et al., "Decoupled DiLoCo for resilient distributed pre-training", 2026 (arXiv 2604.21428): one interruption
of each chip a year. Published for 1.2 million chips: 88% with 8 learners, 58% with one learner that is elastic. For 2.4
million: 80% with 8 learners, 86% with 16, 40% with one that is elastic, 18% with one that is not.

What a failure takes with it, and how long everything takes, is not known to us from the paper. It is one set of
assumptions here, for all cells. Of these two were fitted, each to one cell: how long an elastic learner stands for one
failure in all (`reshard` and `join`; 58%), and how long all stand where nobody is elastic (`spare` and `restart`; 18%).
The other four cells are told by the simulation. Then each assumption is halved and doubled, one at a time.

Nothing here is timed; the same seeds give the same figures on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import record

from quorate.inject.failures import Failures, failures_from
from quorate.simulation.failing.playing import Goodput, play
from quorate.simulation.failing.recovery import Recovery, recovery_from

FAILURES = "mtbf=1y,repair=2h,restart=30s"
RECOVERY = "detect=2s,reshard=8s,join=8s,slice=64,spare=30s,checkpoint=auto,save=0s"
STEP = 1.0
DAY = 86_400.0

Cell = tuple[str, int, int]
"""How workers agree, how many there are, and in how many learners."""
NEVER, ELASTIC, DECOUPLED = "not elastic", "elastic", "decoupled"
WAYS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    NEVER: ("all-reduce", {"on_death": "stop"}),
    ELASTIC: ("all-reduce", {"on_death": "continue"}),
    DECOUPLED: ("decoupled-diloco", {"wait_for": 1}),
}
PUBLISHED: Mapping[Cell, float] = {
    (DECOUPLED, 1_200_000, 8): 0.88,
    (ELASTIC, 1_200_000, 1): 0.58,
    (DECOUPLED, 2_400_000, 16): 0.86,
    (DECOUPLED, 2_400_000, 8): 0.80,
    (ELASTIC, 2_400_000, 1): 0.40,
    (NEVER, 2_400_000, 1): 0.18,
}
OTHERS: Sequence[Cell] = (
    *((DECOUPLED, workers, learners) for workers in (1_200_000, 2_400_000) for learners in (1, 2)),
    (DECOUPLED, 1_200_000, 16),
    (NEVER, 1_200_000, 1),
)


def told(cell: Cell, days: float, seed: int, failures: Failures, recovery: Recovery, step: float = STEP) -> Goodput:
    """What is left of that machine."""
    way, workers, learners = cell
    strategy, settings = WAYS[way]
    return play(failures, workers, learners=learners, strategy=strategy, settings=settings, seconds=days * DAY,
                seed=seed, step=step, recovery=recovery)  # fmt: skip


def named(cell: Cell) -> str:
    """`1.2 million, 8 learners, decoupled`."""
    way, workers, learners = cell
    return f"{workers / 1e6:.1f} million, {learners} learner{'s' * (learners > 1)}, {way}"


def variants(failures: Failures, recovery: Recovery) -> dict[str, dict[str, Any]]:
    """One assumption changed at a time."""
    found: dict[str, dict[str, Any]] = {"as assumed": {}}
    for factor, word in ((0.5, "half"), (2.0, "twice")):
        found[f"mtbf, {word}"] = {"failures": replace(failures, mtbf=failures.mtbf * factor)}
        found[f"detect, {word}"] = {"recovery": replace(recovery, detect=recovery.detect * factor)}
        found[f"reshard, {word}"] = {"recovery": replace(recovery, reshard=recovery.reshard * factor)}
        found[f"join, {word}"] = {"recovery": replace(recovery, join=recovery.joining * factor)}
        found[f"slice, {word}"] = {"recovery": replace(recovery, slice=round(recovery.slice * factor))}
        found[f"spare, {word}"] = {"recovery": replace(recovery, spare=(recovery.spare or 0.0) * factor)}
        found[f"restart, {word}"] = {"failures": replace(failures, restart=failures.restart * factor)}
        found[f"a step, {word}"] = {"step": STEP * factor}
    found["checkpoint=1min"] = {"recovery": replace(recovery, checkpoint=60.0)}
    found["no spares: repair=2h"] = {"recovery": replace(recovery, spare=None)}
    found["during=again"] = {"recovery": replace(recovery, during="again")}
    found["inside=restart"] = {"recovery": replace(recovery, inside="restart")}
    return found


def main() -> int:
    parser = record.arguments(__doc__ or "")
    options = parser.parse_args()
    days, seeds, short = (0.5, 1, 0.25) if options.quick else (5.0, 3, 1.0)
    failures, recovery = failures_from(FAILURES), recovery_from(RECOVERY)
    about = {"failures": FAILURES, "recovery": RECOVERY, "step": STEP, "days": days, "seeds": seeds}
    report = record.Report("published_goodput", about)
    means: dict[Cell, float] = {}
    for cell in (*PUBLISHED, *OTHERS):
        found = [told(cell, days, seed, failures, recovery) for seed in range(seeds)]
        means[cell] = fmean(one.goodput for one in found)
        report.rows.append(record.figure(f"{named(cell)}: goodput", [one.goodput for one in found]))
        report.rows.append(record.figure(f"{named(cell)}: uptime", [one.uptime for one in found]))
    for cell, published in PUBLISHED.items():
        report.bar(f"{named(cell)}: off from {published:.2f} by", abs(means[cell] - published), at_most=0.1)
    ours = [means[cell] for cell in sorted(PUBLISHED, key=lambda cell: PUBLISHED[cell])]
    least = min(after - before for before, after in pairwise(ours))
    report.bar("in the published order, the least step up", least, at_least=-0.005)
    for name, changed in variants(failures, recovery).items():
        for cell in PUBLISHED:
            goodput = told(cell, short, 0, **{"failures": failures, "recovery": recovery, **changed}).goodput
            report.rows.append(record.figure(f"{name}: {named(cell)}", [goodput]))
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
