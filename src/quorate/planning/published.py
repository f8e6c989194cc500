"""The published table of Megatron, and predictions of the same steps.

Narayanan et al. 2021 (arXiv 2104.04473), table 1: GPT models on Selene, up to 3,072 A100 of 80 GB. Micro-batches and
stages of a worker are from the script that its authors published for the table (`examples/sc21/run_table_1.sh` of
NVIDIA/Megatron-LM). Sequences of 2,048 tokens, a vocabulary of 51,200; layers are computed again in the backward pass,
and the table's figures of speed count those operations.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.planning.cluster import Cluster
from quorate.planning.gpt import Speed, Transformer, model_of
from quorate.planning.layouts import Layout
from quorate.planning.prediction import Prediction, predict

PEAK = 312e12
"""Operations per second of an A100 in 16 bits, by its data sheet."""
MEMORY = 80e9
MEMORY_BANDWIDTH = 2.039e12
"""For an A100 of 80 GB, by its data sheet."""
NVLINK = 300e9
"""Each way; the data sheet's 600 GB/s is both."""
INFINIBAND = 8 * 25e9
"""For a host, each way: eight adapters of 200 Gbit/s (section 5 of the paper)."""
INSIDE_LATENCY, LATENCY = 5e-6, 10e-6
"""Assumed."""
EFFICIENCY = 0.625
"""For matrix products: the one figure that was fitted to the table."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    billions: float
    heads: int
    hidden: int
    layers: int
    tensor: int
    stages: int
    gpus: int
    batch: int
    microbatch: int
    """In sequences."""
    chunks: int
    """Stages of a worker."""
    teraflops: float
    """Per second and GPU, as published."""

    @property
    def layout(self) -> Layout:
        """Its axes and schedule: 1F1B, interleaved where a worker has several stages."""
        replicas = self.gpus // (self.tensor * self.stages)
        schedule = "" if self.stages == 1 else "1f1b" if self.chunks == 1 else "interleaved-1f1b"
        return Layout(
            replicas=replicas, stages=self.stages, tensor=self.tensor, schedule=schedule, chunks=self.chunks,
            microbatches=self.batch // replicas // self.microbatch, strategy="all-reduce",
        )  # fmt: skip

    @property
    def sizes(self) -> Transformer:
        """Its model."""
        return Transformer(
            hidden=self.hidden, layers=self.layers, heads=self.heads, sequence=2048, vocabulary=51200, recompute=True
        )


def _row(*of: float) -> Row:
    billions, heads, hidden, layers, tensor, stages, gpus, batch, microbatch, chunks, teraflops = of
    return Row(
        billions=billions, heads=int(heads), hidden=int(hidden), layers=int(layers), tensor=int(tensor),
        stages=int(stages), gpus=int(gpus), batch=int(batch), microbatch=int(microbatch), chunks=int(chunks),
        teraflops=teraflops,
    )  # fmt: skip


TABLE = (
    _row(1.7, 24, 2304, 24, 1, 1, 32, 512, 16, 1, 137),
    _row(3.6, 32, 3072, 30, 2, 1, 64, 512, 16, 1, 138),
    _row(7.5, 32, 4096, 36, 4, 1, 128, 512, 16, 1, 142),
    _row(18.4, 48, 6144, 40, 8, 1, 256, 1024, 8, 1, 135),
    _row(39.1, 64, 8192, 48, 8, 2, 512, 1536, 4, 1, 138),
    _row(76.1, 80, 10240, 60, 8, 4, 1024, 1792, 2, 3, 140),
    _row(145.6, 96, 12288, 80, 8, 8, 1536, 2304, 2, 2, 148),
    _row(310.1, 128, 16384, 96, 8, 16, 1920, 2160, 1, 2, 155),
    _row(529.6, 128, 20480, 105, 8, 35, 2520, 2520, 1, 3, 163),
    _row(1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 1, 1, 163),
)


def foreseen(row: Row, efficiency: float = EFFICIENCY) -> Prediction:
    """Return the predicted step of a row. Nothing overlaps, as in that code; activations are sent in eight pieces."""
    cluster = Cluster(
        workers=row.gpus, memory=MEMORY, bandwidth=INFINIBAND, latency=LATENCY, per_host=8, inside_bandwidth=NVLINK,
        inside_latency=INSIDE_LATENCY, overlaps=False, sends_pieces=True,
    )  # fmt: skip
    speed = Speed(flops=PEAK, efficiency=efficiency, memory_bandwidth=MEMORY_BANDWIDTH)
    return predict(row.layout, model_of(row.sizes, row.batch, speed, row.gpus), cluster)


def teraflops(row: Row, prediction: Prediction) -> float:
    """Return the speed per second and GPU, as the table counts it."""
    return row.sizes.flops * row.batch / prediction.seconds / row.gpus / 1e12
