"""Published scaling efficiencies of 512 GPUs, computed from the published hardware with tensor fusion and without.

    python benchmarks/truth/fusion.py

The model is that of `quorate.tuning.best_parts`: ready times by the operations of each layer, and one part after the
other. Assumptions: the backward pass takes two thirds of a step; a ring over all 512 GPUs, each of whose 1,022 steps
takes 10 us; a host gets 60, 70 and 80 % of its 25 Gbit/s, which take the place of seeds; sums are of float32.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from harness import Bounds, Claim, Trial, at_least, main  # noqa: E402

from quorate.tuning.best_parts import LinkCosts, end_of_exchange, ends_by_size  # noqa: E402

GPUS, HOP, LINE, SHARES = 512, 10e-6, 25e9 / 8, (0.6, 0.7, 0.8)
FUSED, BATCH = 64 << 20, 64
Layer = tuple[int, int]
"""The numbers of a layer, and the places of its output at which they are used."""


def vgg16() -> Iterator[Layer]:
    """Yield the layers of VGG-16."""
    before, side = 3, 224
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            yield 9 * before * width, side * side
            before = width
        side //= 2
    for inputs, outputs in ((512 * 49, 4096), (4096, 4096), (4096, 1000)):
        yield inputs * outputs, 1


def resnet101() -> Iterator[Layer]:
    """Yield the layers of ResNet-101, with two small tensors of a batch norm behind each convolution."""
    yield from ((64 * 3 * 49, 112 * 112), (64, 0), (64, 0))
    before, side = 64, 56
    for blocks, width in ((3, 64), (4, 128), (23, 256), (3, 512)):
        for block in range(blocks):
            convolutions = [(before * width, width), (9 * width * width, width), (4 * width * width, 4 * width)]
            convolutions += [(4 * before * width, 4 * width)] if block == 0 else []
            for weights, outputs in convolutions:
                yield from ((weights, side * side), (outputs, 0), (outputs, 0))
            before = 4 * width
        side //= 2
    yield 1000 * before, 1


@dataclass(frozen=True)
class Network:
    """A network, and the images that one GPU computes in a second."""

    layers: Callable[[], Iterator[Layer]]
    images: float

    def seconds(self, share: float, *, is_fused: bool) -> float:
        """Return the seconds of a step of all GPUs."""
        step = BATCH / self.images
        layers = list(self.layers())[::-1]
        operations, ready, sizes = sum(n * places for n, places in layers), list[float](), list[int]()
        passed = step / 3
        for numbers, places in layers:
            passed += step * 2 / 3 * numbers * places / operations
            ready.append(passed)
            sizes.append(4 * numbers)
        share_sent = 2 * (GPUS - 1) / GPUS
        costs = LinkCosts(2 * (GPUS - 1) * HOP, share * LINE / share_sent)
        ends = ends_by_size(sizes, FUSED, FUSED) if is_fused else tuple(range(1, len(sizes) + 1))
        return max(step, end_of_exchange(ready, sizes, ends, costs))

    def efficiency(self, is_quick: bool) -> list[float]:
        """Return the throughput in percent of that of 512 GPUs which exchange nothing."""
        return [100 * BATCH / self.images / self.seconds(share, is_fused=True) for share in SHARES]

    def gain(self, is_quick: bool) -> list[float]:
        """Return the seconds of a step without fusion over those with it."""
        return [self.seconds(share, is_fused=False) / self.seconds(share, is_fused=True) for share in SHARES]


RESNET, VGG = Network(resnet101, 107.0), Network(vgg16, 154.0)
SOURCE = "Sergeev and Del Balso, Horovod, 2018 (arXiv 1802.05799), and the benchmarks of its documentation"
MACHINE = "128 hosts with 4 Pascal GPUs, 25 Gbit/s, batches of 64"
DIFFERS = (
    "ring over all GPUs with 10 us a hop, parts of 64 MiB, 60, 70 and 80 % of the line rate instead of seeds. One GPU "
    "computes 107 images/s of ResNet-101 and 154 of VGG-16"
)


def near(published: float) -> Bounds:
    """Return the rule of an efficiency: within a tenth, or within a quarter."""
    return Bounds(holds=(0.9 * published, 1.1 * published), partly=(0.75 * published, 1.25 * published))


TRIALS = (
    *(
        Trial(
            name=f"Horovod: {name} on 512 GPUs",
            claim=Claim(claim=f"512 GPUs train {name} with an efficiency of {published} %", source=SOURCE,
                        published=f"{published} %", on_what=MACHINE),
            figure="efficiency in percent",
            differs=DIFFERS,
            world="computed",
            bounds=near(published),
            measure=network.efficiency,
        )
        for name, network, published in (("ResNet-101", RESNET, 90), ("VGG-16", VGG, 68))
    ),
    Trial(
        name="Horovod: tensor fusion",
        claim=Claim(claim="tensor fusion makes networks of many layers up to 65 % faster", source=SOURCE,
                    published="1.65", on_what="a TCP network that is not tuned"),
        figure="seconds of a step of ResNet-101, without fusion / with it",
        differs=f"the 512 GPUs above; {DIFFERS}",
        world="computed",
        bounds=at_least(0.9 * 1.65, 1.0),
        measure=RESNET.gain,
        note="without fusion each of 313 tensors waits for a ring of 512 GPUs",
    ),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, TRIALS))
