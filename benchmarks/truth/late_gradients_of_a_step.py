"""Gradients that are applied late: one step of delay by optimizer, and servers that do not wait.

    python benchmarks/truth/late_gradients_of_a_step.py [--quick] [--only TRIAL ...]

Losses are those of virtual workers, each side at its best rate.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from harness import TUNING_SEED, Claim, Trial, at_least, at_most, main, quietly, seeds  # isort: skip
import delayed_trainings as delayed
from training import Late, Training, Varied, fastest, lowest, trained

RATES, LOSS = (0.1, 0.2, 0.4, 0.8), 0.6
MOMENTUM_RATES = (0.02, 0.04, 0.08)
SERVERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "sync": ("parameter-server", {"mode": "sync"}),
    "1 backup": ("parameter-server", {"mode": "sync", "backup": 1}),
    "async": ("parameter-server", {"mode": "async"}),
    "DC-ASGD": ("parameter-server", {"mode": "async", "delay_compensation": "adaptive", "compensation": 2.0}),
    "easgd": ("easgd", {}),
    "all-reduce": ("all-reduce", {}),
}


@cache
def held_out(optimizer: str, arm: str, *, is_quick: bool) -> Sequence[float]:
    """Return the loss of each seed at the rate that is best with a seed that does not count."""
    rates = delayed.RATES[optimizer][-1 if is_quick else 0 :]
    every = (TUNING_SEED, *seeds(is_quick))
    steps = 6 if is_quick else delayed.STEPS
    tuning, *losses = quietly(partial(delayed.losses, delayed.Training(optimizer, arm, every, rates, steps=steps)))
    best = tuning.index(min(tuning))
    return [of_rates[best] for of_rates in losses]


def cost_of_delay(optimizer: str) -> Callable[[bool], list[float]]:
    """Return a trial: the loss with one step of delay less that without, in nats."""

    def measure(is_quick: bool) -> list[float]:
        late, prompt = (held_out(optimizer, arm, is_quick=is_quick) for arm in (delayed.DELAYED, delayed.PROMPT))
        return [a - b for a, b in zip(late, prompt, strict=True)]

    return measure


def closed(is_quick: bool) -> list[float]:
    """Return the share of AdamW's gap that the correction closes, by seed."""
    arms = (delayed.DELAYED, delayed.CORRECTED, delayed.PROMPT)
    sides = [held_out("AdamW", arm, is_quick=is_quick) for arm in arms]
    return [(late - corrected) / (late - prompt) for late, corrected, prompt in zip(*sides, strict=True)]


def training(name: str, momentum: float = 0.0) -> Training:
    strategy, settings = SERVERS[name]
    return Training(strategy=strategy, settings=settings, momentum=momentum)


def backup(is_quick: bool) -> list[float]:
    """Return the virtual seconds to a loss of a synchronous server over those with one backup worker, by seed."""
    late, rates = Late(0.28, 0.3, 8), RATES[-2:] if is_quick else RATES
    sides = [
        fastest(replace(training(name), step_seconds=late, seconds=80.0), rates, LOSS) for name in ("sync", "1 backup")
    ]
    ratios = []
    for seed in seeds(is_quick):
        runs = [replace(side, seed=seed, step_seconds=replace(late, seed=seed)) for side in sides]
        sync, own = (trained(run).seconds_to(LOSS) for run in runs)
        ratios.append(sync / own if math.isfinite(own) else 0.0)
    return ratios


@cache
def final(name: str, momentum: float, *, is_quick: bool) -> Sequence[float]:
    """Return the last loss of each seed after equal steps of workers that take unequal times."""
    varied = Varied(0.02, 0.5)
    rates = MOMENTUM_RATES if momentum else RATES
    side = replace(training(name, momentum), steps=40 if is_quick else 120, step_seconds=varied)
    best = lowest(side, rates)
    return [trained(replace(best, seed=seed, step_seconds=replace(varied, seed=seed))).loss for seed in seeds(is_quick)]


def loss_ratio(own: str, other: str, momentum: float = 0.0) -> Callable[[bool], list[float]]:
    """Return a trial: the last loss of one side over that of another, after equal steps."""
    return lambda is_quick: [
        a / b
        for a, b in zip(final(own, momentum, is_quick=is_quick), final(other, momentum, is_quick=is_quick), strict=True)
    ]


DELAY = "arXiv 2606.30634, ICML 2026"
DELAY_DIFFERS = (
    "2 virtual workers, a language model of 30,048 parameters on bytes, 120 steps, nats; every gradient is one step "
    "late; each side at its best rate of three"
)
DIGITS_DIFFER = "8 virtual workers whose steps vary, a small network on noisy digits, 120 steps, best rate each"
LANGUAGE = "language models in pipelines"
TRIALS = (
    Trial(
        name="delay: AdamW",
        claim=Claim(
            claim="one step of delay costs AdamW 0.2 in loss", source=DELAY, published="more than 0.2", on_what=LANGUAGE
        ),
        figure="held-out loss, one step late less prompt",
        differs=DELAY_DIFFERS,
        world="simulated",
        bounds=at_least(0.18, 0.03),
        measure=cost_of_delay("AdamW"),
    ),
    Trial(
        name="delay: Muon",
        claim=Claim(
            claim="one step of delay costs Muon 0.01 in loss", source=DELAY, published="0.012", on_what=LANGUAGE
        ),
        figure="held-out loss, one step late less prompt",
        differs=DELAY_DIFFERS,
        world="simulated",
        bounds=at_most(0.03, 0.1),
        measure=cost_of_delay("Muon"),
    ),
    Trial(
        name="delay: correction",
        claim=Claim(
            claim="the correction closes 50 to 90 % of the gap of delay",
            source=DELAY,
            published="0.5 to 0.9",
            on_what=LANGUAGE,
        ),
        figure="share of the gap of AdamW that the correction closes",
        differs=DELAY_DIFFERS,
        world="simulated",
        bounds=at_least(0.5, 0.1),
        measure=closed,
        note="it closes more at lower rates (`benchmarks/delayed.py`)",
    ),
    Trial(
        name="backup workers",
        claim=Claim(
            claim="a synchronous server with backup workers is faster than one that waits for all",
            source="Chen et al., Revisiting distributed synchronous SGD, 2016 (arXiv 1604.00981)",
            published="faster to the same accuracy; 96 + 4 workers best",
            on_what="Inception on ImageNet, about 100 machines",
        ),
        figure="virtual seconds to equal loss, no backup / one backup",
        differs="8 virtual workers, one random worker late by 300 ms in steps of 280 ms, a small network on digits",
        world="simulated",
        bounds=at_least(1.2, 1.03),
        measure=backup,
    ),
    Trial(
        name="EASGD",
        claim=Claim(
            claim="EASGD reaches a lower error than Downpour at equal work",
            source="Zhang et al., Deep learning with elastic averaging SGD, NeurIPS 2015",
            published="equal or better",
            on_what="CNNs on CIFAR and ImageNet, 4 to 16 GPUs",
        ),
        figure="last loss, easgd / asynchronous server",
        differs=DIGITS_DIFFER,
        world="simulated",
        bounds=at_most(1.0, 1.2),
        measure=loss_ratio("easgd", "async"),
    ),
    Trial(
        name="DC-ASGD over ASGD",
        claim=Claim(
            claim="compensating delays makes asynchronous SGD better",
            source="Zheng et al., Asynchronous SGD with delay compensation, ICML 2017",
            published="better than ASGD, close to sequential SGD",
            on_what="ResNets on CIFAR-10 and ImageNet",
        ),
        figure="last loss, DC-ASGD / asynchronous server",
        differs=DIGITS_DIFFER,
        world="simulated",
        bounds=at_most(0.97, 1.03),
        measure=loss_ratio("DC-ASGD", "async"),
    ),
    Trial(
        name="DC-ASGD beside synchronous SGD",
        claim=Claim(
            claim="DC-ASGD is close to sequential SGD",
            source="Zheng et al., Asynchronous SGD with delay compensation, ICML 2017",
            published="close to sequential SGD",
            on_what="ResNets on CIFAR-10 and ImageNet",
        ),
        figure="last loss, DC-ASGD / all-reduce",
        differs=DIGITS_DIFFER,
        world="simulated",
        bounds=at_most(1.05, 1.2),
        measure=loss_ratio("DC-ASGD", "all-reduce"),
    ),
)

if __name__ == "__main__":
    sys.exit(main(__file__, __doc__, TRIALS))
