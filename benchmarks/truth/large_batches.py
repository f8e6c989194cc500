"""Large batches at equal numbers of examples, and the curve of losses across deaths.

python benchmarks/truth/large_batches.py [--quick] [--only TRIAL ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

from harness import SEEDS, Claim, Trial, at_least, at_most, main, quietly, seeds  # isort: skip
import kept_batch
import large_batch
import numpy as np

DIGITS = large_batch.TASKS[0]


@cache
def accuracy(arm: str, factor: int, seed: int) -> float:
    result: float = quietly(lambda: large_batch.accuracy(DIGITS, arm, factor, seed))
    return result


def points_lost(arm: str, factor: int) -> Callable[[bool], list[float]]:
    """Return a trial: points of accuracy below the usual batch with its usual rate."""
    return lambda is_quick: [accuracy("unscaled", 1, seed) - accuracy(arm, factor, seed) for seed in seeds(is_quick)]


def kept(is_quick: bool) -> list[float]:
    """Return the greatest distance of the curve of losses from that without a death, over the spread of seeds."""
    from quorate.launch.warm.run_server import RunServer

    updates, every = (24, (1, 2)) if is_quick else (60, SEEDS)
    with RunServer() as server:
        curves = {
            arm: np.array([kept_batch.measured(server, arm, seed, updates)[0] for seed in every])
            for arm in ("no death", "kept")
        }
    spread = curves["no death"].std(0, ddof=1).mean()
    return [float(x) for x in np.abs(curves["kept"] - curves["no death"]).max(1) / spread]


LARS = "You et al., Large batch training of convolutional networks, 2017 (LARS)"
DIGITS_DIFFER = "one process, a convolutional network on digits, usual batch of 32, 15 epochs; 21 steps at 32 times"
TRIALS = (
    Trial(
        name="LARS",
        claim=Claim(
            claim="LARS keeps the accuracy with a batch of 32 thousand",
            source=LARS,
            published="no loss at 32,768, 128 times the usual batch",
            on_what="ResNet-50 and AlexNet on ImageNet",
        ),
        figure="points of accuracy lost at 32 times the usual batch, LARS",
        differs=f"{DIGITS_DIFFER}; the rate was tuned with another seed",
        world="real processes, losses only",
        bounds=at_most(1.0, 3.0),
        measure=points_lost("LARS", 32),
    ),
    Trial(
        name="LAMB",
        claim=Claim(
            claim="LAMB keeps the quality with a batch of 32 to 64 thousand",
            source="You et al., Large batch optimization for deep learning, ICLR 2020 (LAMB)",
            published="no loss",
            on_what="BERT, TPUv3 pod of 1,024 chips",
        ),
        figure="points of accuracy lost at 32 times the usual batch, LAMB",
        differs=f"{DIGITS_DIFFER}; the rate was tuned with another seed",
        world="real processes, losses only",
        bounds=at_most(1.0, 3.0),
        measure=points_lost("LAMB", 32),
    ),
    Trial(
        name="linear scaling",
        claim=Claim(
            claim="a rate scaled with the batch, after a warm-up, keeps the accuracy at 32 times the batch",
            source="Goyal et al., Accurate, large minibatch SGD, 2017",
            published="no loss at 8,192, 32 times 256",
            on_what="ResNet-50 on ImageNet, 256 P100",
        ),
        figure="points of accuracy lost at 32 times the usual batch, SGD with linear scaling",
        differs=DIGITS_DIFFER,
        world="real processes, losses only",
        bounds=at_most(1.0, 3.0),
        measure=points_lost("linear", 32),
    ),
    Trial(
        name="large batch without scaling",
        claim=Claim(
            claim="without scaling the rate, a large batch loses accuracy",
            source="Goyal et al., Accurate, large minibatch SGD, 2017",
            published="accuracy lost",
            on_what="ResNet-50 on ImageNet",
        ),
        figure="points of accuracy lost at 32 times the usual batch, unchanged rate",
        differs=DIGITS_DIFFER,
        world="real processes, losses only",
        bounds=at_least(3.0, 0.5),
        measure=points_lost("unscaled", 32),
    ),
    Trial(
        name="constant batch across deaths",
        claim=Claim(
            claim="survivors that compute the micro-batches of dead workers keep the curve of losses",
            source="arXiv 2605.11215, 2026",
            published="the same curve",
            on_what="language models on GPUs that fail",
        ),
        figure="greatest distance from the curve without a death / standard deviation of seeds",
        differs="6 processes of which two are killed, a perceptron, 24 micro-batches a step, 60 updates",
        world="real processes, losses only",
        bounds=at_most(0.1, 1.0),
        measure=kept,
        note="what the survivors' steps cost in time is in `benchmarks/kept_batch.py`",
    ),
)

if __name__ == "__main__":
    sys.exit(main(__file__, __doc__, TRIALS))
