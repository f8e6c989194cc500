"""What do codecs gain where the network is what steps wait for, beside torch DDP and its own hooks?

Hosts are network namespaces (for root on Linux), joined by links of 1 Gbit/s and 100 Mbit/s; a transformer of 10
million parameters is trained on the bytes of the standard library, by one worker on each of four hosts, and by two on
each of two (`hierarchical`). Ways take turns (A B C ..., B C ... A). In seconds a step:

- `ddp`, and with torch's own hooks `ddp fp16`, `ddp power-sgd` (rank 4, from the third step on; the hook for bfloat16
  needs a GPU);
- `all-reduce`, and with `compress`: `half` in both types, `power-sgd` (rank 4), `top-k` of 1 %, `arc-top-k`, and
  `qsgd` of 4 bits.

The figures are seconds a step, turn by turn; bytes that the busiest host sends or receives in a step, over those of the
gradient; and ratios: of each of ours to torch's way of the same method, and of each to `ddp`. How much is learnt in a
step is not measured here: `half` and DDP's cast leave out a rounding only, the others more.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import record  # noqa: E402
from hosts import RATES, run_slowed, through_the_cable, until_slow  # noqa: E402

from tests.support.hosts import Host, are_possible, hosts  # noqa: E402

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 384, 6, 6, 32, 4
"""10.8 million parameters."""
DDP = "ddp"
HOOKS = ("ddp power-sgd", "ddp fp16")
OURS: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "half fp16": {"compress": "half", "dtype": "float16"},
    "half bf16": {"compress": "half"},
    "power-sgd": {"compress": "power-sgd", "rank": 4, "start": 2},
    "top-k": {"compress": "top-k", "density": 0.01},
    "arc-top-k": {"compress": "arc-top-k", "start": 2},
    "qsgd": {"compress": "qsgd", "levels": 7},
}
HIERARCHICAL: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "top-k": {"compress": "top-k", "density": 0.01},
    "top-k, hierarchical": {"compress": "top-k", "density": 0.01, "reduce": "hierarchical"},
}
PEERS = {
    "all-reduce": DDP,
    "half fp16": "ddp fp16",
    "power-sgd": "ddp power-sgd",
}
"""Torch's way of the same method."""


@dataclass(frozen=True)
class Way:
    """One of what is measured."""

    name: str
    steps: int
    folder: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """Of `distribute`."""
        return OURS.get(self.name, HIERARCHICAL.get(self.name, {}))


def network() -> Any:
    """Bytes in, logits of the next ones out."""
    import torch
    from torch import nn

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
            self.head = nn.Linear(WIDTH, 256)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
            found: torch.Tensor = self.head(self.layers(self.tokens(x) + self.places.weight, mask, is_causal=True))
            return found

    return Transformer()


def batches(rank: int) -> Iterator[Any]:
    """Of bytes of a file of the standard library, each with the next one behind."""
    import torch

    text = torch.frombuffer(bytearray(Path(os.__file__).read_bytes()), dtype=torch.uint8).long()
    draw = torch.Generator().manual_seed(rank)
    while True:
        begins = torch.randint(0, len(text) - LENGTH - 1, (BATCH,), generator=draw).tolist()
        yield torch.stack([text[at : at + LENGTH + 1] for at in begins])


def hooked(model: Any, name: str) -> Any:
    """The model in torch's DDP, with one of its hooks."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    # With several buckets torch's PowerSGD waits in gloo's own threads for what these would do: it stands still.
    megabytes = 1000 if name == "ddp power-sgd" else 25
    found = DistributedDataParallel(model, broadcast_buffers=False, bucket_cap_mb=megabytes)
    if name == "ddp fp16":
        found.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "ddp power-sgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        found.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return found


def train(way: Way, world: Any) -> dict[str, float]:
    """One worker's part."""
    import torch

    import quorate

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = network()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if way.name == DDP or way.name in HOOKS:
        model = hooked(model, way.name)
    else:
        optimizer = quorate.distribute(optimizer, model, "all-reduce", **way.settings)
    draws = batches(world.rank)

    def step() -> None:
        x = next(draws)
        loss = torch.nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(4):
        step()
    until_slow(way.folder, world)
    step()  # from here on links are as slow as they are to be, and connections learn it
    carried, begin = through_the_cable(), time.monotonic()
    for _ in range(way.steps):
        step()
    world.barrier()
    took = time.monotonic() - begin
    moved = max(now - then for now, then in zip(through_the_cable(), carried, strict=True))
    gradient = 4 * sum(p.numel() for p in model.parameters())
    return {"step": took / way.steps, "bytes": moved / way.steps / gradient}


def measured(on: Sequence[Host], rate: str, way: Way, on_each: int) -> dict[str, float]:
    """The slowest worker's seconds a step, and the busiest host's bytes."""
    places = [host for host in on for _ in range(on_each)]
    said = run_slowed(places, rate, lambda folder: partial(train, replace(way, folder=folder)))
    return {name: max(one[name] for one in said) for name in ("step", "bytes")}


def measure(report: record.Report, count: int, on_each: int, rate: str, ways: Sequence[str], told: Any) -> None:
    """All ways among `count` hosts, turn by turn."""
    name = f"{count} x {on_each}, {rate}"
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    with hosts(count) as on:
        for turn in range(told.turns):
            first = turn % len(ways)
            for way in (*ways[first:], *ways[:first]):
                one = measured(on, rate, Way(way, told.steps), on_each)
                found[way].append(one)
                print(f"{name}, turn {turn + 1}, {way}: {one['step']:.3f} s a step", flush=True)
    for way, turns in found.items():
        report.rows.append(record.figure(f"{name}: s a step, {way}", [one["step"] for one in turns]))
        report.rows.append(record.figure(f"{name}: bytes, {way}", [one["bytes"] for one in turns]))
    for way, turns in found.items():
        for other in dict.fromkeys((PEERS.get(way), DDP, "all-reduce")):
            if other in found and other != way:
                ratios = [theirs["step"] / ours["step"] for ours, theirs in zip(turns, found[other], strict=True)]
                report.rows.append(record.figure(f"{name}: {way} / {other}", ratios))
                if other == PEERS.get(way):
                    report.bar(f"{name}: the interval of {way} / {other} reaches", report.rows[-1].high, at_least=1.0)
    if rate == "100mbit":
        ours = min(
            min(one["step"] for one in turns) for way, turns in found.items() if way in OURS or way in HIERARCHICAL
        )
        best = min(one["step"] for one in found[DDP]) / ours
        report.bar(f"{name}: the best of ours / ddp, in steps a second", best, at_least=5.0)


def main() -> int:
    parser = record.arguments(str(__doc__))
    parser.add_argument("--turns", type=int, default=5, help="of all ways, on each network (5)")
    parser.add_argument("--steps", type=int, default=4, help="each turn (4)")
    parser.add_argument("--rates", nargs="*", default=list(RATES), choices=RATES, help="of the links")
    told = parser.parse_args()
    if not are_possible():
        print("benchmarks/slow_network.py needs root on Linux, to make network namespaces", file=sys.stderr)
        return 2
    if told.quick:
        told.turns, told.steps, told.rates = 1, 3, ["1gbit"]
    settings = {"parameters": "10.8 M", "batch": BATCH, "length": LENGTH, "turns": told.turns, "steps": told.steps}
    report = record.Report("slow_network", settings)
    networks = [(4, 1, (DDP, *HOOKS, *OURS)), (2, 2, (DDP, *HIERARCHICAL))]
    for (count, on_each, ways), rate in itertools.product(networks[: 1 if told.quick else 2], told.rates):
        measure(report, count, on_each, rate, ways, told)
    return report.show(told)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
