"""Models in pieces: memory by level of ZeRO, what offloading allows, and pipelines without bubbles. Nothing is timed.

python benchmarks/truth/pieces.py [--quick] [--only TRIAL ...]
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

from harness import SEEDS, Claim, Trial, at_least, at_most, main

from quorate.core.axes import Offload
from quorate.sharding.memory import Mode, Model, Size, by_formula, held, numbers_sent
from quorate.sharding.stages.clock import clock
from quorate.sharding.stages.orders import order

ZERO = "Rajbhandari et al., ZeRO, SC 2020"
WIDTH, LAYERS, WORDS = 4096, 36, 50_257
"""Of a GPT-like model with 7.45 billion parameters."""
SHARDS = (4, 16, 64)
GPU_BYTES = 32e9


def matrix(rows: int, columns: int, block: str) -> Size:
    """Return a matrix in mixed precision under Adam: 2 bytes a number, and 12 for the optimizer."""
    numbers = rows * columns
    nbytes = 2 * numbers
    return Size(numbers=numbers, rows=rows, bytes=nbytes, gathered_bytes=nbytes, kept_like=6 * nbytes, block=block)


def gpt(width: int = WIDTH, layers: int = LAYERS) -> Model:
    """Return the sizes of a GPT-like model."""
    sizes = [matrix(WORDS, width, "")]
    for layer in range(layers):
        shapes = ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width))
        sizes += [matrix(rows, columns, str(layer)) for rows, columns in shapes]
    return Model(sizes=sizes)


def over_formula(level: Mode) -> Callable[[bool], list[float]]:
    """Return a trial: bytes of a worker in the backward pass, without activations, over the paper's formula."""
    return lambda is_quick: [held(gpt(), level, n).total / by_formula(gpt(), level, n) for n in SHARDS]


def sent(is_quick: bool) -> list[float]:
    """Return the numbers sent with ZeRO-3 over those without ZeRO, by number of workers."""
    return [numbers_sent(gpt(), 3, n) / numbers_sent(gpt(), 0, n) for n in SHARDS]


def largest(offload: Offload | None, width: int) -> float:
    """Return the numbers of the largest model, in layers of this width, that fits into 32 GB without activations."""
    layers = 1
    while True:
        model = gpt(width, layers + 1)
        largest_block = 12 * 2 * width * width
        buffers = 2 * largest_block + 2 * WORDS * width if offload is not None else 0
        if held(model, 3, 1, offload).total + buffers > GPU_BYTES:
            return float(sum(size.numbers for size in gpt(width, layers).sizes))
        layers += 1


def offloaded(is_quick: bool) -> list[float]:
    """Return how much larger a model may be with the optimizer's state on the host, by width."""
    return [largest("optimizer", width) / largest(None, width) for width in (2048, 3072, 4096)]


def over_1f1b(schedule: str) -> Callable[[bool], list[float]]:
    """Return a trial: seconds of a step with 1F1B over those of a schedule; 8 stages, 24 micro-batches.

    The passes of the stages differ by up to a tenth, drawn by seed.
    """
    workers, microbatches = 8, 24

    def measure(is_quick: bool) -> list[float]:
        ratios = []
        for seed in SEEDS:
            draw = random.Random(seed)
            halves = [[draw.uniform(0.9, 1.1) for _ in range(2 * workers)] for _ in range(3)]
            stages = [[sum(kind[at : at + 2]) for at in range(0, 2 * workers, 2)] for kind in halves]
            plain = clock(order("1f1b", workers, 1, microbatches), *stages).seconds
            ratios.append(plain / clock(order(schedule, workers, 2, microbatches), *halves).seconds)
        return ratios

    return measure


MEMORY_DIFFERS = (
    "the bytes that `quorate.parallelize` holds by `sharding.memory`, full parameters and buffers of the backward pass "
    "included. A GPT-like model with 7.45 billion parameters on 4, 16 and 64 workers, instead of seeds"
)
PIPELINE_DIFFERS = "8 stages, 24 micro-batches, passes that differ by up to a tenth; messages take no time"


def memory(level: Mode, gigabytes: str, note: str = "") -> Trial:
    return Trial(
        name=f"memory of ZeRO-{level}",
        claim=Claim(
            claim=f"a worker with ZeRO-{level} holds {gigabytes} GB of 7.5 billion parameters under Adam, 64 workers",
            source=ZERO,
            published=f"{gigabytes} GB, by formula",
            on_what="mixed precision, 16 bytes a parameter without ZeRO (120 GB)",
        ),
        figure="bytes held over the published formula",
        differs=MEMORY_DIFFERS,
        world="computed",
        bounds=at_most(1.15, 3.0),
        measure=over_formula(level),
        note=note,
    )


TRIALS = (
    memory(1, "31.4", "less than the formula, because parameters are sharded too where they are not in use"),
    memory(2, "16.6"),
    memory(
        3, "1.9", "the formula leaves out two gathered blocks, which are more than the pieces themselves on 64 workers"
    ),
    Trial(
        name="messages of ZeRO-3",
        claim=Claim(
            claim="ZeRO-3 sends 1.5 times what data parallelism sends",
            source=ZERO,
            published="1.5, by formula",
            on_what="any model",
        ),
        figure="numbers sent by a worker, ZeRO-3 / no ZeRO",
        differs="4, 16 and 64 workers, instead of seeds; embeddings are in no block and gathered once",
        world="computed",
        bounds=at_most(1.55, 2.0),
        measure=sent,
    ),
    Trial(
        name="model size with ZeRO-Offload",
        claim=Claim(
            claim="offloading the optimizer trains models 10 times as large on one GPU",
            source="Ren et al., ZeRO-Offload, USENIX ATC 2021",
            published="13 billion instead of 1.4 billion parameters",
            on_what="GPT-like models, one V100 with 32 GB",
        ),
        figure='parameters that fit into 32 GB, `offload="optimizer"` / none',
        differs="by `sharding.memory`, without activations; widths 2048, 3072 and 4096 instead of seeds",
        world="computed",
        bounds=at_least(9.0, 2.0),
        measure=offloaded,
        note='gradients stay on the GPU; `offload="all"` moves them too, and had 10.97 times the parameters in one run '
        "on a GPU with 10 GiB (`benchmarks/gpu.py`)",
    ),
    Trial(
        name="zero bubble",
        claim=Claim(
            claim="zero-bubble schedules are up to 23 % faster than 1F1B in similar memory",
            source="Qi et al., Zero bubble pipeline parallelism, ICLR 2024",
            published="1.23",
            on_what="GPT-like models, 8 to 32 A100",
        ),
        figure="seconds of a step, 1F1B / `zbv`",
        differs=PIPELINE_DIFFERS,
        world="computed",
        bounds=at_least(1.207, 1.03),
        measure=over_1f1b("zbv"),
        note="the gain falls with more micro-batches: 1.09 with 64",
    ),
    Trial(
        name="interleaved pipeline",
        claim=Claim(
            claim="interleaved stages have 10 % more throughput than 1F1B",
            source="Narayanan et al., Efficient large-scale language model training, SC 2021",
            published="1.1 and more",
            on_what="GPT-like models up to 1 trillion parameters, up to 3,072 A100",
        ),
        figure="seconds of a step, 1F1B / `interleaved-1f1b`, two stages a worker",
        differs=PIPELINE_DIFFERS,
        world="computed",
        bounds=at_least(1.1, 1.03),
        measure=over_1f1b("interleaved-1f1b"),
    ),
)

if __name__ == "__main__":
    sys.exit(main(__file__, __doc__, TRIALS))
