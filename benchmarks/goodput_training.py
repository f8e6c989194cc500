"""One worker of `goodput.py`: a small classifier, taught by a noisy teacher, in steps of `PACE` seconds.

`quorate run -n 8 --min-step-time 250ms goodput_training.py ARM SECONDS|STEPS FOLDER`, or the same under torchrun for
`ddp`. It ends SECONDS ("90s") after the first worker has begun, or after so many STEPS ("240") of its own; the worker
of the lowest rank that is left writes the held-out loss into FOLDER/result.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PACE = 0.25
DDP = "ddp"
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "all-reduce": ("all-reduce", {"on_death": "continue"}),
    "eager-majority": ("eager-majority", {}),
    "diloco": ("diloco", {"sync_every": 8}),
    "decoupled-diloco": ("decoupled-diloco", {"sync_every": 4, "fragments": 2, "overlap": 1}),
}
CHECKPOINT_EVERY = 8
"""Steps of DDP; writing one takes some milliseconds."""
BATCH = 32
CLASSES = 8
FAILURES, CHAOS = "GOODPUT_FAILURES", "GOODPUT_CHAOS"
"""The schedule by which DDP's workers are slow; quorate's have it from `quorate run`."""


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def examples(draw: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Inputs, and labels drawn by what the teacher says of them: nobody's loss gets to 0."""
    weights = torch.randn(32, CLASSES, generator=torch.Generator().manual_seed(7))
    x = torch.randn(count, 32, generator=draw)
    return x, torch.multinomial((0.5 * x @ weights).softmax(1), 1, generator=draw).squeeze(1)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def held_out(model: nn.Module) -> float:
    with torch.no_grad():
        return float(loss_of(model, examples(torch.Generator().manual_seed(5), 8192)))


def batches(until: str, folder: Path) -> Iterator[tuple[Tensor, Tensor]]:
    """As many as there are until the end."""
    draw, made = torch.Generator().manual_seed(os.getpid()), 0
    deadline = began_in(folder) + float(until.removesuffix("s")) if until.endswith("s") else None
    while made < int(until) if deadline is None else time.monotonic() < deadline:
        yield examples(draw, BATCH)
        made += 1


def began_in(folder: Path) -> float:
    """When the first worker began, by the clock of this host; this one, if there was none before."""
    path, own = folder / "began", folder / f"began-{os.getpid()}"
    own.write_text(repr(time.monotonic()))
    with suppress(FileExistsError):
        os.link(own, path)
    own.unlink()
    return float(path.read_text())


def train(arm: str, until: str, folder: Path) -> None:
    import quorate

    strategy, settings = ARMS[arm]
    world, model = quorate.join(), new_model()
    optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=0.003), model, strategy, **settings)
    for batch in batches(until, folder):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    optimizer.finish()
    if world.rank == min(world.gather(world.rank)):
        (folder / "result.json").write_text(json.dumps({"loss": held_out(model)}))


def train_by_ddp(until: str, folder: Path) -> None:
    """What people do: a checkpoint every few steps; torchrun starts all anew, and they go on from it."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from quorate.inject.failures import SlowTimes, failures_from

    dist.init_process_group("gloo")
    rank, kept, plain = dist.get_rank(), folder / "checkpoint.pt", new_model()
    model = DistributedDataParallel(plain)
    optimizer, made = torch.optim.AdamW(model.parameters(), lr=0.003), 0
    if kept.exists():
        state = torch.load(kept)
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        made = state["steps"]
    started, slow, seconds = folder / "started", None, 0.0
    draw, begin = torch.Generator().manual_seed(os.getpid()), began_in(folder)
    if os.environ.get(FAILURES):
        failures, seed = failures_from(os.environ[FAILURES]), int(os.environ[CHAOS])
        slow = SlowTimes(
            failures,
            dist.get_world_size(),
            seed,
            rank,
            lambda: float(started.read_text()) if started.exists() else None,
        )
    while True:
        since = time.monotonic()
        is_over = made >= int(until) if until.isdecimal() else since > begin + float(until.removesuffix("s"))
        over = torch.tensor([int(is_over)])
        dist.broadcast(over, 0)
        if over.item():
            break
        optimizer.zero_grad()
        loss = loss_of(model, examples(draw, BATCH))
        time.sleep(PACE * (1.0 if slow is None else slow.factor(time.monotonic())))
        loss.backward()
        optimizer.step()
        made += 1
        seconds += time.monotonic() - since
        (folder / f"pid-{rank}").write_text(str(os.getpid()))  # it trains
        if rank == 0 and made % CHECKPOINT_EVERY == 0:
            new = folder / "checkpoint.new"
            torch.save({"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "steps": made}, new)
            new.replace(kept)
    (folder / f"pid-{rank}").unlink(missing_ok=True)
    if rank == 0:
        (folder / "result.json").write_text(json.dumps({"loss": held_out(plain), "steps": made, "seconds": seconds}))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == DDP:
        train_by_ddp(sys.argv[2], Path(sys.argv[3]))
    else:
        train(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
