"""What do models in pieces take, beside torch's modules used by hand, and beside what is foreseen of them?

    python benchmarks/model_parallel.py [--quick] [--parts hand bytes bubble plan]

A GPT-like decoder in float32 under AdamW on real workers, one torch thread each. Four parts:

- `hand`: on 2, 4 and 8 workers, by layers (1F1B), by neurons and heads, with shards (ZeRO 3), and all at once: seconds
  a step of the slowest worker, live bytes that it holds at most, and its loss. By hand: `parallelize_module`,
  `fully_shard`, `PipelineStage` and `Schedule1F1B` of torch, over gloo, as its tutorials have them. In turn (A B A B).
- `bytes`: the same with each worker on a host of its own (network namespaces; as root, on Linux): bytes that go into
  or out of a worker in a step, where it is most.
- `bubble`: the idle share of each schedule by `sharding.stages.clock`, which `quorate plan` and `schedule="auto"` use,
  with times of passes that were measured on this machine, over the formula of each.
- `plan`: seconds a step that `quorate plan` foresees, from blocks that it has timed alone and a link that was measured
  between two workers, over those that `quorate run` takes, for layouts of 2 and 4 workers.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import model_parallel_layouts as layouts  # noqa: E402
import record  # noqa: E402
from hosts import through_the_cable  # noqa: E402
from sharded import Peak, live  # noqa: E402

from tests.support.hosts import are_possible, hosts  # noqa: E402
from tests.support.processes import run_real_world  # noqa: E402

WIDTH, LAYERS, TOKENS, LENGTH, BATCH, MICROBATCHES, HEAD = 256, 8, 256, 64, 8, 4, 32
HAND, OURS = "by hand", "quorate"
PARTS = ("hand", "bytes", "bubble", "plan")
STEPS = 15
"""Of a run for `plan`; they take as long as their blocks are timed, and longer."""
WATCHED = 2
"""Steps behind the timed ones, in which memory is looked at."""


@dataclass(frozen=True)
class Mesh:
    """Sizes of the axes."""

    stages: int = 1
    shards: int = 1
    tensor: int = 1

    @property
    def workers(self) -> int:
        return self.stages * self.shards * self.tensor

    @property
    def name(self) -> str:
        return ", ".join(f"{axis}={size}" for axis, size in vars(self).items() if size > 1)


MESHES = (
    Mesh(tensor=2),
    Mesh(stages=2),
    Mesh(tensor=4),
    Mesh(stages=4),
    Mesh(shards=2, tensor=2),
    Mesh(stages=2, shards=2),
    Mesh(stages=2, tensor=2),
    Mesh(stages=2, shards=2, tensor=2),
)


def network(width: int = WIDTH, layers: int = LAYERS) -> Any:
    """A decoder whose linear layers have the usual names."""
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
            self.v_proj, self.o_proj = nn.Linear(width, width), nn.Linear(width, width)
            self.head_dim = HEAD

        def forward(self, x: Any) -> Any:
            some = (one(x).unflatten(-1, (-1, HEAD)) for one in (self.q_proj, self.k_proj, self.v_proj))
            q, k, v = (y.transpose(1, 2) for y in some)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o_proj(y.transpose(1, 2).flatten(-2))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), Attention()
            self.up_proj, self.down_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.first(x))
            return x + self.down_proj(nn.functional.gelu(self.up_proj(self.second(x))))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(TOKENS, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.head = nn.Linear(width, TOKENS, bias=False)

        def forward(self, x: Any) -> Any:
            if self.words is not None:
                x = self.words(x)
            for block in self.blocks:
                x = block(x)
            return x if self.head is None else self.head(x)

    torch.manual_seed(0)
    return Decoder()


def loss_of(output: Any, targets: Any) -> Any:
    """Of next bytes."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(output.flatten(0, 1), targets.flatten())


def by_hand(model: Any, mesh: Mesh) -> Any:
    """A function that makes the passes of a batch and returns its loss (None where this worker has none), and the
    parameters of this worker."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    grid = init_device_mesh("cpu", (mesh.stages, mesh.shards, mesh.tensor), mesh_dim_names=("pp", "dp", "tp"))
    stage = grid["pp"].get_local_rank()
    if mesh.stages > 1:
        each = LAYERS // mesh.stages
        model.blocks = model.blocks[stage * each : (stage + 1) * each]
        model.words = model.words if stage == 0 else None
        model.head = model.head if stage == mesh.stages - 1 else None
    if mesh.tensor > 1:
        columns, rows = (
            ("attention.q_proj", "attention.k_proj", "attention.v_proj", "up_proj"),
            (
                "attention.o_proj",
                "down_proj",
            ),
        )
        plan = {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}
        for block in model.blocks:
            parallelize_module(block, grid["tp"], plan)
    if mesh.shards > 1:
        for block in model.blocks:
            fully_shard(block, mesh=grid["dp"])
        fully_shard(model, mesh=grid["dp"])
    if mesh.stages == 1:

        def passes(ids: Any, targets: Any) -> Any:
            loss = loss_of(model(ids), targets)
            loss.backward()
            return loss

        return passes, list(model.parameters())
    piece = PipelineStage(model, stage, mesh.stages, torch.device("cpu"), group=grid["pp"].get_group())
    schedule = Schedule1F1B(piece, MICROBATCHES, loss_fn=loss_of)

    def step(ids: Any, targets: Any) -> Any:
        losses: list[Any] = []
        is_last = stage == mesh.stages - 1
        schedule.step(*((ids,) if stage == 0 else ()), **({"target": targets, "losses": losses} if is_last else {}))
        return sum(losses) / len(losses) if losses else None

    return step, list(model.parameters())


def ours(model: Any, mesh: Mesh, world: Any) -> Any:
    """As `by_hand`, and the optimizer."""
    import torch

    import quorate

    axes = {axis: size for axis, size in vars(mesh).items() if size > 1}
    more: dict[str, Any] = {"microbatches": MICROBATCHES} if mesh.stages > 1 else {}
    model = quorate.parallelize(model, world.mesh(**axes), zero=3, **more)
    optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=1e-4), model, compare_every=0)

    def passes(ids: Any, targets: Any) -> Any:
        if mesh.stages > 1:
            return quorate.forward_backward(model, ids, targets, loss_of)
        loss = loss_of(model(ids), targets)
        loss.backward()
        return loss

    return passes, optimizer


def exchanged() -> tuple[int, int]:
    """Bytes that the host of this worker has been sent, and has sent, where it has a cable."""
    return through_the_cable() if "cable" in Path("/proc/net/dev").read_text() else (0, 0)


def train(side: str, mesh: Mesh, steps: int, world: Any) -> dict[str, float]:
    """One worker's part."""
    import torch

    torch.set_num_threads(1)
    before = live()
    model = network()
    if side == HAND:
        passes, parameters = by_hand(model, mesh)
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    else:
        passes, optimizer = ours(model, mesh, world)
    del model
    share = world.rank // mesh.tensor % mesh.shards
    ids = torch.randint(0, TOKENS, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(share))
    seconds, peak, loss = list[float](), None, None
    carried, came, went = (0, 0), 0, 0
    for step in range(steps + 2 + WATCHED):
        if step == steps + 2:
            peak = Peak()  # which looks so often that it takes time, so not while steps are timed
            came, went = (now - then for now, then in zip(exchanged(), carried, strict=True))
        world.barrier()
        carried = exchanged() if step == 2 else carried
        begin = time.monotonic()
        optimizer.zero_grad()
        loss = passes(ids[:, :-1], ids[:, 1:])
        optimizer.step()
        seconds.append(time.monotonic() - begin)
    assert peak is not None
    peak.end()
    if side == OURS:
        optimizer.finish()
    world.barrier()
    timed = sorted(seconds[2 : steps + 2])
    found = {"seconds": timed[len(timed) // 2], "peak": float(peak.live - before), "bytes": max(came, went) / steps}
    return found if loss is None else {**found, "loss": float(loss.detach())}


def bytes_beside_hand(report: record.Report, meshes: Sequence[Mesh], steps: int = 3) -> None:
    """Both sides on each mesh, with a host for each worker. The bar is 1.0, but for half a percent of headers."""
    for mesh in meshes:
        found = dict[str, float]()
        for side in (HAND, OURS):
            with hosts(mesh.workers) as on:
                task = partial(train, side, mesh, steps)
                said = run_real_world(mesh.workers, task, 300.0, on=on, environment={"OMP_NUM_THREADS": "1"})
            found[side] = max(one["bytes"] for one in said) / 1e6
            print(f"{mesh.name}, {side}: {found[side]:.2f} MB in a step", flush=True)
            report.rows.append(record.figure(f"{mesh.name}, {side}: MB into or out of a worker", [found[side]]))
        report.bar(f"{mesh.name}: by hand / quorate, bytes", found[HAND] / found[OURS], at_least=0.995)


def beside_hand(report: record.Report, turns: int, steps: int, meshes: Sequence[Mesh]) -> None:
    """Both sides on each mesh."""
    for mesh in meshes:
        found: dict[str, list[list[dict[str, float]]]] = {HAND: [], OURS: []}
        for turn in range(turns):
            for side in (HAND, OURS) if turn % 2 == 0 else (OURS, HAND):
                task = partial(train, side, mesh, steps)
                said = run_real_world(mesh.workers, task, 300.0, environment={"OMP_NUM_THREADS": "1"})
                found[side].append(said)
                print(f"{mesh.name}, turn {turn + 1}, {side}: {slowest(said):.3f} s a step", flush=True)
        for side, each in found.items():
            report.rows.append(record.figure(f"{mesh.name}, {side}: s a step", [slowest(said) for said in each]))
            peaks = [max(one["peak"] for one in said) / 2**20 for said in each]
            report.rows.append(record.figure(f"{mesh.name}, {side}: MiB live at most", peaks))
        ratios = [slowest(a) / slowest(b) for a, b in zip(found[HAND], found[OURS], strict=True)]
        report.rows.append(record.figure(f"{mesh.name}: by hand / quorate, seconds", ratios))
        report.bar(f"{mesh.name}: the interval of by hand / quorate reaches", report.rows[-1].high, at_least=1.0)
        peaks = [
            max(one["peak"] for one in a) / max(one["peak"] for one in b) for a, b in zip(*found.values(), strict=True)
        ]
        report.rows.append(record.figure(f"{mesh.name}: by hand / quorate, memory", peaks))
        report.bar(
            f"{mesh.name}: the interval of by hand / quorate, memory, reaches", report.rows[-1].high, at_least=1.0
        )
        ends = [max(one["loss"] for one in said if "loss" in one) for each in found.values() for said in each]
        report.bar(f"{mesh.name}: losses differ by", max(ends) - min(ends), at_most=1e-3)


def slowest(said: list[dict[str, float]]) -> float:
    """Seconds a step."""
    return max(one["seconds"] for one in said)


def main() -> int:
    parser = record.arguments(str(__doc__))
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS, help="what is measured (all)")
    parser.add_argument("--turns", type=int, default=5, help="of both sides (5)")
    parser.add_argument("--workers", nargs="*", type=int, default=[2, 4], help="of `plan` (2 4)")
    parser.add_argument("--steps", type=int, default=6, help="of each, in a turn (6)")
    told = parser.parse_args()
    turns, steps = (1, 3) if told.quick else (told.turns, told.steps)
    about = {"turns": turns, "steps": steps, "width": WIDTH, "layers": LAYERS, "batch": BATCH, "length": LENGTH}
    report = record.Report("model_parallel", about)
    if "hand" in told.parts:
        beside_hand(report, turns, steps, MESHES[:2] if told.quick else MESHES)
    if "bytes" in told.parts:
        if not are_possible():
            print("the part `bytes` needs root on Linux, to make network namespaces", file=sys.stderr)
            return 2
        bytes_beside_hand(report, MESHES[:2] if told.quick else MESHES)
    if "bubble" in told.parts:
        layouts.bubbles(report, *passes_of_a_block())
    if "plan" in told.parts:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "train.py")
            script.write_text(SCRIPT.format(benchmarks=str(Path(__file__).resolve().parent)))
            run = partial(seconds_of, script)
            layouts.foreseen(
                report, script, run, turns=1 if told.quick else told.turns, sizes=[2] if told.quick else told.workers
            )
    return report.show(told)


def passes_of_a_block(repeats: int = 101) -> tuple[float, float, float]:
    """Median seconds of a block's forward pass, of the gradient of its input, and of that of its weights, for one
    micro-batch."""
    import torch

    torch.set_num_threads(1)
    block = network(layers=1).blocks[0]
    parameters = list(block.parameters())
    found: list[tuple[float, float, float]] = []
    for _ in range(repeats):
        x = torch.randn(BATCH // MICROBATCHES, LENGTH, WIDTH, requires_grad=True)
        marks = [time.perf_counter()]
        y = block(x).sum()
        marks.append(time.perf_counter())
        torch.autograd.grad(y, [x], retain_graph=True)
        marks.append(time.perf_counter())
        torch.autograd.grad(y, [x, *parameters])
        marks.append(time.perf_counter())
        forward, inputs, both = (end - begin for begin, end in itertools.pairwise(marks))
        found.append((forward, inputs, max(0.0, both - inputs)))
    middle = [sorted(column)[repeats // 2] for column in zip(*found, strict=True)]
    return middle[0], middle[1], middle[2]


SCRIPT = """
import json, sys, time
sys.path.insert(0, {benchmarks!r})
import torch
import model_parallel as benchmark
import quorate

world = quorate.join()
torch.set_num_threads(1)
told = json.loads(sys.argv[1])
examples, path, steps = told["examples"], told.get("path"), told.get("steps", 200)
model = quorate.parallelize(benchmark.network(), **told.get("parallelize", {{}}))
optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=1e-4), model, compare_every=0)
draw = torch.Generator().manual_seed(0)
ids = torch.randint(0, benchmark.TOKENS, (examples, benchmark.LENGTH + 1), generator=draw)
seconds = []
for step in range(steps + 2):
    if path:
        world.barrier()
    begin = time.monotonic()
    optimizer.zero_grad()
    if told.get("is_piped"):
        quorate.forward_backward(model, ids[:, :-1], ids[:, 1:], benchmark.loss_of)
    else:
        benchmark.loss_of(model(ids[:, :-1]), ids[:, 1:]).backward()
    optimizer.step()
    seconds.append(time.monotonic() - begin)
if path:
    slowest = [max(some) for some in zip(*(x.tolist() for x in world.gather(torch.tensor(seconds))))]
    if world.rank == 0:
        timed = sorted(slowest[2:])
        open(path, "w").write(json.dumps(timed[len(timed) // 2]))
"""


def seconds_of(script: Path, layout: Any, examples: int) -> float:
    """Of a step of a layout, by `quorate run`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "seconds.json")
        told: dict[str, Any] = {"examples": examples, "path": str(path), "steps": STEPS, "parallelize": {}}
        if layout.schedule:
            told["is_piped"] = True
            told["parallelize"] = {"schedule": layout.schedule, "microbatches": layout.microbatches}
        command = [sys.executable, "-m", "quorate.cli.main", "run", "-n", str(layout.workers), "--mesh", layout.mesh]
        command += ["--zero", str(layout.zero or 3), str(script), json.dumps(told)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        if not path.exists():
            raise RuntimeError(f"{layout.in_words}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return float(json.loads(path.read_text()))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
