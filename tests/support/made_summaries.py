"""Summaries of comparisons that nobody ran: what the page is tested with, and looked at."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Literal

from quorate.report.schema import ArmSummary, Estimate, Fairness, Metric, Outcome, Reproduce, Summary, Trial
from quorate.report.statistics import Difference
from quorate.report.summary import arm_type, summary_type
from quorate.report.topics.arrival import Arrival, RankArrival
from quorate.report.topics.quality import Curve
from quorate.report.topics.rounds import RoundsSummary
from quorate.report.topics.steps import StepTimes
from quorate.report.topics.timeline import Lane, Mark

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARES = {
    "ddp": (0.0006, 0.0201, 0.0040, 0.0, 0.0002, 0.0118, 0.0032, 0.0002, 0.0011, 0.0004),
    "all-reduce": (0.0006, 0.0200, 0.0040, 0.0, 0.0003, 0.0121, 0.0034, 0.0002, 0.0011, 0.0004),
    "quorum": (0.0006, 0.0200, 0.0040, 0.0, 0.0003, 0.0002, 0.0016, 0.0002, 0.0012, 0.0005),
}
"""Seconds of a step in the order of `ACTIVITIES`."""
_ACTIVITIES = ("data", "compute", "pace", "delay", "encode", "waiting", "communication", "decode", "update", "other")


def made_summary(*, ranks: int = 4, seeds: Sequence[int] = (0, 1, 2), **changes: Any) -> Summary:
    """Three arms: `ddp` and `all-reduce` wait for the slow rank 3, `quorum` does not; `changes` are fields."""
    names: list[tuple[str, float, float]] = [("ddp", 0.70, 1.0), ("all-reduce", 0.703, 0.99), ("quorum", 0.694, 1.44)]
    summary = summary_type()(
        title="stdlib-functions: ddp, all-reduce and quorum on 4 workers",
        world="real",
        workers=ranks,
        verdict="quorum reached top1 0.62 in 64.2 s, 1.44 times as fast as ddp (1.38 – 1.50); in final quality no "
        "difference was shown.",
        warnings=("Rank 3 was slowed down on purpose (pace 3=1.75).",),
        metric=Metric(name="top1", higher_is_better=True),
        target=0.62,
        baseline="ddp",
        imbalance=None,
        pace="3=1.75",
        arms=tuple(made_arm(name, quality, speed, ranks=ranks, seeds=seeds) for name, quality, speed in names),
        tuning=tuple(
            Trial(
                arm=name,
                factor=factor,
                seed=0,
                quality=quality - 0.03 * abs(math.log2(factor)),
                is_chosen=factor == 1.0,
            )
            for name, quality, _ in names
            for factor in (0.5, 1.0, 2.0)
        ),
        fairness=Fairness(
            equal=(
                "Every arm computed 60,000 examples (1.5 epochs).",
                "Model, data, order of the data and starting parameters were the same for equal seeds.",
                "Batch size 8 per worker, SGD with learning rate 0.1.",
            ),
            differed={"strategy": {"ddp": "ddp", "all-reduce": "all-reduce", "quorum": "quorum"},
                      "wait_for": {"quorum": 2}},
            warm_up_steps=5,
            seeds=tuple(seeds),
        ),
        reproduce=Reproduce(
            command=("quorate", "compare", "-n", str(ranks), "--workload", "stdlib-functions",
                     "--min-step-time", "3=1.75", "--name", "a name"),
            started="2026-09-21T14:13:20.000+00:00",
            git={"commit": COMMIT, "dirty": False},
            packages={"quorate": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6"},
            machine={"host": "tower", "cores": 8, "system": "Linux-6.12-x86_64-with-glibc2.41", "python": "3.12.4"},
            settings={"subject": {"kind": "workload", "name": "stdlib-functions", "settings": {"classes": 20}},
                      "seeds": list(seeds), "equal": "examples", "epochs": 1.5, "seconds": None},
        ),
    )  # fmt: skip
    return summary.model_copy(update=changes)


def made_arm(
    name: str, quality: float, speed: float, *, ranks: int = 4, seeds: Sequence[int] = (0, 1, 2)
) -> ArmSummary:
    """One arm; `speed` is over the baseline's."""
    chance = random.Random(name)
    is_baseline = name == "ddp"
    reached = [92.4 / speed * chance.uniform(0.98, 1.02) for _ in seeds]
    differences: dict[str, Difference] = {
        "quality": "no significant difference",
        "time_to_target": "better" if speed > 1.1 else "no significant difference",
        "examples_per_second": "better" if speed > 1.1 else "no significant difference",
        "peak_bytes": "worse" if speed > 1.1 else "no significant difference",
    }
    waits = speed < 1.1
    return arm_type()(
        name=name,
        strategy=name,
        settings={} if waits else {"wait_for": 2},
        is_baseline=is_baseline,
        learning_rate_factor=1.0,
        runs=tuple(
            Outcome(seed=seed, folder=f"{name}/seed-{seed}", status=0, seconds=130.0 / speed, why=None)
            for seed in seeds
        ),
        seeds=tuple(seeds),
        alongside={},
        quality=estimate([quality + chance.gauss(0.0, 0.004) for _ in seeds]),
        time_to_target=estimate(reached),
        target_reached=(len(seeds), len(seeds)),
        examples_per_second=estimate([823.0 * speed * chance.uniform(0.99, 1.01) for _ in seeds]),
        seconds=estimate([123.4 / speed for _ in seeds]),
        examples=estimate([60_000.0 for _ in seeds]),
        speedup=None if is_baseline else estimate([speed * chance.uniform(0.98, 1.02) for _ in seeds]),
        target_speedup=None if is_baseline else estimate([92.4 / one for one in reached]),
        no_wait_share=estimate([0.66 * speed * chance.uniform(0.99, 1.01) for _ in seeds]),
        bytes_per_step=estimate([1_245_184.0 for _ in seeds]),
        peak_bytes=estimate([(301e6 if waits else 342e6) + 1e5 * seed for seed in seeds]),
        differences={} if is_baseline else differences,
        steps=made_steps(name, chance),
        curves=tuple(_curve(seed, quality, speed, chance) for seed in seeds),
        losses=tuple(_losses(seed, speed, chance) for seed in seeds),
        arrival=made_arrival(ranks, seeds[0], chance).model_copy(update={"is_together": waits}),
        timeline=(lanes := made_timeline(min(ranks, 16), waits, chance)),
        marks=() if waits else made_marks(lanes),
        rounds=None if waits else made_rounds(ranks, seeds, chance),
    )


def estimate(values: Sequence[float]) -> Estimate:
    """A mean, and about its interval."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean=mean, low=None, high=None, values=tuple(values))
    half = 2.5 * max(abs(value - mean) for value in values) / math.sqrt(len(values))
    return Estimate(mean=mean, low=mean - half, high=mean + half, values=tuple(values))


def made_steps(name: str, chance: random.Random) -> StepTimes:
    shares = dict(zip(_ACTIVITIES, SHARES[name if name in SHARES else "ddp"], strict=True))
    mean = sum(shares.values())
    lengths = sorted(mean * chance.lognormvariate(0.0, 0.09) for _ in range(2000))
    low, high = 0.02, 0.06
    edges = [low + (high - low) * number / 40 for number in range(41)]
    counts = [0] * 40
    for length in lengths:
        counts[min(39, max(0, int((length - low) / (high - low) * 40)))] += 1
    p50, p95, p99 = (lengths[int(share * len(lengths))] for share in (0.50, 0.95, 0.99))
    return StepTimes(
        count=len(lengths), mean=mean, p50=p50, p95=p95, p99=p99, edges=tuple(edges), counts=tuple(counts),
        shares=shares,
    )  # fmt: skip


def made_arrival(ranks: int, seed: int, chance: random.Random, columns: int = 40) -> Arrival:
    slow = min(3, ranks - 1)
    late = [0.0155 if rank == slow else 0.0012 for rank in range(ranks)]
    heat = tuple(
        tuple(None if column == 7 else max(0.0, chance.gauss(mean, 0.2 * mean)) for column in range(columns))
        for mean in late
    )
    return Arrival(
        seed=seed,
        is_together=True,
        ranks=tuple(
            RankArrival(
                rank=rank,
                lateness_mean=mean,
                lateness_p95=mean * 1.5,
                last_share=0.94 if rank == slow else 0.06 / ranks,
                step_mean=0.0416,
            )
            for rank, mean in enumerate(late)
        ),
        slow_rank=slow,
        sentence=f"Rank {slow} came last in 94% of the steps, 15.5 ms after the first one in the mean.",
        steps=tuple(range(6, 6 + 10 * columns, 10)),
        heat=heat,
    )


def made_timeline(ranks: int, waits: bool, chance: random.Random, steps: int = 20) -> tuple[Lane, ...]:
    now = [0.0] * ranks
    spans: list[list[tuple[str, float, float]]] = [[] for _ in range(ranks)]
    for _ in range(steps):
        for rank in range(ranks):
            for name, seconds in (("data", 0.0006), ("compute", chance.gauss(0.035 if rank == 3 else 0.020, 0.0012))):
                spans[rank].append((name, now[rank], now[rank] + seconds))
                now[rank] += seconds
        latest = max(now)
        for rank in range(ranks):
            rest = [("communication", 0.003 if waits else 0.0015), ("update", 0.0011)]
            if waits and latest > now[rank]:
                rest.insert(0, ("waiting", latest - now[rank]))
            for name, seconds in rest:
                spans[rank].append((name, now[rank], now[rank] + seconds))
                now[rank] += seconds
    end = min(now)
    return tuple(
        Lane(rank=rank, spans=tuple((name, low, min(high, end)) for name, low, high in own if low < end))
        for rank, own in enumerate(spans)
    )


def made_marks(lanes: Sequence[Lane]) -> tuple[Mark, ...]:
    """A round each time the first rank has computed; it takes in what has come since the one before it."""
    arrivals = [(end, lane.rank) for lane in lanes for name, _, end in lane.spans if name == "compute"]
    marks = []
    before = -1.0
    for number, time in enumerate((end for end, rank in sorted(arrivals) if rank == lanes[0].rank), 100):
        given = tuple((rank, end, int(rank == 3)) for end, rank in sorted(arrivals) if before < end <= time)
        marks.append(Mark(number=number, time=time + 0.001, given=given))
        before = time
    return tuple(marks)


def made_rounds(ranks: int, seeds: Sequence[int], chance: random.Random) -> RoundsSummary:
    """Most rounds have nearly all workers in them, and most gradients are fresh."""
    contributors = tuple(int(900 * math.exp(-0.7 * abs(ranks - 1 - count))) for count in range(ranks + 1))
    staleness = (6100, 1730, 401, 96, 17, 0, 2)
    shares = [0.6 if rank == 3 else 1.0 for rank in range(ranks)]
    return RoundsSummary(
        count=estimate([2412.0 + chance.randint(-9, 9) for _ in seeds]),
        per_second=estimate([28.1 + chance.gauss(0.0, 0.3) for _ in seeds]),
        contributors=contributors,
        contributors_mean=sum(number * count for number, count in enumerate(contributors)) / sum(contributors),
        fresh_share=estimate([0.73 + chance.gauss(0.0, 0.01) for _ in seeds]),
        live=(ranks, ranks),
        staleness=staleness,
        staleness_mean=sum(number * count for number, count in enumerate(staleness)) / sum(staleness),
        effective_batch=estimate([25.0 + chance.gauss(0.0, 0.2) for _ in seeds]),
        rank_shares=tuple(share / sum(shares) for share in shares),
        waiting_share=estimate([0.008 + chance.gauss(0.0, 0.001) for _ in seeds]),
        waiting_in_step=estimate([0.29 + chance.gauss(0.0, 0.005) for _ in seeds]),
    )


def _curve(seed: int, quality: float, speed: float, chance: random.Random, points: int = 24) -> Curve:
    done = [(number + 1) / points for number in range(points)]
    return Curve(
        seed=seed,
        seconds=tuple(123.4 / speed * share * (1.0 + 0.004 * seed) for share in done),
        examples=tuple(int(60_000 * share) for share in done),
        bytes=tuple(int(9.3e9 * share) for share in done),
        quality=tuple(quality * (1.0 - math.exp(-4.2 * share)) + chance.gauss(0.0, 0.006) for share in done),
    )


def _losses(seed: int, speed: float, chance: random.Random, points: int = 120) -> Curve:
    done = [(number + 1) / points for number in range(points)]
    return Curve(
        seed=seed,
        seconds=tuple(123.4 / speed * share for share in done),
        examples=tuple(int(60_000 * share) for share in done),
        bytes=tuple(int(9.3e9 * share) for share in done),
        quality=tuple(2.3 * math.exp(-2.4 * share) + 0.45 + chance.gauss(0.0, 0.05) for share in done),
    )


def failed_arm(name: str = "gossip", why: str = "rank 1 was killed by SIGKILL") -> ArmSummary:
    """An arm of which no run ended well: nothing is known of it but why."""
    nothing: dict[str, Any] = dict.fromkeys(
        ("quality", "time_to_target", "target_reached", "examples_per_second", "seconds", "examples", "speedup",
         "target_speedup", "no_wait_share", "bytes_per_step", "peak_bytes", "steps", "arrival", "learning_rate_factor")
    )  # fmt: skip
    status: Literal[1] = 1
    return arm_type()(
        name=name, strategy=name, settings={}, is_baseline=False, differences={}, curves=(), losses=(), timeline=(),
        runs=(
            Outcome(seed=0, folder=f"{name}/seed-0", status=status, seconds=3.2, why=why),
            Outcome(seed=1, folder=f"{name}/seed-1", status=None, seconds=None, why=None),
        ),
        seeds=(),
        alongside={},
        **nothing,
    )  # fmt: skip
