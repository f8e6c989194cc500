"""Compressed gradients: bytes by formula, steps to the loss of dense sums, and seconds over a modelled link.

    python benchmarks/truth/codes.py [--quick] [--only TRIAL ...]

Steps are those of four virtual workers under plain SGD, each side at its best of three rates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial

from harness import TUNING_SEED, Claim, Trial, at_least, at_most, main, quietly, seeds  # isort: skip
import published_codecs as published
import torch
from codec_trainings import Told, Way, shapes_of_resnet18, trained

from quorate.buckets.flat import layout_of
from quorate.core.codec import Codec, shapes_in
from quorate.means.reduction import reduction_of
from quorate.workloads.imagenet import ResNet50

RATES, STEPS, MOST = (0.8, 0.4, 0.2), 100, 400
MOMENTUM = 0.9
DGC = Way(name="dgc", settings={"compress": "dgc", "density": 0.01, "momentum": MOMENTUM})
ONE_BIT = Way(name="one-bit", settings={"compress": "one-bit"})
DENSE, DENSE_MOMENTUM = published.DENSE, Way(name="dense, momentum 0.9")
TERNGRAD, QSGD2, ATOMO4 = published.TERNGRAD, published.QSGD2, published.ATOMO[4]
TWO_PHASE, POWER_SGD = published.TWO_PHASE, published.POWER_SGD
WAYS = {way.name: way for way in (DGC, ONE_BIT, DENSE, DENSE_MOMENTUM, TERNGRAD, QSGD2, ATOMO4, TWO_PHASE, POWER_SGD)}


def rates_of(name: str) -> Sequence[float]:
    """Return the rates that are tried: a tenth with a momentum of 0.9."""
    factor = 1 - MOMENTUM if name in (DGC.name, DENSE_MOMENTUM.name) else 1.0
    return [rate * factor for rate in RATES]


@cache
def run(task: str, name: str, rate: float, seed: int, steps: int, until: float | None = None) -> Told:
    """Return one training; the momentum of DGC is that of its codec."""
    momentum = MOMENTUM if name == DENSE_MOMENTUM.name else 0.0
    optimizer = partial(torch.optim.SGD, momentum=momentum)
    result: Told = quietly(partial(trained, task, WAYS[name], rate, seed, steps, until=until, optimizer=optimizer))
    return result


@cache
def dense_loss(task: str, name: str, seed: int) -> float:
    """Return the loss of dense sums after 100 steps, at the rate that is best with a seed that does not count."""
    ends = {rate: run(task, name, rate, TUNING_SEED, STEPS).losses[-1][1] for rate in rates_of(name)}
    return run(task, name, min(ends, key=lambda rate: ends[rate]), seed, STEPS).losses[-1][1]


def steps_at(task: str, name: str, rate: float, seed: int) -> float:
    """Return the steps to the loss of dense sums; 400 if it is never reached."""
    target = dense_loss(task, DENSE_MOMENTUM.name if name == DGC.name else DENSE.name, seed)
    return run(task, name, rate, seed, MOST, target).steps_to(target) or MOST


@cache
def steps_of(task: str, name: str, *, is_quick: bool) -> Sequence[float]:
    """Return the steps of each seed at the best rate, which is chosen with a seed that does not count."""
    rates = rates_of(name)
    best = rates[1] if is_quick else min(rates, key=lambda rate: steps_at(task, name, rate, TUNING_SEED))
    return [steps_at(task, name, best, seed) for seed in seeds(is_quick)]


def more_steps(way: Way) -> Callable[[bool], list[float]]:
    """Return a trial: steps to the loss of dense sums over their 100, on digits."""
    return lambda is_quick: [steps / STEPS for steps in steps_of("digits", way.name, is_quick=is_quick)]


def over_the_network(own: Way, other: Way) -> Callable[[bool], list[float]]:
    """Return a trial: bytes times steps of another codec over those of one, on the task whose matrices are square."""

    def measure(is_quick: bool) -> list[float]:
        task = "digits" if is_quick else "text"
        sent = [run(task, way.name, 0.2, TUNING_SEED, 5).nbytes for way in (other, own)]
        sides = [steps_of(task, way.name, is_quick=is_quick) for way in (other, own)]
        return [theirs * sent[0] / (ours * sent[1]) for theirs, ours in zip(*sides, strict=True)]

    return measure


def qsgd(is_quick: bool) -> list[float]:
    """Return the seconds to a loss of dense sums over those of 4 bits; the link takes twice as long as computing."""
    once = published.faster(TWO_PHASE, 16, published.HELD_AT)
    return [once / ratio for ratio in more_steps(TWO_PHASE)(is_quick)]


def models() -> Sequence[list[tuple[str, torch.Tensor]]]:
    """Return the parameters of ResNet-50, ResNet-18 and a Transformer of 12 layers, without memory."""
    with torch.device("meta"):
        layer = torch.nn.TransformerEncoderLayer(768, 12, 3072)
        networks = [ResNet50(1001), torch.nn.ModuleList([layer for _ in range(12)])]
        every = [list(network.named_parameters(remove_duplicate=False)) for network in networks]
        small = [(name, torch.empty(shape)) for name, shape in shapes_of_resnet18()]
    return [[(name, torch.empty(p.shape)) for name, p in model] for model in (*every, small)]


def dgc_bytes(is_quick: bool) -> list[float]:
    """Return the bytes of a gradient over those of its code, at a density of 0.1 %, by model."""
    reduction, ratios = reduction_of({"compress": "dgc", "density": 0.001}), []
    codec = reduction.codec
    assert isinstance(codec, Codec)
    for tensors in models():
        layout = layout_of(tensors, header=1, coded=reduction.is_coded)
        shapes = shapes_in(layout)
        numbers = sum(part.numel for part in layout.parts)
        coded = sum(codec.wire_bytes(of_part) or 0 for of_part in shapes.values())
        plain = sum(4 * part.numel for place, part in enumerate(layout.parts) if place not in shapes)
        ratios.append(4 * numbers / (coded + plain))
    return ratios


def power_sgd_bytes(is_quick: bool) -> list[float]:
    """Return the factors of ranks 1, 2 and 4 over the published ones."""
    return [published.times_fewer(rank) / factor for rank, factor in published.TIMES_FEWER.items()]


NETWORKS = "two small networks on noisy digits and on the next byte"
DIGITS_DIFFER = "4 virtual workers, a small network on noisy digits, the loss of dense sums after 100 steps"
TEXT_DIFFERS = "4 virtual workers, a small network on the next byte; equal bytes; only the network takes time"
ATOMO = "Wang et al., ATOMO, NeurIPS 2018"
CNNS = "CNNs on CIFAR-10 and SVHN, 16 workers"
TRIALS = (
    Trial(
        name="QSGD",
        claim=Claim(
            claim="QSGD trains 1.8 times as fast as 32 bits",
            source="Alistarh et al., QSGD, NeurIPS 2017",
            published="1.8 to full accuracy",
            on_what="ResNet-152 on ImageNet, 16 GPUs",
        ),
        figure="seconds to equal loss, dense / 4 bits in two phases, 16 workers",
        differs=f"steps: {DIGITS_DIFFER}. Seconds are computed for ResNet-18 and a link that takes twice as long as "
        "computing; encoding takes no time",
        world="simulated",
        bounds=at_least(1.62, 1.05),
        measure=qsgd,
        note="codes from everyone to everyone gain nothing among 16 workers",
    ),
    Trial(
        name="ATOMO over QSGD",
        claim=Claim(
            claim="spectral ATOMO is up to 2 times as fast as QSGD", source=ATOMO, published="up to 2", on_what=CNNS
        ),
        figure="seconds to equal loss over the network, qsgd with 2 bits / atomo with rank 4",
        differs=TEXT_DIFFERS,
        world="simulated",
        bounds=at_least(1.8, 1.05),
        measure=over_the_network(ATOMO4, QSGD2),
    ),
    Trial(
        name="ATOMO over TernGrad",
        claim=Claim(
            claim="spectral ATOMO is up to 3 times as fast as TernGrad", source=ATOMO, published="up to 3", on_what=CNNS
        ),
        figure="seconds to equal loss over the network, terngrad / atomo with rank 4",
        differs=TEXT_DIFFERS,
        world="simulated",
        bounds=at_least(2.7, 1.05),
        measure=over_the_network(ATOMO4, TERNGRAD),
    ),
    Trial(
        name="PowerSGD: bytes",
        claim=Claim(
            claim="PowerSGD sends 243, 136 and 72 times fewer bytes with rank 1, 2 and 4",
            source="Vogels et al., PowerSGD, NeurIPS 2019",
            published="243, 136 and 72",
            on_what="ResNet-18 on CIFAR-10",
        ),
        figure="factor here / published factor; the three ranks",
        differs="the same shapes, counted",
        world="computed",
        bounds=at_least(0.99, 0.8),
        measure=power_sgd_bytes,
    ),
    Trial(
        name="PowerSGD: quality",
        claim=Claim(
            claim="PowerSGD with rank 2 trains as well as dense sums",
            source="Vogels et al., PowerSGD, NeurIPS 2019",
            published="94.4 % and 94.3 %",
            on_what="ResNet-18 on CIFAR-10, 16 GPUs",
        ),
        figure="steps to equal loss, rank 2 / dense",
        differs=DIGITS_DIFFER,
        world="simulated",
        bounds=at_most(1.1, 2.0),
        measure=more_steps(POWER_SGD),
    ),
    Trial(
        name="DGC: bytes",
        claim=Claim(
            claim="DGC sends 270 to 600 times fewer bytes",
            source="Lin et al., Deep gradient compression, ICLR 2018",
            published="270 to 600",
            on_what="ResNet-50, AlexNet and others at a density of 0.1 %",
        ),
        figure="bytes of the gradient / bytes of a code, a density of 0.1 %",
        differs="ResNet-50, ResNet-18 and a Transformer of 12 layers instead of seeds, counted: 32 bits for a place, "
        "32 for a value; vectors go dense",
        world="computed",
        bounds=at_least(270.0, 100.0),
        measure=dgc_bytes,
        note="with places of 32 bits, 0.1 % cannot give more than 500",
    ),
    Trial(
        name="DGC: quality",
        claim=Claim(
            claim="DGC loses no accuracy",
            source="Lin et al., Deep gradient compression, ICLR 2018",
            published="none lost",
            on_what="ResNet-50 on ImageNet and others at a density of 0.1 %",
        ),
        figure="steps to equal loss, density of 1 % / dense",
        differs=f"{DIGITS_DIFFER}. A density of 1 % without warm-up; a momentum of 0.9 on both sides",
        world="simulated",
        bounds=at_most(1.1, 2.0),
        measure=more_steps(DGC),
    ),
    Trial(
        name="1-bit SGD: quality",
        claim=Claim(
            claim="one bit a number with error feedback costs no or nearly no accuracy",
            source="Seide et al., 1-bit stochastic gradient descent, Interspeech 2014",
            published="no or nearly no loss",
            on_what="speech network of 46 million parameters, 8 K20X",
        ),
        figure="steps to equal loss, one bit / dense",
        differs=DIGITS_DIFFER,
        world="simulated",
        bounds=at_most(1.1, 2.0),
        measure=more_steps(ONE_BIT),
    ),
)

if __name__ == "__main__":
    sys.exit(main(__file__, __doc__, TRIALS))
