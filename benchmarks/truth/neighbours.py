"""Gossip and group averages over simulated networks: throughput, time to a loss, accuracy.

python benchmarks/truth/neighbours.py [--quick] [--only TRIAL ...]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from harness import Claim, Trial, at_least, at_most, main, seeds  # isort: skip
import wait_avoiding
from training import Slow, Training, Varied, Weight, fastest, lowest, trained

from quorate.wire.virtual.network import Network

GRADIENT, SMALL_GRADIENT = 102e6, 1.08e6
"""Bytes, of ResNet-50 and of ResNet-20."""
RATES, LOSS = (0.1, 0.2, 0.4, 0.8), 0.6
SLOW_FACTOR = 6.0


def rate(strategy: str, workers: int, network: Network, step: Varied | Slow, seconds: float) -> float:
    """Return gradients per virtual second, for a model that takes no time to compute."""
    training = Training(strategy=strategy, task="weight", workers=workers, batch=1, seconds=seconds, step_seconds=step,
                        network=network, look_every=10**6, seed=step.seed)  # fmt: skip
    return trained(training).gradients_per_second


def scaled(gigabits: float, gradient: float, latency: float, workers: int) -> Network:
    """Return a network on which the model of a trial takes as long as the gradient that it represents."""
    bandwidth = gigabits * 1e9 / 8 * 4 * Weight.numbers / gradient
    return Network(latency=latency, bandwidth=bandwidth, hosts=tuple(range(workers)))


def sgp(is_quick: bool) -> list[float]:
    workers = 8 if is_quick else 32
    network = scaled(10.0, GRADIENT, 20e-6, workers)
    steps = [Varied(0.1, 0.05, seed) for seed in seeds(is_quick)]
    return [
        rate("sgp", workers, network, step, 3.0) / rate("all-reduce", workers, network, step, 3.0) for step in steps
    ]


def sgp_accuracy(is_quick: bool) -> list[float]:
    """Return the points of accuracy that one replica of SGP is below all-reduce after equal steps, by seed."""
    steps = 40 if is_quick else 150
    sides = [lowest(Training(strategy=name, workers=16, steps=steps), RATES) for name in ("all-reduce", "sgp")]
    pairs = [[trained(replace(side, seed=seed)).accuracy for side in sides] for seed in seeds(is_quick)]
    return [all_reduce - own for all_reduce, own in pairs]


def ad_psgd(is_quick: bool) -> list[float]:
    workers = 8 if is_quick else 32
    network = scaled(10.0, GRADIENT, 20e-6, workers)
    steps = [Slow(0.3, SLOW_FACTOR, seed) for seed in seeds(is_quick)]
    names = ("ad-psgd", "all-reduce")
    pairs = [[rate(name, workers, network, step, 12.0) for name in names] for step in steps]
    return [own / all_reduce for own, all_reduce in pairs]


def ad_psgd_loss(is_quick: bool) -> list[float]:
    """Return the seconds to a loss of all-reduce over those of AD-PSGD, one of 8 workers slow."""
    slow, rates = Slow(0.1, SLOW_FACTOR), RATES[-2:] if is_quick else RATES
    sides = {
        name: fastest(Training(strategy=name, seconds=seconds, step_seconds=slow), rates, LOSS)
        for name, seconds in (("all-reduce", 90.0), ("ad-psgd", 30.0))
    }
    ratios = []
    for seed in seeds(is_quick):
        times = [
            trained(replace(side, seed=seed, step_seconds=replace(slow, seed=seed))).seconds_to(LOSS)
            for side in sides.values()
        ]
        ratios.append(times[0] / times[1] if math.isfinite(times[1]) else 0.0)
    return ratios


def d_psgd(is_quick: bool) -> list[float]:
    workers = 8 if is_quick else 32
    network = scaled(0.1, SMALL_GRADIENT, 0.02, workers)
    steps = [Varied(0.1, 0.05, seed) for seed in seeds(is_quick)]
    names = ("d-psgd", "all-reduce")
    pairs = [[rate(name, workers, network, step, 9.0) for name in names] for step in steps]
    return [own / all_reduce for own, all_reduce in pairs]


def wagma(period: int) -> Callable[[bool], list[float]]:
    """Return a trial: seconds of a step of SGP over those of group averages with a mean of all every so many steps."""

    def measure(is_quick: bool) -> list[float]:
        workers, steps = (64, 2 * period) if is_quick else (1024, 240)
        groups = partial(wait_avoiding.now_and_then, period=period)
        ratios = []
        for seed in seeds(is_quick):
            own = wait_avoiding.drawn(workers, steps, seed)
            ratios.append(wait_avoiding.reckoned(wait_avoiding.one_giver, own) / wait_avoiding.reckoned(groups, own))
        return ratios

    return measure


SGP = "Assran et al., Stochastic gradient push, ICML 2019"
AD_PSGD = "Lian et al., Asynchronous decentralized parallel SGD, ICML 2018"
WAGMA = Claim(
    claim="WAGMA-SGD has 2.1 times the throughput of other decentralized methods",
    source="Li et al., Breaking (global) barriers with wait-avoiding group averaging, TPDS 2021",
    published="up to 2.1",
    on_what="reinforcement learning (navigation), 1,024 GPUs, steps of 1.7 to 43.5 s",
)
WAGMA_DIFFERS = "step times are drawn with the published range, 240 steps of 1,024 workers; messages take no time"
TRIALS = (
    Trial(
        name="SGP",
        claim=Claim(
            claim="SGP trains more than 3.1 times as fast as all-reduce over 10 Gbit/s",
            source=SGP,
            published="1.6 h instead of more than 5 h",
            on_what="ResNet-50, ImageNet, 32 nodes of 8 GPUs, 10 Gbit/s",
        ),
        figure="gradients per virtual second, sgp / all-reduce",
        differs="32 virtual workers with a port of 10 Gbit/s each, which all-reduce fills; steps of 0.1 s are assumed",
        world="simulated",
        bounds=at_least(2.8, 1.1),
        measure=sgp,
        note="a ring sends 1.94 gradients and SGP 1; a greater factor needs an all-reduce that leaves links idle",
    ),
    Trial(
        name="SGP: accuracy",
        claim=Claim(
            claim="SGP ends within 1.2 points of all-reduce",
            source=SGP,
            published="1.2 points",
            on_what="ResNet-50, ImageNet, 32 nodes of 8 GPUs",
        ),
        figure="points of accuracy of one replica below all-reduce after equal steps",
        differs="16 virtual workers, a small network on noisy digits, 150 steps, each side at its best rate of four",
        world="simulated",
        bounds=at_most(1.2, 3.0),
        measure=sgp_accuracy,
    ),
    Trial(
        name="AD-PSGD: throughput",
        claim=Claim(
            claim="AD-PSGD is 4 to 8 times as fast as all-reduce in a heterogeneous cluster",
            source=AD_PSGD,
            published="4 to 8 for an epoch",
            on_what="ResNet-50, ImageNet, up to 128 GPUs, shared network",
        ),
        figure="gradients per virtual second, ad-psgd / all-reduce",
        differs="32 virtual workers, one of them 6 times as slow as the others; steps of 0.3 s, 10 Gbit/s",
        world="simulated",
        bounds=at_least(4.0, 1.5),
        measure=ad_psgd,
        note="the factor is about that of the slowest worker",
    ),
    Trial(
        name="AD-PSGD: time to a loss",
        claim=Claim(
            claim="AD-PSGD converges as well for each epoch, so that the factor is also that of time to a loss",
            source=AD_PSGD,
            published="4 to 8",
            on_what="ResNet-50, ImageNet, up to 128 GPUs, shared network",
        ),
        figure="virtual seconds to equal loss, all-reduce / ad-psgd",
        differs="8 virtual workers, one 6 times as slow, a small network on noisy digits, best rate of four each",
        world="simulated",
        bounds=at_least(4.0, 1.2),
        measure=ad_psgd_loss,
    ),
    Trial(
        name="D-PSGD",
        claim=Claim(
            claim="D-PSGD is up to 10 times as fast as all-reduce over slow networks",
            source="Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017",
            published="up to 10",
            on_what="ResNet-20, CIFAR-10, up to 112 GPUs, limited bandwidth or long latency",
        ),
        figure="gradients per virtual second, d-psgd / all-reduce",
        differs="32 virtual workers, ports of 100 Mbit/s, a latency of 20 ms, steps of 0.1 s are assumed",
        world="simulated",
        bounds=at_least(9.0, 1.5),
        measure=d_psgd,
        note="the latency makes the factor: a ring takes 62 messages one after the other",
    ),
    Trial(
        name="WAGMA-SGD, means every 8 steps",
        claim=WAGMA,
        figure="seconds of a step, SGP / group averages with a mean of all every 8 steps",
        differs=WAGMA_DIFFERS,
        world="computed",
        bounds=at_least(1.89, 1.05),
        measure=wagma(8),
    ),
    Trial(
        name="WAGMA-SGD, means every 32 steps",
        claim=WAGMA,
        figure="seconds of a step, SGP / group averages with a mean of all every 32 steps",
        differs=WAGMA_DIFFERS,
        world="computed",
        bounds=at_least(1.89, 1.05),
        measure=wagma(32),
        note="the gain comes from how seldom all wait for the longest step, not from the groups",
    ),
)

if __name__ == "__main__":
    sys.exit(main(__file__, __doc__, TRIALS))
