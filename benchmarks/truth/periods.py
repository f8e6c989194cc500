"""Local steps: what DiLoCo sends and what its loss is, outer momentum, and learners that fail.

python benchmarks/truth/periods.py [--quick] [--only TRIAL ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

from harness import TUNING_SEED, Bounds, Claim, Trial, at_least, at_most, main, quietly, seeds  # isort: skip
import codec_trainings as codes
import outer_trainings as outer
import published_goodput as goodput
from training import Training, lowest, trained

PERIOD, STEPS, WORKERS = 50, 1500, 4
PUBLISHED_OUTER = outer.Arm(0.7, 0.9)
OUTER = (PUBLISHED_OUTER, outer.Arm(0.7, 0.5), outer.Arm(1.0, 0.0), outer.Arm(1.0, 0.3), outer.Arm(1.0, 0.5))
RATES = (0.1, 0.2, 0.4, 0.8)


def exchanges(is_quick: bool) -> list[float]:
    """Return the bytes of a step of all-reduce over those of DiLoCo with 500 local steps, two workers, by seed."""
    period = 50 if is_quick else 500
    ways = (codes.Way(name="dense"), codes.Way(name="diloco", strategy="diloco", settings={"sync_every": period}))
    sent = [
        [
            quietly(partial(codes.trained, "digits", way, 0.1, seed, steps, workers=2, every=steps)).nbytes
            for way, steps in zip(ways, (20, 2 * period), strict=True)
        ]
        for seed in seeds(is_quick)
    ]
    return [dense / local for dense, local in sent]


@cache
def losses(seed: int, *, is_quick: bool) -> Sequence[float]:
    """Return the last losses of all outer settings over that of all-reduce, on the next byte of Python's library."""
    cell, steps = outer.Cell("stdlib-bytes", WORKERS, PERIOD), 4 * PERIOD if is_quick else STEPS
    (synchronous,) = quietly(partial(outer.trained, cell, (), seed, steps))
    return [loss / synchronous for loss in quietly(partial(outer.trained, cell, OUTER, seed, steps))]


def published_outer(is_quick: bool) -> list[float]:
    return [losses(seed, is_quick=is_quick)[0] for seed in seeds(is_quick)]


def tuned_outer(is_quick: bool) -> list[float]:
    """Return the loss of the outer setting that is best with a seed that does not count."""
    tuning = losses(TUNING_SEED, is_quick=is_quick)
    return [losses(seed, is_quick=is_quick)[tuning.index(min(tuning))] for seed in seeds(is_quick)]


def slowmo(is_quick: bool) -> list[float]:
    """Return the loss of SlowMo over that of local SGD after equal steps, each at its best rate, by seed."""
    steps = 36 if is_quick else 180
    sides = [
        lowest(Training(strategy=name, settings=settings, steps=steps), RATES)
        for name, settings in (
            ("slowmo", {"sync_every": 12, "slow_every": 1, "beta": 0.5}),
            ("local-sgd", {"sync_every": 12}),
        )
    ]
    pairs = [[trained(replace(side, seed=seed)).loss for side in sides] for seed in seeds(is_quick)]
    return [own / plain for own, plain in pairs]


def post_local(is_quick: bool) -> list[float]:
    """Return the points of accuracy of post-local SGD above synchronous SGD after equal steps, by seed."""
    steps = 30 if is_quick else 150
    settings = {"sync_every": 16, "after": steps // 2}
    sides = [
        lowest(Training(strategy=name, settings=chosen, steps=steps, workers=16, momentum=0.9), (0.05, 0.1, 0.2))
        for name, chosen in (("post-local-sgd", settings), ("all-reduce", {}))
    ]
    pairs = [[trained(replace(side, seed=seed)).accuracy for side in sides] for seed in seeds(is_quick)]
    return [own - synchronous for own, synchronous in pairs]


def useful(cell: goodput.Cell) -> Callable[[bool], list[float]]:
    """Return a trial: the goodput of a machine, in percent, by seed of the failures."""
    failures, recovery = goodput.failures_from(goodput.FAILURES), goodput.recovery_from(goodput.RECOVERY)
    return lambda is_quick: [
        100 * goodput.told(cell, 0.1 if is_quick else 1.0, seed, failures, recovery).goodput for seed in seeds(is_quick)
    ]


DILOCO = "Douillard et al., DiLoCo, 2023 (arXiv 2311.08105)"
DILOCO_DIFFERS = (
    "4 replicas side by side in one process, 1,500 steps of AdamW, a mean every 50; a network of 11,000 parameters "
    "learns the next byte"
)
C4 = "language models of 60 to 400 million parameters on C4, 8 workers, 500 local steps"
DECOUPLED = "Douillard et al., Decoupled DiLoCo, 2026 (arXiv 2604.21428)"
CHIPS_DIFFER = (
    "one simulated day; the costs of a failure are assumed, and two of them fitted to other published cells "
    "(`benchmarks/published_goodput.py`)"
)
TRIALS = (
    Trial(
        name="DiLoCo: communication",
        claim=Claim(
            claim="DiLoCo communicates 500 times less than synchronous training",
            source=DILOCO,
            published="500",
            on_what=C4,
        ),
        figure="bytes of a step, all-reduce / diloco with 500 local steps",
        differs="2 virtual workers, a small network, 1,000 steps, counted on the wire",
        world="simulated",
        bounds=at_least(475.0, 100.0),
        measure=exchanges,
    ),
    Trial(
        name="DiLoCo: loss, published outer step",
        claim=Claim(
            claim="DiLoCo is as good as synchronous training", source=DILOCO, published="same quality", on_what=C4
        ),
        figure="last loss, rate 0.7 and momentum 0.9 / all-reduce with equal data",
        differs=DILOCO_DIFFERS,
        world="simulated",
        bounds=at_most(1.02, 1.1),
        measure=published_outer,
        note="there are 30 outer steps here; the published setting overshoots with few",
    ),
    Trial(
        name="DiLoCo: loss, tuned outer step",
        claim=Claim(
            claim="DiLoCo is as good as synchronous training", source=DILOCO, published="same quality", on_what=C4
        ),
        figure="last loss, best of five outer settings / all-reduce with equal data",
        differs=DILOCO_DIFFERS,
        world="simulated",
        bounds=at_most(1.02, 1.1),
        measure=tuned_outer,
    ),
    Trial(
        name="SlowMo",
        claim=Claim(
            claim="SlowMo ends with a lower loss than its base optimizer",
            source="Wang et al., SlowMo, ICLR 2020",
            published="better loss at equal run time",
            on_what="ResNet-50 on ImageNet, Transformer on WMT16",
        ),
        figure="last loss, slowmo with beta 0.5 / local-sgd",
        differs="8 virtual workers, a small network on noisy digits, a mean every 12 of 180 steps; best rate of four",
        world="simulated",
        bounds=at_most(0.98, 1.02),
        measure=slowmo,
    ),
    Trial(
        name="post-local SGD",
        claim=Claim(
            claim="post-local SGD generalizes better than synchronous SGD with the same large batch",
            source="Lin et al., Don't use large mini-batches, use local SGD, ICLR 2020",
            published="better generalization",
            on_what="ResNet-20 on CIFAR-10, 16 workers; ImageNet",
        ),
        figure="points of accuracy above all-reduce after equal steps",
        differs="16 virtual workers, a small network on noisy digits, local in the second half of 150 steps",
        world="simulated",
        bounds=at_least(0.2, -0.5),
        measure=post_local,
    ),
    Trial(
        name="Decoupled DiLoCo: 8 learners",
        claim=Claim(
            claim="8 decoupled learners keep a goodput of 88 % on 1.2 million chips",
            source=DECOUPLED,
            published="88 %",
            on_what="a simulation, one interruption of each chip a year",
        ),
        figure="goodput in percent, 8 learners",
        differs=CHIPS_DIFFER,
        world="simulated",
        bounds=Bounds(holds=(83.0, 93.0), partly=(78.0, 98.0)),
        measure=useful((goodput.DECOUPLED, 1_200_000, 8)),
    ),
    Trial(
        name="Decoupled DiLoCo: one elastic learner",
        claim=Claim(
            claim="one elastic learner keeps 40 % on 2.4 million chips",
            source=DECOUPLED,
            published="40 %",
            on_what="a simulation, one interruption of each chip a year",
        ),
        figure="goodput in percent, one elastic learner",
        differs=CHIPS_DIFFER,
        world="simulated",
        bounds=Bounds(holds=(35.0, 45.0), partly=(30.0, 50.0)),
        measure=useful((goodput.ELASTIC, 2_400_000, 1)),
    ),
)

if __name__ == "__main__":
    sys.exit(main(__file__, __doc__, TRIALS))
