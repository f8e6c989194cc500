"""Wrong workers: how many a rule bears, and whether coded steps end where they would without them.

python benchmarks/truth/wrong_workers.py [--quick] [--only TRIAL ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from harness import SEEDS, Claim, Trial, at_least, at_most, main, quietly, seeds  # isort: skip
import robust
import torch
from torch import Tensor

from quorate.aggregation import rules
from quorate.aggregation.attacks import ATTACKS, Attack
from quorate.aggregation.rule import aggregated
from quorate.core.codec import Draw
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

SIZES = (11, 15, 23)
"""Numbers of vectors."""
NUMBERS = 2000
CRUDE = tuple(name for name in ATTACKS if name not in ("replayed", "delayed", "nan"))
"""Attacks that depend on no earlier step, with finite vectors."""


def vectors(size: int, wrong: int, attack: str, seed: int) -> tuple[Tensor, Tensor]:
    """Return the vectors of honest workers around a common gradient, and all vectors, the last ones wrong."""
    draw = torch.Generator().manual_seed(seed)
    common = torch.randn(NUMBERS, generator=draw, dtype=torch.float64)
    every = common + 0.5 * torch.randn(size, NUMBERS, generator=draw, dtype=torch.float64)
    honest = every[: size - wrong]
    attacking = Attack(name=attack, count=wrong)  # type: ignore[arg-type]
    sent = [attacking.sent(own, honest, Draw(round=seed, rank=rank)) for rank, own in enumerate(every[size - wrong :])]
    return honest, torch.cat([honest, torch.stack(sent)]) if sent else honest


def bears(name: str, size: int, wrong: int, seed: int) -> bool:
    """Return whether a rule's result has at least half of the honest mean in its direction, under every attack."""
    rule = rules.get(name)()
    rule = rule.with_f(min(wrong, rule.most_of(size)))
    for attack in CRUDE:
        honest, every = vectors(size, wrong, attack, seed)
        mean = honest.mean(0)
        if float(aggregated(rule, every, draw=Draw(round=seed)) @ mean) < 0.5 * float(mean @ mean):
            return False
    return True


def borne(name: str, seed: int) -> Sequence[float]:
    """Return the greatest number of wrong vectors that a rule bears over the published one, by number of vectors."""
    shares = []
    for size in SIZES:
        published = rules.get(name)().most_of(size)
        wrong = 0
        while wrong < size // 2 and bears(name, size, wrong + 1, seed):
            wrong += 1
        shares.append(wrong / published)
    return shares


def breakdown(name: str) -> Callable[[bool], list[float]]:
    """Return a trial: `borne` for every seed and number of vectors."""
    return lambda is_quick: [share for seed in seeds(is_quick) for share in borne(name, seed)]


def mean_breaks(is_quick: bool) -> list[float]:
    """Return the distance of the mean from that of honest vectors over their own distance, 1 of 11 wrong, by seed."""
    distances = []
    for seed in SEEDS:
        honest, every = vectors(11, 1, "constant", seed)
        reach = (honest - honest.mean(0)).norm(dim=1).max()
        distances.append(float((every.mean(0) - honest.mean(0)).norm() / reach))
    return distances


@cache
def digits(seed: int) -> Any:
    """Return the images of the benchmark of robust rules in another order."""
    images, labels, *others = robust.digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images[order], labels[order], *others


def ended(strategy: str, attack: str, seed: int) -> tuple[float, list[float]]:
    """Return accuracy and parameters after a training of 10 workers, one of them wrong if there is an attack."""
    task = partial(robust.coded_end, strategy, attack, digits(seed))
    end: tuple[float, list[float]] = quietly(lambda: VirtualWorld(10, timeout=600.0).run(joined(task))[0])
    return end


def draco(is_quick: bool) -> list[float]:
    """Return the greatest difference of a parameter from the training without attacks, under three attacks, by seed."""
    differences = list[float]()
    attacks = ("sign-flip",) if is_quick else ("sign-flip", "constant", "nan")
    for seed in seeds(is_quick):
        _, without = ended("draco", "", seed)
        attacked = [ended("draco", attack, seed)[1] for attack in attacks]
        differences.append(max(abs(a - b) for under in attacked for a, b in zip(under, without, strict=True)))
    return differences


def little_is_enough(is_quick: bool) -> list[float]:
    """Return the points of accuracy that Krum loses under `little-is-enough` of 3 among 15 workers, by seed."""
    lost = []
    for seed in seeds(is_quick):
        ends = [
            quietly(
                lambda attack=attack, seed=seed: VirtualWorld(15, timeout=600.0).run(
                    joined(partial(robust.train, "krum", 3, attack, digits(0), seed))
                )[0]
            )
            for attack in ("", "little-is-enough")
        ]
        lost.append(ends[0] - ends[1])
    return lost


KRUM = "Blanchard et al., Machine learning with adversaries, NeurIPS 2017 (Krum)"
VECTORS_DIFFER = (
    "2,000 numbers; 11, 15 and 23 vectors; the last ones follow one of six attacks with default strengths. Vectors are "
    "borne if the result has at least half of the honest mean in its direction (30 degrees in Krum's definition)"
)
TRIALS = (
    Trial(
        name="breakdown of Krum",
        claim=Claim(
            claim="Krum bears f wrong vectors of n from n = 2 f + 3 on",
            source=KRUM,
            published="(n - 3) / 2",
            on_what="a proof, and small networks on MNIST and spam",
        ),
        figure="greatest number of wrong vectors borne / published number",
        differs=VECTORS_DIFFER,
        world="computed",
        bounds=at_least(1.0, 0.5),
        measure=breakdown("krum"),
    ),
    Trial(
        name="breakdown of Bulyan",
        claim=Claim(
            claim="Bulyan bears f wrong vectors of n from n = 4 f + 3 on",
            source="El Mhamdi et al., The hidden vulnerability of distributed learning in Byzantium, ICML 2018",
            published="(n - 3) / 4",
            on_what="a proof, and small networks on MNIST and CIFAR-10",
        ),
        figure="greatest number of wrong vectors borne / published number",
        differs=VECTORS_DIFFER,
        world="computed",
        bounds=at_least(1.0, 0.5),
        measure=breakdown("bulyan"),
        note="more are borne than published, because these attacks are not the worst possible ones",
    ),
    Trial(
        name="breakdown of the mean",
        claim=Claim(
            claim="one wrong vector moves the mean anywhere",
            source=KRUM,
            published="no wrong vector is borne",
            on_what="a proof",
        ),
        figure="distance of the mean from the honest one / greatest distance of an honest vector, 1 of 11 `constant`",
        differs="2,000 numbers; one attack with its default strength",
        world="computed",
        bounds=at_least(1.1, 0.5),
        measure=mean_breaks,
    ),
    Trial(
        name="DRACO",
        claim=Claim(
            claim="DRACO ends with the model of a training without attacks",
            source="Chen et al., DRACO, ICML 2018",
            published="identical",
            on_what="ResNet-18 on CIFAR-10 and others, 45 workers",
        ),
        figure="greatest difference of a parameter under three attacks",
        differs="10 virtual workers, one wrong, groups of three; a small network on digits",
        world="simulated",
        bounds=at_most(0.0, 1e-5),
        measure=draco,
        note="each batch is computed three times, which this figure leaves out",
    ),
    Trial(
        name="little is enough",
        claim=Claim(
            claim="small, well chosen changes defeat Krum and other rules",
            source="Baruch et al., A little is enough, NeurIPS 2019",
            published="half of the accuracy lost",
            on_what="CIFAR-10, 20 % of the workers wrong",
        ),
        figure="points of accuracy that Krum loses under `little-is-enough`",
        differs="15 virtual workers of which 3 are wrong, a small network on digits, momentum of workers",
        world="simulated",
        bounds=at_least(20.0, 3.0),
        measure=little_is_enough,
    ),
)

if __name__ == "__main__":
    sys.exit(main(__file__, __doc__, TRIALS))
