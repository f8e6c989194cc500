"""How long does training take where one learner is four times slower, or its links are thin, and nobody waits for it?

Four learners of a small `stdlib-bytes` in the virtual world, steps of 20 ms: `diloco` with 40 local steps, and with a
period of as many seconds; `decoupled-diloco` (a quorum of two and of three, in two fragments); `async-local-sgd`. One
learner is four times slower than the others, its links to them carry 1 Mbit/s, or both. Held against each other is the
virtual time until the point that all have in common has the held-out loss that `diloco` has at the end of its time;
beside it, that loss of each at the end of the same time.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import late_trainings as late
import record
import torch
from torch.optim import AdamW

import quorate
from quorate.core.contracts import Wire
from quorate.wire import current
from quorate.wire.virtual.compute import Constant
from quorate.wire.virtual.network import Link, Network
from quorate.wire.virtual.world import VirtualWorld

SIZE, STEP, H = 4, 0.02, 40
SLOWER = 4.0
THIN = 125_000.0
"""Bytes per second."""
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "diloco": ("diloco", {"sync_every": H, "fragments": 2, "overlap": 4}),
    "diloco, by time": ("diloco", {"sync_every": f"{H * STEP * 1000:.0f}ms"}),
    "decoupled-diloco, quorum of 2": (
        "decoupled-diloco",
        {"sync_every": H, "fragments": 2, "overlap": 4, "wait_for": 2},
    ),
    "decoupled-diloco, quorum of 3": (
        "decoupled-diloco",
        {"sync_every": H, "fragments": 2, "overlap": 4, "wait_for": 3},
    ),
    "async-local-sgd": ("async-local-sgd", {"sync_every": H}),
}
PLACES = ("equal", "one slow", "thin link", "slow, and a thin link")
SLOW, IS_THIN = ("one slow", "slow, and a thin link"), ("thin link", "slow, and a thin link")


@dataclass(frozen=True)
class Training:
    """One run."""

    arm: str
    place: str
    seed: int
    seconds: float


def losses(one: Training) -> list[tuple[float, float]]:
    """(virtual time, held-out loss of the common point), as rank 0 sees it after every tenth of its steps."""
    task = late.task_of(late.BYTES)
    task.held_out  # noqa: B018 - made once, before workers share it
    strategy, settings = ARMS[one.arm]
    found: list[tuple[float, float]] = []

    def live(wire: Wire) -> None:
        place = current.enter(wire, thread_only=True)
        try:
            world, model = quorate.join(), task.model()
            plain = AdamW(model.parameters(), lr=0.003)
            optimizer: Any = quorate.distribute(plain, model, strategy, on_nonfinite="ignore", **settings)
            draw = torch.Generator().manual_seed(100 + world.rank + 1000 * one.seed)
            chance, slow = random.Random(world.rank + 1000 * one.seed), one.place in SLOW and world.rank == 3
            seen = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
            begin, step = wire.clock.now(), 0
            while wire.clock.now() - begin < one.seconds:
                optimizer.zero_grad()
                task.loss(model, task.batch(draw)).backward()
                wire.clock.sleep(STEP * (0.95 + 0.1 * chance.random()) * (SLOWER if slow else 1.0))
                optimizer.step()
                step += 1
                if world.rank == 0 and step % (H // 2) == 0:
                    common = common_of(optimizer)
                    now = torch.cat([x.reshape(-1) for x in common.segments()])
                    if not torch.equal(now, seen):
                        seen = now.clone()
                        other = task.model()
                        for p, x in zip(other.parameters(), common.segments(), strict=True):
                            p.data.copy_(x)
                        found.append((wire.clock.now() - begin, late.held_out(task, torch.nn.ModuleList([other]))[0]))
            optimizer.finish()
            place.leave()
        finally:
            current.forget(thread_only=True)

    thin = {(SIZE - 1, rank): Link(50e-6, THIN) for rank in range(SIZE - 1)}
    network = Network(links=thin if one.place in IS_THIN else {})
    with contextlib.redirect_stderr(io.StringIO()):
        VirtualWorld(SIZE, seed=one.seed, network=network, compute=Constant(0.0)).run(live)
    return found


def common_of(optimizer: Any) -> Any:
    """Where all are, of a strategy of outer steps."""
    state = optimizer.__dict__["_quorate_worker"].state
    return state.before if hasattr(state, "before") else state.common


def time_to(target: float, seen: Sequence[tuple[float, float]]) -> float | None:
    """The first time at which the loss is there."""
    return next((at for at, loss in seen if loss <= target), None)


def main() -> int:
    """Measure, print, and hold the bar."""
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--jobs", type=int, default=2, help="processes that train in virtual workers (2)")
    parser.add_argument("--place", choices=PLACES, action="append", help="only this; may be given several times")
    given = parser.parse_args()
    places = given.place or PLACES
    seeds, seconds = ((0,), 20.0) if given.quick else ((0, 1, 2), 24.0)
    wanted = [Training(arm, place, seed, seconds) for place in places for seed in seeds for arm in ARMS]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        seen = {}
        for number, found in enumerate(pool.imap(losses, wanted)):
            seen[wanted[number]] = found
            sys.stderr.write(f"{number + 1}/{len(wanted)}  {wanted[number].place}, {wanted[number].arm}\n")
    report = record.Report("learners", {"seeds": list(seeds), "seconds": seconds, "H": H, "workers": SIZE})
    for place in places:
        for arm in ARMS:
            runs = [seen[Training(arm, place, seed, seconds)] for seed in seeds]
            bases = [seen[Training("diloco", place, seed, seconds)] for seed in seeds]
            report.rows.append(record.figure(f"{place}: loss in the end, {arm}", [run[-1][1] for run in runs]))
            ratios = []
            for run, base in zip(runs, bases, strict=True):
                at = time_to(base[-1][1], run)
                ratios.append(base[-1][0] / at if at is not None else 0.0)
            report.rows.append(record.figure(f"{place}: time to diloco's last loss, diloco / {arm}", ratios))
            if place != "equal" and arm == "decoupled-diloco, quorum of 2":
                report.bar(f"{place}: time to equal loss, diloco / {arm}", statistics.median(ratios), at_least=2.0)
    return report.show(given)


if __name__ == "__main__":
    raise SystemExit(main())
