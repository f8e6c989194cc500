"""The published records of training ResNet-50 on ImageNet, and predictions of the same trainings. Pure.

A step with b examples on each of P devices takes

    fixed + b (F / peak + M / bandwidth) / efficiency + all-reduce of the gradient,

F the operations and M the bytes to and from memory for one example, both of the network alone; peak and bandwidth are
from data sheets. Nothing overlaps. `efficiency`, one figure for each family of devices, and `FIXED` were fitted to the
table. `FIXED` is the time of a step on GPUs that no data sheet has: kernels that are launched one after the other.
Sources: He, Zhang, Ren, Sun 2016; Goyal et al. 2017; You, Zhang, Hsieh, Demmel, Keutzer 2018; Akiba, Suzuki, Fukuda
2017; Smith, Kindermans, Ying, Le 2018; Jia et al. 2018; Mikami et al. 2018 (two versions); Ying et al. 2018; Yamazaki
et al. 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from quorate.planning.cluster import Cluster

EXAMPLES = 1_281_167
"""Images of ImageNet's training set."""
PARAMETERS = 25_557_032
OPERATIONS = 3 * 2 * 3.8e9
"""For one example: 3.8 billion multiplications and additions forward (He et al.), and twice as many backward."""
TRAFFIC = 8 * 11.1e6
"""Numbers to and from memory for one example: outputs of convolutions, each read or written eight times (by the next
layer, twice by its normalization, and so backward). Assumed."""
Family = Literal["gpu", "cpu", "tpu"]
EFFICIENCY: Mapping[Family, float] = {"gpu": 0.47, "cpu": 0.24, "tpu": 0.30}
"""The share of peak and bandwidth that is reached. Fitted."""
FIXED: Mapping[Family, float] = {"gpu": 0.035, "cpu": 0.0, "tpu": 0.0}
"""Seconds of each step. Fitted for GPUs; others run a step as one program."""
LATENCY = 5e-6
"""Seconds of a message between or inside of hosts. Assumed."""
TORUS_LATENCY = 1e-6
"""Seconds of a message to the next chip of a torus. Assumed."""
FACTOR = 2.0
"""The factor within which a prediction counts as near; other records are listed."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device by its data sheet: operations and bytes of memory per second, in the arithmetic of the record."""

    name: str
    family: Family
    peak: float
    bandwidth: float
    number: int
    """Bytes of a number."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network between devices; bytes per second, each way."""

    between: float
    """For a host; for a chip where there are no hosts."""
    per_host: int = 0
    inside: float = 0.0
    latency: float = LATENCY


P100 = Device(name="P100", family="gpu", peak=10.6e12, bandwidth=732e9, number=4)
P100_PCIE = Device(name="P100", family="gpu", peak=9.3e12, bandwidth=732e9, number=4)
P40 = Device(name="P40", family="gpu", peak=11.76e12, bandwidth=346e9, number=2)
V100 = Device(name="V100", family="gpu", peak=125e12, bandwidth=900e9, number=2)
KNL = Device(name="KNL 7250", family="cpu", peak=6.1e12, bandwidth=450e9, number=4)
TPU2 = Device(name="TPUv2", family="tpu", peak=45e12, bandwidth=600e9, number=2)
TPU3 = Device(name="TPUv3", family="tpu", peak=123e12, bandwidth=900e9, number=2)

BIG_BASIN = Network(between=6.25e9, per_host=8, inside=40e9)
"""50 Gbit Ethernet, NVLink."""
STAMPEDE = Network(between=12.5e9, per_host=1, inside=1e12)
"""Omni-Path of 100 Gbit, one device a host."""
MN_1 = Network(between=7e9, per_host=8, inside=12e9)
"""InfiniBand FDR, PCI Express."""
TENCENT = Network(between=12.5e9, per_host=8, inside=12e9)
"""100 Gbit Ethernet, PCI Express."""
ABCI = Network(between=25e9, per_host=4, inside=75e9)
"""Two InfiniBand EDR, NVLink."""
TORUS_2 = Network(between=124e9, latency=TORUS_LATENCY)
"""Two of four links of 496 Gbit at a time; so for version 3, of 656 Gbit."""
TORUS_3 = Network(between=164e9, latency=TORUS_LATENCY)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One line of the table."""

    who: str
    device: Device
    devices: int
    network: Network
    batches: Sequence[tuple[float, int]]
    """Shares of the training, and the examples of a step in them."""
    seconds: float
    """Duration of the training, as published."""
    top1: float
    """Percent, as published: records end at different qualities."""
    epochs: int = 90
    exchange: int = 4
    """Bytes of an exchanged number."""


RECORDS = (
    Record(who="He", device=P100, devices=8, network=BIG_BASIN, batches=((1.0, 256),), seconds=29 * 3600, top1=75.3),
    Record(
        who="Goyal", device=P100, devices=256, network=BIG_BASIN, batches=((1.0, 8192),), seconds=3600, top1=76.3
    ),
    Record(
        who="Smith", device=TPU2, devices=256, network=TORUS_2, batches=((1 / 3, 8192), (2 / 3, 16384)),
        seconds=1800, top1=76.1,
    ),
    Record(
        who="You", device=KNL, devices=2048, network=STAMPEDE, batches=((1.0, 32768),), seconds=1200, top1=75.4
    ),
    Record(
        who="Akiba", device=P100_PCIE, devices=1024, network=MN_1, batches=((1.0, 32768),), seconds=900, top1=74.9,
        exchange=2,
    ),
    Record(
        who="You, 64 epochs", device=KNL, devices=2048, network=STAMPEDE, batches=((1.0, 32768),), seconds=840,
        top1=74.9, epochs=64,
    ),
    Record(
        who="Jia", device=P40, devices=2048, network=TENCENT, batches=((1.0, 65536),), seconds=396, top1=75.8,
        exchange=2,
    ),
    Record(
        who="Mikami", device=V100, devices=2176, network=ABCI, batches=((0.5, 34816), (0.5, 69632)), seconds=224,
        top1=75.0, exchange=2,
    ),
    Record(
        who="Ying", device=TPU3, devices=1024, network=TORUS_3, batches=((1.0, 32768),), seconds=132, top1=76.3
    ),
    Record(
        who="Mikami, second version", device=V100, devices=3456, network=ABCI, batches=((1.0, 55296),), seconds=122,
        top1=75.3, exchange=2,
    ),
    Record(
        who="Yamazaki", device=V100, devices=2048, network=ABCI, batches=((1.0, 81920),), seconds=74.7, top1=75.08,
        exchange=2,
    ),
)  # fmt: skip
"""From the slowest to the fastest."""


@dataclass(frozen=True, kw_only=True)
class Foreseen:
    """One record with its prediction. Seconds."""

    record: Record
    seconds: float
    """Seconds of the whole training."""
    step: float
    """Seconds of a step with the first batch: fixed, computing, and the exchange."""
    exchange: float

    @property
    def ratio(self) -> float:
        """Predicted over published seconds."""
        return self.seconds / self.record.seconds

    @property
    def is_near(self) -> bool:
        """Whether the prediction is within `FACTOR`."""
        return 1 / FACTOR <= self.ratio <= FACTOR


def foreseen(
    record: Record,
    efficiency: Mapping[Family, float] = EFFICIENCY,
    fixed: Mapping[Family, float] = FIXED,
) -> Foreseen:
    """Return the prediction of the training of `record`."""
    device, network = record.device, record.network
    cluster = Cluster(
        workers=record.devices, memory=1.0, bandwidth=network.between, latency=network.latency,
        per_host=network.per_host, inside_bandwidth=network.inside, inside_latency=network.latency, overlaps=False,
    )  # fmt: skip
    exchange = cluster.all_reduce(PARAMETERS * record.exchange, record.devices, 1)
    example = (OPERATIONS / device.peak + TRAFFIC * device.number / device.bandwidth) / efficiency[device.family]
    steps = [
        (share, batch, fixed[device.family] + batch / record.devices * example + exchange)
        for share, batch in record.batches
    ]
    seconds = sum(share * record.epochs * EXAMPLES / batch * step for share, batch, step in steps)
    return Foreseen(record=record, seconds=seconds, step=steps[0][2], exchange=exchange)


def out_of_order(predictions: Sequence[Foreseen]) -> list[tuple[str, str]]:
    """Return pairs whose published order differs from the predicted one: the one published as slower first."""
    ordered = sorted(predictions, key=lambda prediction: -prediction.record.seconds)
    return [
        (slower.record.who, other.record.who)
        for place, slower in enumerate(ordered)
        for other in ordered[place + 1 :]
        if slower.seconds < other.seconds
    ]
