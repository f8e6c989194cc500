"""Rounds of replicas in pieces: what is decided for one piece of a replica is decided for all, and nothing is lost."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.core.contracts import Message, Wire
from quorate.core.vectors import Flat, Layout, Part, Segment
from quorate.rounds.buffer import Ledger
from quorate.rounds.log import Round
from quorate.rounds.pieces.row_tasks import FirstTask, FollowingTask
from quorate.rounds.progress import TAG
from quorate.rounds.rounds import Rounds
from quorate.rounds.terms import Agreed
from quorate.wire.group import GroupWire
from quorate.wire.virtual.network import Link, Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.unwatched import Unwatched

WIDTH = 7


def piece_of(shard: int, shards: int) -> slice:
    """Pieces are of different lengths, as those of a model are."""
    ends = [round(WIDTH * (place / shards) ** 1.3) for place in range(shards + 1)]
    return slice(ends[shard], ends[shard + 1])


def layout_of(piece: slice) -> Layout:
    width = piece.stop - piece.start
    part = Part(width, torch.float64, torch.device("cpu"))
    return Layout((Segment("w", (width,), torch.float64, 0, 0),), (part,), 0)


@dataclass
class Piece:
    """One worker: its piece of the parameters, and what it has applied."""

    parameters: Tensor
    layout: Layout
    applied: list[tuple[int, dict[int, list[tuple[int, int]]]]] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    ledger: Ledger | None = None
    met_with: list[list[int]] = field(default_factory=list)

    def apply(self, one: Round) -> None:
        if one.sum is not None:
            self.parameters += one.sum.parts[0]
        self.applied.append((one.number, one.contributors))

    def capture(self, *, is_whole: bool) -> tuple[dict[str, Any], Sequence[Tensor]]:
        return {"applied": len(self.applied)}, [self.parameters.clone()]

    def adopt(self, header: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        self.parameters = tensors[0].clone()
        self.copied.append(len(self.applied))

    def reached(self, number: int, term: int, *, in_step: bool) -> bool:
        return True

    def met(self, number: int, joined: Sequence[int]) -> None:
        self.met_with.append(list(joined))

    def boundary(self) -> None:
        """Nothing is kept."""


def gradient(replica: int, step: int) -> Tensor:
    return torch.randn(WIDTH, generator=torch.Generator().manual_seed(1000 * replica + step), dtype=torch.float64)


def training(
    shards: int,
    steps: int,
    seconds: Callable[[int, int, int, Rounds], float],
    waits: bool = True,
    joins: float = 0.0,
    **settings: Any,
) -> Callable[[Wire], Piece]:
    """Of workers in replicas of `shards`; `seconds(replica, shard, step, rounds)` is how long each computes. Newcomers
    come when `joins` seconds have passed."""

    def live(wire: Wire) -> Piece:
        replica, shard = divmod(wire.rank, shards)
        rows = [range(first, first + shards) for first in range(0, wire.max_size, shards)]
        column = [row[shard] for row in rows]
        across = GroupWire(wire.channel("across"), column, rows, wire.size // shards)
        within = GroupWire(wire.channel("within"), rows[replica], size=shards)
        piece = piece_of(shard, shards)
        own = Piece(torch.zeros(piece.stop - piece.start, dtype=torch.float64), layout_of(piece))
        agreed = Agreed(size=across.size, max_size=across.max_size, pieces=shards, vector_bytes=8 * WIDTH, **settings)
        rounds = Rounds(across, agreed, own.layout, own, None, Unwatched(), row=within)
        if across.is_newcomer:
            wire.clock.sleep(joins)
            for one in rounds.enter():
                own.apply(one)
        for step in range(steps):
            begin = wire.clock.now()
            wire.clock.sleep(seconds(replica, shard, step, rounds))
            within.barrier().wait()
            given = Flat([gradient(replica, step)[piece].clone()], own.layout)
            work = rounds.contribute(given, weight=1.0, step=step, options=None, waits=waits, measures=shard)
            if waits:
                work.wait()
            for one in rounds.completed():
                own.apply(one)
            own.steps.append(wire.clock.now() - begin)
        rounds.pause(ended=True, apply=own.apply)
        own.ledger = rounds.ledger
        rounds.close()
        return own

    return live


def check(found: list[Piece], shards: int, steps: int | None) -> None:
    """Pieces of a replica have gone the same way, replicas are equal, and everything is in them."""
    replicas = [found[at : at + shards] for at in range(0, len(found), shards)]
    for pieces in replicas:
        for one in pieces:
            assert one.applied == pieces[0].applied
            assert one.copied == pieces[0].copied
            assert one.ledger == pieces[0].ledger
    whole = [torch.cat([one.parameters for one in pieces]) for pieces in replicas]
    assert all(torch.equal(one, whole[0]) for one in whole)
    if steps is None:
        return
    given = sum(gradient(replica, step) for replica, step in itertools.product(range(len(replicas)), range(steps)))
    torch.testing.assert_close(whole[0], given, rtol=0, atol=1e-12)


def links(size: int, draw: random.Random) -> Network:
    """Some ways take a hundred times as long as others."""
    ways = itertools.combinations(range(size), 2)
    return Network(links={way: Link(draw.choice([20e-6, 200e-6, 2e-3]), 1e9) for way in ways})


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("replicas", "shards"), [(2, 2), (3, 2), (2, 3), (1, 2), (5, 2), (8, 3)])
def test_all_pieces_go_the_same_way(replicas: int, shards: int, seed: int) -> None:
    draw = random.Random(seed)
    pace = [draw.choice([0.01, 0.02, 0.1]) for _ in range(replicas)]
    network = links(replicas * shards, draw)
    late = random.Random(seed + 1)

    def seconds(replica: int, shard: int, step: int, rounds: Rounds) -> float:
        return pace[replica] * late.choice([0.5, 1.0, 3.0])

    wait_for = draw.choice(["majority", "all", 1, "designated"])
    live = training(shards, 12, seconds, waits=draw.random() < 0.7, wait_for=wait_for, late="carry")
    found = VirtualWorld(replicas * shards, network=network, timeout=60.0).run(live)
    check(found, shards, 12)


@pytest.fixture
def can_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks of a worker understand a message that lets them sleep."""
    take, follow, hear = FirstTask._take, FollowingTask._take, FollowingTask._hear

    def sleeps(self: Any, about: Any) -> bool:
        if "sleep" in about:
            self._wire.clock.sleep(about["sleep"])
        return "sleep" in about

    monkeypatch.setattr(FirstTask, "_take", lambda self, *one: sleeps(self, one[1].header) or take(self, *one))
    monkeypatch.setattr(FollowingTask, "_take", lambda self, *one: sleeps(self, one[1].header) or follow(self, *one))
    monkeypatch.setattr(FollowingTask, "_hear", lambda self, about: sleeps(self, about) or hear(self, about))


def stand_still(task: Any, seconds: float) -> None:
    task._wire.send(Message(header={"sleep": seconds}), task._wire.rank, TAG)
    if isinstance(task, FollowingTask):
        task._to_row.send(Message(header={"sleep": seconds}), task._row.rank, TAG)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("replicas", "shards"), [(2, 2), (3, 2), (4, 3)])
def test_a_worker_that_stands_still_holds_up_its_own_replica_alone(
    replicas: int, shards: int, seed: int, can_stand_still: None
) -> None:
    """Also where rounds are not kept for it, so that it goes on from a copy; or three of them, of whatever length."""
    draw = random.Random(seed)
    stuck = {(draw.randrange(replicas), draw.randrange(shards), draw.randrange(3, 12)) for _ in range(3)}
    seconds, kept = 1.0, draw.choice([0, 8 * WIDTH * 3, 1 << 20])
    late = random.Random(seed + 1)

    def pause(replica: int, shard: int, step: int, rounds: Rounds) -> float:
        if (replica, shard, step) in stuck:
            stand_still(rounds._progress, seconds)
            return seconds
        return late.choice([0.01, 0.02])

    live = training(shards, 16, pause, wait_for="majority" if seed % 2 else 1, log_bytes=kept, max_staleness=4)
    found = VirtualWorld(replicas * shards, network=links(replicas * shards, draw), timeout=60.0).run(live)
    check(found, shards, 16 if all(one.ledger.lost == 0 for one in found if one.ledger) else None)
    quick = [one for rank, one in enumerate(found) if rank // shards not in {replica for replica, _, _ in stuck}]
    assert all(max(one.steps) < seconds / 2 for one in quick)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("replicas", "shards"), [(1, 2), (2, 2), (3, 3)])
def test_a_replica_joins_with_all_its_pieces(replicas: int, shards: int, seed: int) -> None:
    draw = random.Random(seed)
    late, size = random.Random(seed + 1), replicas * shards

    def pause(replica: int, shard: int, step: int, rounds: Rounds) -> float:
        return late.choice([0.01, 0.02])

    live = training(shards, 20, pause, joins=0.3 * draw.random(), tolerates_death=True, wait_for=1)
    network = links(size + shards, draw)
    found = VirtualWorld(size, joiners=shards, network=network, timeout=60.0).run(live)
    check(found, shards, 20)
    assert all(one.met_with[-1] == [replicas] for one in found)
