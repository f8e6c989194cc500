"""Federated learning: rounds to an accuracy, and clients that end a round early. Clients are simulated.

python benchmarks/truth/clients.py [--quick] [--only TRIAL ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from harness import TUNING_SEED, Claim, Trial, at_least, main, quietly, seeds  # isort: skip
import federated

ROUNDS, LOCAL_RATES, WHOLE_RATES = 40, (0.1, 0.3), (0.3, 0.6, 1.0)
MOST_ROUNDS = 250
STRAGGLERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "fed-avg": ("fed-avg", {"dropouts": 0.9}),
    "fed-prox, mu 0": ("fed-prox", {"mu": 0.0, "stragglers": 0.9}),
    "fed-prox, mu 0.1": ("fed-prox", {"mu": 0.1, "stragglers": 0.9}),
}
Arm = tuple[str, int, int]
"""Strategy, local epochs, batch."""


def accuracies(seed: int, **choices: Any) -> list[float]:
    result: list[float] = quietly(partial(federated.accuracies, seed, **choices))
    return result


@cache
def late_accuracy(name: str, seed: int, *, is_quick: bool) -> float:
    """Return the accuracy, the mean of the last ten rounds, while 90 % of the clients end each round early."""
    strategy, more = STRAGGLERS[name]
    settings = {"sampled": 0.2, "local_epochs": 10, **more}
    run = accuracies(seed, strategy=strategy, rate=0.1, batch_size=10, partition="label:each=1", clients=50,
                     rounds=4 if is_quick else ROUNDS, target=None, settings=settings)  # fmt: skip
    return sum(run[-10:]) / len(run[-10:])


def points(own: str, other: str) -> Callable[[bool], list[float]]:
    """Return a trial: points of accuracy of one arm above another."""
    return lambda is_quick: [
        late_accuracy(own, seed, is_quick=is_quick) - late_accuracy(other, seed, is_quick=is_quick)
        for seed in seeds(is_quick)
    ]


def rounds_to(target: float, seed: int, rate: float, arm: Arm, split: Mapping[str, Any], most: int) -> float:
    """Return the rounds until the accuracy is reached; `most` if it never is."""
    strategy, epochs, batch = arm
    choices = dict(split)
    settings = {"sampled": choices.pop("sampled"), "local_epochs": epochs}
    run = accuracies(seed, strategy=strategy, rate=rate, batch_size=batch, rounds=most, target=target,
                     settings=settings, **choices)  # fmt: skip
    return float(len(run))


def at_best(target: float, arm: Arm, split: Mapping[str, Any], *, is_quick: bool) -> list[float]:
    """Return the rounds of each seed at the rate that needs the fewest with a seed that does not count."""
    most = 20 if is_quick else MOST_ROUNDS
    rates = (WHOLE_RATES if arm[2] == federated.WHOLE else LOCAL_RATES)[-1 if is_quick else 0 :]
    best = (
        min(rates, key=lambda rate: rounds_to(target, TUNING_SEED, rate, arm, split, most))
        if len(rates) > 1
        else rates[0]
    )
    return [rounds_to(target, seed, best, arm, split, most) for seed in seeds(is_quick)]


def fewer(target: float, own: Arm, other: Arm, split: Mapping[str, Any]) -> Callable[[bool], list[float]]:
    """Return a trial: the rounds of one arm over those of another."""

    def measure(is_quick: bool) -> list[float]:
        sides = [at_best(target, arm, split, is_quick=is_quick) for arm in (other, own)]
        return [theirs / ours for theirs, ours in zip(*sides, strict=True)]

    return measure


FED_SGD: Arm = ("fed-avg", 1, federated.WHOLE)
ALIKE = {"partition": "iid", "clients": 5, "sampled": 1.0}
UNLIKE = {"partition": "label:each=2", "clients": 20, "sampled": 0.2}
PROX = Claim(
    claim="FedProx gains 22 points over FedAvg in highly heterogeneous settings",
    source="Li et al., Federated optimization in heterogeneous networks, MLSys 2020 (FedProx)",
    published="22 points on average",
    on_what="highly heterogeneous federated data, 90 % of the clients late",
)
FEDAVG = "McMahan et al., Communication-efficient learning, AISTATS 2017 (FedAvg)"
DIGITS = "a network of one hidden layer on 1,400 images of digits"
TRIALS = (
    Trial(
        name="FedProx",
        claim=PROX,
        figure="points of accuracy above FedAvg, 90 % of the drawn clients late",
        differs=f"{DIGITS}; 50 clients with one label each, 10 drawn; FedAvg discards late work; mu is 0.1",
        world="simulated",
        bounds=at_least(20.0, 3.0),
        measure=points("fed-prox, mu 0.1", "fed-avg"),
    ),
    Trial(
        name="FedProx: the proximal term",
        claim=Claim(
            claim="the proximal term itself improves accuracy",
            source=PROX.source,
            published="part of the 22 points",
            on_what=PROX.on_what,
        ),
        figure="points of accuracy with mu = 0.1 above mu = 0, which uses partial work too",
        differs=f"{DIGITS}; 50 clients with one label each, 10 drawn; mu is 0.1",
        world="simulated",
        bounds=at_least(3.0, 0.0),
        measure=points("fed-prox, mu 0.1", "fed-prox, mu 0"),
        note="the gain comes from using partial work; other values of mu gained no more (`benchmarks/federated.py`)",
    ),
    Trial(
        name="SCAFFOLD",
        claim=Claim(
            claim="SCAFFOLD needs fewer rounds than FedAvg on clients that differ",
            source="Karimireddy et al., SCAFFOLD, ICML 2020",
            published="significantly fewer",
            on_what="a proof, and logistic regression on EMNIST",
        ),
        figure="rounds to 95 %, fed-avg / scaffold",
        differs=f"{DIGITS}; 20 clients with about two labels each, 4 drawn, 5 local epochs; best of two rates each",
        world="simulated",
        bounds=at_least(1.5, 1.05),
        measure=fewer(95.0, ("scaffold", 5, 10), ("fed-avg", 5, 10), UNLIKE),
    ),
    Trial(
        name="FedAvg, clients alike",
        claim=Claim(
            claim="FedAvg needs 10 to 100 times fewer rounds than FedSGD",
            source=FEDAVG,
            published="10 to 100",
            on_what="CNN on MNIST and LSTM on Shakespeare, 100 and more clients",
        ),
        figure="rounds to 90 %, FedSGD / FedAvg",
        differs=f"{DIGITS}; 5 clients of 280 images; FedAvg makes 5 local epochs in batches of 10; best rate each",
        world="simulated",
        bounds=at_least(10.0, 1.5),
        measure=fewer(90.0, ("fed-avg", 5, 10), FED_SGD, ALIKE),
    ),
    Trial(
        name="FedAvg, two labels each",
        claim=Claim(
            claim="FedAvg needs 2.8 to 3.7 times fewer rounds where each client has two labels",
            source=FEDAVG,
            published="2.8 to 3.7 at best",
            on_what="CNN on MNIST, 100 clients",
        ),
        figure="rounds to 90 %, FedSGD / FedAvg",
        differs=f"{DIGITS}; 20 clients, 4 drawn; FedAvg makes 5 local epochs in batches of 10; best rate each",
        world="simulated",
        bounds=at_least(2.5, 1.1),
        measure=fewer(90.0, ("fed-avg", 5, 10), FED_SGD, UNLIKE),
    ),
)

if __name__ == "__main__":
    sys.exit(main(__file__, __doc__, TRIALS))
