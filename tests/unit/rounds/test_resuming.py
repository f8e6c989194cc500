"""The law of rounds across checkpoints: whatever is cut off wherever, each gradient counts once, among virtual workers.

Every contribution has a coordinate of its own, in which its gradient is 1: so the parameters say, of each one, how
often it was applied.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.checkpoint.encoding import ABOUT, decoded
from quorate.checkpoint.folder import complete_ones, verify
from quorate.checkpoint.participants import CheckpointContext
from quorate.checkpoint.parts import rank_file
from quorate.checkpoint.tensor_file import read_tensors
from quorate.launch.worker.world import World
from quorate.rounds.buffer import Ledger
from quorate.wire import current
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import Outcome, VirtualWorld
from tests.support.joined import joined
from tests.support.pending import pending_weight

STEPS, MOST, SESSIONS = 14, 6, 3


class Coordinates(torch.nn.Module):
    """One number for each contribution there may be."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = torch.nn.Parameter(torch.zeros(SESSIONS, MOST, STEPS))


@dataclass
class Told:
    counts: torch.Tensor
    ledger: Ledger
    pending: float
    began: int | None
    loaded: Ledger | None


@dataclass
class Plan:
    """What happens in one session."""

    session: int
    pause: Callable[[int, int], float]
    saves: Callable[[int, int], bool]
    away: tuple[int, int]
    """(rank, step) at which a worker pauses alone, for long; a negative rank: nobody."""
    crash: tuple[int, int]
    """(rank, step of this session) at which a worker is gone, and with it the session."""
    settings: dict[str, Any]


def train(world: World, plan: Plan) -> Told:
    model = Coordinates()
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer: Any = quorate.distribute(plain, model, strategy="quorum", with_one_worker="algorithm", **plan.settings)
    rounds = optimizer.__dict__["_quorate_worker"].rounds.rounds
    began = quorate.load()
    loaded = None if began is None else Ledger(**vars(rounds.ledger))
    step = began or 0
    while step < STEPS:
        if (world.rank, step) == plan.away:
            with world.evaluate(this_worker_only=True):
                world.wire.clock.sleep(3.0)
        world.wire.clock.sleep(plan.pause(world.rank, step))
        model.counts[plan.session, world.rank, step].backward()
        if (world.rank, step - (began or 0)) == plan.crash:
            world.wire.crash()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if plan.saves(world.rank, step):
            quorate.save()
    with world.evaluate():  # so that nobody has ended while others step: the divisor is always the same
        optimizer.finish()
    return Told(-model.counts.detach(), rounds.ledger, pending_weight(rounds), began, loaded)


def live(size: int, root: Path, plan: Plan, *, seed: int, network: Network) -> list[Outcome[Told]]:
    @joined
    def task(world: World) -> Told:
        current.here().context(CheckpointContext).root = root
        current.here().context(CheckpointContext).listeners = [lambda sentence: None]
        return train(world, plan)

    return VirtualWorld(size, seed=seed, network=network, timeout=120.0).outcomes(task)


def plan_of(draw: random.Random, session: int, size: int, settings: dict[str, Any], *, crashes: bool) -> Plan:
    base = [draw.choice([0.0, 0.0, 0.02, 0.1]) for _ in range(size)]
    pauses = {(r, s): base[r] + (draw.random() < 0.2) * draw.uniform(0, 0.2) for r in range(size) for s in range(STEPS)}
    asks = {(r, s) for r in range(size) for s in range(STEPS) if draw.random() < draw.choice([0.0, 0.1, 0.4])}
    away = (draw.randrange(size), draw.randrange(STEPS)) if draw.random() < 0.4 else (-1, 0)
    crash = (draw.randrange(size), draw.randrange(STEPS)) if crashes else (-1, 0)
    return Plan(session, lambda r, s: pauses[r, s], lambda r, s: (r, s) in asks, away, crash, settings)


def is_one_of(x: torch.Tensor, values: list[float]) -> torch.Tensor:
    return torch.stack([(x - value).abs() < 1e-6 for value in values]).any(0)


@pytest.mark.seeds(8, 25)
def test_each_gradient_counts_once(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    size = draw.choice([1, 2, 3, 4, 5])
    settings = {
        "wait_for": draw.choice(["all", "majority", "designated", 1]),
        "max_staleness": draw.choice([1, 3, 16]),
        "overlap": draw.random() < 0.2,
        "on_death": "stop",
    }
    network = Network(latency=draw.choice([0.0, 1e-4, 5e-3]), bandwidth=1e9)
    sizes = [size]
    for session in range(SESSIONS):
        last = session == SESSIONS - 1
        plan = plan_of(draw, session, size, settings, crashes=not last)
        outcomes = live(size, tmp_path / "kept", plan, seed=seed + 1000 * session, network=network)
        all_of_one_round(tmp_path / "kept")
        if last:
            break
        if draw.random() < 0.4:
            size = draw.choice([1, 2, 3, 4, 5, 6])
        sizes.append(size)
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    assert not failed, failed
    found = [outcome.result for outcome in outcomes if outcome.result is not None]
    check(found, sizes)


def all_of_one_round(root: Path) -> None:
    for folder in complete_ones(root):
        said = verify(folder)
        for rank in range(said["workers"]):
            tensors, header = read_tensors(folder / rank_file(rank))
            (one,) = decoded(header[ABOUT], tensors)["optimizers"].values()
            assert one["rounds"]["number"] == said["round"]


def check(found: list[Told], sizes: list[int]) -> None:
    first = found[0]
    for rank, measures in enumerate(found):
        assert torch.equal(measures.counts, first.counts)
        ledger = measures.ledger
        assert ledger.produced == ledger.taken + ledger.dropped + ledger.replaced + ledger.expired
        assert measures.pending == 0
        began = measures.began or 0
        session = len(sizes) - 1
        now = first.counts[session, rank, began:]
        gone = ledger.expired
        if not gone:
            assert is_one_of(now, [1 / sizes[-1]]).all()
        assert (first.counts[session, rank, :began] == 0).all()
    weights = [1 / size for size in sizes]
    for session, size in enumerate(sizes[:-1]):
        before = first.counts[session, :size]
        assert is_one_of(before, [0.0, *weights[session:]]).all()
    if len(set(sizes)) == 1 and not any(measures.ledger.expired for measures in found):
        for rank, measures in enumerate(found):  # each step this worker has made counts once, in whichever session
            assert is_one_of(first.counts[:, rank].sum(0), weights[:1]).all()
            assert measures.ledger.taken == STEPS
