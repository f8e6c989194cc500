"""What does a model in shards take, in memory, time and bytes, beside torch's FSDP2 used by hand, and beside theory?

    python benchmarks/sharded.py [--quick]

GPT-like models of 26 and 130 million parameters in float32 under AdamW, on 2 and 4 real workers (one torch thread
each, batches of one short sequence, so that the state is what counts). In turn (A B C D, ...), each in processes of
their own:

- `fsdp`: torch's `fully_shard` on the same blocks and the model, as its tutorial has it, over gloo;
- `zero 1`, `zero 2`, `zero 3`: `quorate.parallelize` and `quorate.distribute`, strategy `all-reduce`.

Figures: seconds a step, the slowest worker's; bytes that a worker holds when a step has ended (parameters, gradients
and optimizer; live bytes by the C library, and resident ones by the kernel), above those before the model was made
and after a small one has been trained (what is imported, and what the matrix library keeps for each thread, is no
state), over Psi (4 + 4 + 8) / N bytes; the most it has held since the second step began; and bytes sent by a worker in
a step over what theory says: 2 Psi (S - 1) / S numbers, with `zero 3` 3 Psi (S - 1) / S but for what the root keeps
gathered.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import record  # noqa: E402

from tests.support.processes import run_real_world  # noqa: E402

SIZES = {"26 M": (512, 8), "130 M": (1024, 10)}
"""Width, and number of blocks."""
TOKENS, LENGTH = 256, 16
FSDP = "fsdp"
SIDES = (FSDP, "zero 3", "zero 2", "zero 1")


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def live() -> int:
    """Bytes that are in use, by the C library, and those that are shared with other workers, each a worker's part."""
    mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
    mallinfo2.restype = _Mallinfo2
    found = mallinfo2()
    return int(found.hblkhd + found.uordblks) + rollup("Pss_Shmem")


def rollup(name: str) -> int:
    """Bytes, by the kernel; what several processes have in memory counts for each in part."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    return 0


def resident() -> int:
    """Bytes of this process that are in memory; what it has in common with the one that it was forked from counts
    whole, so that it stays the same however many others have it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1]) + rollup("Pss_Shmem")
    return 0


class Peak:
    """The most that is held, looked at every few milliseconds."""

    def __init__(self) -> None:
        self.live = self.resident = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._is_over.wait(0.01):
            self.live, self.resident = max(self.live, live()), max(self.resident, resident())

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()


def network(width: int, layers: int, *, heads: int = 8, tokens: int = TOKENS, recomputes: bool = False) -> Any:
    """A decoder of `layers` blocks, each of 12 width^2 numbers, whose activations are kept or calculated again."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            q, k, v = (y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in self.mix(self.first(x)).chunk(3, -1))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
            x = x + self.out(y)
            return x + self.down(nn.functional.gelu(self.up(self.second(x))))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(tokens, width), nn.Linear(width, tokens)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))

        def forward(self, ids: Any) -> Any:
            x = self.tokens(ids)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if recomputes else block(x)
            return self.head(x)

    torch.manual_seed(0)
    return Decoder()


@dataclass(frozen=True)
class Side:
    """One of what is measured."""

    name: str
    width: int
    layers: int
    steps: int


def train(side: Side, world: Any) -> dict[str, float]:
    """One worker's part."""
    import torch
    from torch.distributed.fsdp import fully_shard

    import quorate

    torch.set_num_threads(1)
    once = fully_shard(network(512, 1), mesh=world.mesh(replicas=1)["shards"])
    once(torch.zeros(1, LENGTH, dtype=torch.int64)).sum().backward()
    torch.optim.AdamW(once.parameters()).step()  # what torch imports, and its matrix library keeps for each thread
    del once
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what the small one has left free is no part of it
    before = live(), resident()
    model = network(side.width, side.layers)
    numbers = sum(p.numel() for p in model.parameters())
    optimizer: Any
    if side.name == FSDP:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    else:
        zero: Any = int(side.name[-1])
        model = quorate.parallelize(model, zero=zero)
        optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=1e-4), model, compare_every=0)
    ids = torch.randint(0, TOKENS, (1, LENGTH + 1), generator=torch.Generator().manual_seed(world.rank))
    seconds, meter, peak = list[float](), None, None
    if side.name != FSDP:
        meter = optimizer.__dict__["_quorate_worker"].coordinates.traffic.meter
    sent = 0
    for step in range(side.steps + 2):
        if step == 1:
            peak = Peak()
        if step == 2 and meter is not None:
            sent = sum(meter.bytes_out.values())
        world.barrier()
        begin = time.monotonic()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        seconds.append(time.monotonic() - begin)
    assert peak is not None
    peak.end()
    world.barrier()  # until then another worker may be in its step, and hold what travels in it
    held = live() - before[0], resident() - before[1]
    found = {
        "numbers": float(numbers),
        "seconds": sorted(seconds[2:])[len(seconds[2:]) // 2],
        "live": float(held[0]),
        "resident": float(held[1]),
        "peak live": float(peak.live - before[0]),
        "peak resident": float(peak.resident - before[1]),
        "loss": float(loss),
    }
    if meter is not None:
        found["sent"] = (sum(meter.bytes_out.values()) - sent) / side.steps
        optimizer.finish()
    world.barrier()
    return found


def main() -> int:
    parser = record.arguments(str(__doc__))
    parser.add_argument("--turns", type=int, default=5, help="of all sides (5)")
    parser.add_argument("--steps", type=int, default=6, help="of each, in a turn (6)")
    parser.add_argument("--workers", type=int, nargs="*", default=(2, 4), help="how many (2 4)")
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=SIZES, help="parameters")
    told = parser.parse_args()
    turns, steps = (1, 3) if told.quick else (told.turns, told.steps)
    workers, sizes = ((2,), ["26 M"]) if told.quick else (told.workers, told.sizes)
    report = record.Report("sharded", {"turns": turns, "steps": steps, "tokens": LENGTH, "threads": 1})
    for count, size in itertools.product(workers, sizes):
        found: dict[str, list[list[dict[str, float]]]] = {name: [] for name in SIDES}
        width, layers = SIZES[size]
        for turn in range(turns):
            for name in (*SIDES[turn % len(SIDES) :], *SIDES[: turn % len(SIDES)]):
                environment = {"OMP_NUM_THREADS": "1"}
                side = Side(name, width, layers, steps)
                said = run_real_world(count, partial(train, side), 600.0, environment=environment)
                found[name].append(said)
                print(f"{count} workers, {size}, turn {turn + 1}, {name}: {slowest(said):.3f} s a step", flush=True)
        tell(report, f"{count} workers, {size}", count, found)
    return report.show(told)


def slowest(said: list[dict[str, float]]) -> float:
    """Seconds a step."""
    return max(one["seconds"] for one in said)


def tell(report: record.Report, where: str, count: int, found: dict[str, list[list[dict[str, float]]]]) -> None:
    """All figures and bars of one size on so many workers."""
    numbers = found[FSDP][0][0]["numbers"]
    state = 16 * numbers / count
    for name, turns in found.items():
        report.rows.append(record.figure(f"{where}, {name}: s a step", [slowest(said) for said in turns]))
        for kind in ("live", "resident", "peak live", "peak resident"):
            ratios = [max(one[kind] for one in said) / state for said in turns]
            report.rows.append(record.figure(f"{where}, {name}: {kind}, over 16 Psi / N", ratios))
            if name == "zero 3" and kind in ("live", "resident"):
                bar = 1.05 if kind == "live" else 1.25
                report.bar(f"{where}, {name}: {kind}, over 16 Psi / N", report.rows[-1].median, at_most=bar)
        if name != FSDP:
            times = 3 if name == "zero 3" else 2
            theory = 4 * times * numbers * (count - 1) / count
            sent = [max(one["sent"] for one in said) / theory for said in turns]
            report.rows.append(record.figure(f"{where}, {name}: sent, over theory", sent))
            report.bar(f"{where}, {name}: sent, over theory", report.rows[-1].median, at_most=1.05)
    ratios = [slowest(one) / slowest(other) for one, other in zip(found[FSDP], found["zero 3"], strict=True)]
    report.rows.append(record.figure(f"{where}: fsdp / zero 3, seconds", ratios))
    report.bar(f"{where}: the interval of fsdp / zero 3 reaches", report.rows[-1].high, at_least=1.0)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
