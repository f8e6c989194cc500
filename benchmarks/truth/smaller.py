"""Smaller models and few bits: tickets, packed files, low rank, block-sparse attention, and the one-bit optimizers.

    python benchmarks/truth/smaller.py [--quick] [--only TRIAL ...]

The trainings are those of `benchmarks/low_rank.py`, `shrink.py`, `one_bit.py` and `attention.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial

from harness import Claim, Trial, at_least, at_most, main, quietly, seeds  # isort: skip
import attention
import low_rank
import one_bit
import shrink

from quorate.wire.virtual.world import VirtualWorld

LENGTH, REPEATS = 4096, 5


@cache
def packed(seed: int, steps: int) -> tuple[float, float, float, float]:
    """Return how many times smaller file and tensors are, and the accuracies of the full and the packed network."""
    result: tuple[float, float, float, float] = quietly(partial(low_rank.packed, seed, steps))
    return result


def of_packed(figure: Callable[[float, float], float]) -> Callable[[bool], list[float]]:
    """Return a trial of a packed network, by how many times smaller its file is and the points of accuracy it loses."""

    def measure(is_quick: bool) -> list[float]:
        files = [packed(seed, 600 if is_quick else 2400) for seed in seeds(is_quick)]
        return [figure(smaller, full - small) for smaller, _, full, small in files]

    return measure


@cache
def tickets(seed: int, rounds: int, share: float) -> tuple[float, float]:
    """Return the points of accuracy that a ticket of at most 10 % loses, and those by which it beats other weights."""
    lottery = partial(shrink.lottery, seed, rounds, share, 14)
    found = quietly(lambda: VirtualWorld(shrink.SIZE).run(lottery)[0])
    return found[0].quality - found[-1].quality, found[-1].quality - found[-1].redraw


def of_tickets(place: int) -> Callable[[bool], list[float]]:
    """Return a trial of tickets: a figure of `tickets`."""
    return lambda is_quick: [tickets(seed, *((4, 0.45) if is_quick else (11, 0.2)))[place] for seed in seeds(is_quick)]


@cache
def ends(name: str, *, is_quick: bool) -> Sequence[one_bit.End]:
    """Return the ends of the trainings of an arm of `one_bit.py`."""
    steps = 30 if is_quick else one_bit.STEPS
    return [quietly(partial(one_bit.trained, one_bit.ARMS[name], seed, steps)) for seed in seeds(is_quick)]


def beside_base(name: str, figure: Callable[[one_bit.End, one_bit.End], float]) -> Callable[[bool], list[float]]:
    """Return a trial of an arm beside its base, Adam or LAMB with dense sums."""

    def measure(is_quick: bool) -> list[float]:
        base = ends(one_bit.ARMS[name].base, is_quick=is_quick)
        return [figure(own, dense) for own, dense in zip(ends(name, is_quick=is_quick), base, strict=True)]

    return measure


def low_rank_time(is_quick: bool) -> list[float]:
    """Return the seconds of DDP over those of low rank to the loss of DDP; 0 where it is not reached."""
    steps, count = (20, 1) if is_quick else (200, 5)
    lines = low_rank.lines_of(low_rank.CONVOLUTIONS, steps, count)
    return [line["ddp"] / line["low"] if line["reached"] else 0.0 for line in lines]


def attention_time(is_quick: bool) -> list[float]:
    """Return the seconds of materialized scores over those of sparse attention."""
    ways = attention.ways()
    pair = ways[attention.MATERIALIZED], ways[attention.SPARSE]
    for way in pair:
        attention.seconds(way, LENGTH)  # warms up
    rows = [[attention.seconds(way, LENGTH) for way in pair] for _ in range(1 if is_quick else REPEATS)]
    return [dense / sparse for dense, sparse in rows]


def ratio_of_losses(own: one_bit.End, dense: one_bit.End) -> float:
    """Return a loss on held-out text over that of dense sums."""
    return own.loss / dense.loss


LENET = "LeNet 300-100 on MNIST"
DIGITS = "64-300-100-10 on the digits of scikit-learn"
ONE_BIT_ADAM = "Tang et al., 1-bit Adam, ICML 2021"
BERT = "BERT-Large, up to 256 GPUs"
TEXT = "4 virtual workers, a small Transformer on the next byte, 400 steps of which 15 % are the warm-up"
HAN = "Han et al., Deep compression, ICLR 2016"
FRANKLE = "Frankle and Carbin, The lottery ticket hypothesis, ICLR 2019"
TRIALS = (
    Trial(
        name="Deep Compression: bytes",
        claim=Claim(claim="a network is 35 to 49 times smaller after pruning, shared values and Huffman codes",
                    source=HAN, published="35 to 49", on_what="LeNet, AlexNet, VGG-16"),
        figure="bytes of the safetensors file / those of the packed file, header included",
        differs=f"{DIGITS}; 12, 6.5 and 35 % of the weights of the layers, 16 values",
        world="real processes, losses only",
        bounds=at_least(0.9 * 35, 10.0),
        measure=of_packed(lambda smaller, _: smaller),
        note="this network has a tenth of the numbers of LeNet 300-100, so its header and code tables weigh more",
    ),
    Trial(
        name="Deep Compression: accuracy",
        claim=Claim(claim="nothing is lost", source=HAN, published="0 points", on_what="LeNet, AlexNet, VGG-16"),
        figure="points of accuracy that the packed network loses",
        differs=f"{DIGITS}; the full network has as many steps",
        world="real processes, losses only",
        bounds=at_most(0.5, 2.0),
        measure=of_packed(lambda _, lost: lost),
    ),
    Trial(
        name="lottery ticket: accuracy",
        claim=Claim(claim="a tenth of the weights, trained from their first values, is as good as all", source=FRANKLE,
                    published="as good down to 3.6 %", on_what=LENET),
        figure="points of accuracy that a ticket of at most 10 % loses",
        differs=f"{DIGITS}, 2 virtual workers, 11 rounds of a fifth",
        world="simulated",
        bounds=at_most(1.0, 3.0),
        measure=of_tickets(0),
    ),
    Trial(
        name="lottery ticket: other weights",
        claim=Claim(claim="the same weights with other first values are worse", source=FRANKLE,
                    published="worse", on_what=LENET),
        figure="points of accuracy above the same masks drawn again",
        differs=f"{DIGITS}, 2 virtual workers, 11 rounds of a fifth",
        world="simulated",
        bounds=at_least(1.0, 0.0),
        measure=of_tickets(1),
    ),
    Trial(
        name="Pufferfish",
        claim=Claim(claim="low rank after a warm-up trains 1.64 times as fast as full rank",
                    source="Wang et al., Pufferfish, MLSys 2021", published="1.64",
                    on_what="ResNet-50 and others, 8 and 16 nodes"),
        figure="seconds to the loss of torch DDP, DDP / low rank from a tenth of the steps on",
        differs="a residual network of 64 to 256 channels on digits, 2 processes, a quarter of the rank",
        world="real processes",
        bounds=at_least(0.9 * 1.64, 1.05),
        measure=low_rank_time,
        note="the machine had other work, and the ways did not take turns within a seed",
    ),
    Trial(
        name="sparse attention: time",
        claim=Claim(claim="block-sparse attention is up to 6.3 times as fast as dense attention",
                    source="DeepSpeed sparse attention, 2020", published="6.3",
                    on_what="BERT, V100, scores that are materialized"),
        figure="forward and backward, materialized scores / a window of three blocks of 64 and one global block",
        differs="4,096 positions, 4 heads of 64, two cores",
        world="real processes",
        bounds=at_least(0.9 * 6.3, 1.05),
        measure=attention_time,
        note="the machine had other work; the ways took turns",
    ),
    Trial(
        name="1-bit Adam: bytes",
        claim=Claim(claim="1-bit Adam sends up to 5 times fewer bytes, its warm-up included", source=ONE_BIT_ADAM,
                    published="up to 5", on_what=BERT),
        figure="bytes of Adam / of 1-bit Adam, warm-up included",
        differs=TEXT,
        world="simulated",
        bounds=at_least(0.9 * 5, 2.0),
        measure=beside_base("one-bit-adam", lambda own, dense: dense.nbytes / own.nbytes),
    ),
    Trial(
        name="1-bit Adam: loss",
        claim=Claim(claim="1-bit Adam converges as Adam does", source=ONE_BIT_ADAM, published="the same loss",
                    on_what=BERT),
        figure="loss on held-out text, 1-bit Adam / Adam",
        differs=TEXT,
        world="simulated",
        bounds=at_most(1.01, 1.1),
        measure=beside_base("one-bit-adam", ratio_of_losses),
    ),
    Trial(
        name="0/1 Adam: loss",
        claim=Claim(claim="0/1 Adam converges as Adam does", source="Lu et al., 0/1 Adam, ICLR 2023",
                    published="the same loss", on_what="BERT, GPT-2, up to 128 GPUs"),
        figure="loss on held-out text, 0/1 Adam / Adam",
        differs=f"{TEXT}, variance and intervals of at most 4 steps by its rules",
        world="simulated",
        bounds=at_most(1.01, 1.1),
        measure=beside_base("zero-one-adam", ratio_of_losses),
        note="its local steps do this: the rate does not fall here, and the paper doubles their number as it halves",
    ),
    Trial(
        name="1-bit LAMB: loss",
        claim=Claim(claim="1-bit LAMB converges as LAMB does", source="Li et al., 1-bit LAMB, HiPC 2022",
                    published="the same loss", on_what="BERT-Large, up to 256 GPUs"),
        figure="loss on held-out text, 1-bit LAMB / LAMB",
        differs=TEXT,
        world="simulated",
        bounds=at_most(1.01, 1.1),
        measure=beside_base("one-bit-lamb", ratio_of_losses),
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(__file__, __doc__, TRIALS))
