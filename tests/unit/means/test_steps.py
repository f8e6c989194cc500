"""The steps of every algorithm of all-reduce by themselves, and what they cost in the virtual world."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, cast

import pytest
import torch

from quorate.core.contracts import Wire
from quorate.core.errors import Mismatch, PeerFailed
from quorate.means import OF_VECTORS, reducers
from quorate.means.algorithms.by_messages import ByMessages
from quorate.wire.failure import allow_going_on
from quorate.wire.metered import Metered
from quorate.wire.virtual.network import Link, Network
from quorate.wire.virtual.world import VirtualWorld
from tests.contract.reducer_checks import noise, of_one_part
from tests.support.counted_world import CountedWorld
from tests.support.delayed import Delayed

NAMES = tuple(name for name in OF_VECTORS if name != "dense")
SIZES = (*range(1, 10), 16)
EXACT = {"ring": SIZES, "halving-doubling": SIZES}
"""Sizes at which the cost equals the formula; elsewhere it does for powers of two, and the formula is a bound."""


def algorithm(name: str) -> type[ByMessages]:
    return cast(type[ByMessages], reducers.get(name))


def is_exact(name: str, size: int) -> bool:
    return size in EXACT.get(name, ()) or size & (size - 1) == 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_sent_is_received_in_the_same_step_and_every_number_is_added_once(name: str, size: int) -> None:
    by_rank = [list(algorithm(name).steps(size, rank)) for rank in range(size)]
    pieces = algorithm(name).pieces(size)
    held = [[Counter([rank]) for _ in range(pieces)] for rank in range(size)]
    for steps in zip(*by_rank, strict=True):
        before = [[Counter(piece) for piece in own] for own in held]
        received = 0
        for rank, step in enumerate(steps):
            if step.receive is None:
                continue
            peer, received = step.receive.peer, received + 1
            sent = steps[peer].send
            assert sent is not None
            assert (sent.peer, sent.pieces, sent.adds) == (rank, step.receive.pieces, step.receive.adds)
            for piece in sent.pieces:
                if sent.adds:
                    held[rank][piece] += before[peer][piece]
                else:
                    assert before[peer][piece] == Counter(range(size)), "only what is complete is taken"
                    held[rank][piece] = before[peer][piece]
        assert received == sum(step.send is not None for step in steps)
    assert all(piece == Counter(range(size)) for own in held for piece in own)


def took(name: str, size: int, numel: int, network: Network) -> tuple[float, CountedWorld]:
    """Virtual seconds for one sum, of the last worker that has it."""

    def task(wire: Wire) -> float:
        reducer = reducers.get(name)(of_one_part(numel), wire)
        reducer.again(0, torch.ones(numel)).wait()
        return wire.clock.now()

    world = CountedWorld(size, network=network)
    return max(world.run(task)), world


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_it_costs_what_its_formula_says(name: str, size: int) -> None:
    numel = 16 * 5 * 7 * 9 * size
    cost, nbytes = algorithm(name).cost(size), 4 * numel
    messages, _ = took(name, size, numel, Network(latency=1.0, bandwidth=math.inf))
    moved, world = took(name, size, numel, Network(latency=0.0, bandwidth=nbytes))
    both, _ = took(name, size, numel, Network(latency=2.0, bandwidth=nbytes / 3.0))
    expected = (cost.messages, cost.moved, cost.seconds(nbytes, 2.0, nbytes / 3.0))
    if is_exact(name, size):
        assert (messages, moved, both) == pytest.approx(expected)
    else:
        assert 0.5 * expected[2] < both <= expected[2] + 1e-9
        assert messages <= cost.messages
        assert moved <= cost.moved + 1e-9
    sent = [world.traffic.out[rank] for rank in range(size)]
    assert max(sent) == pytest.approx(cost.sent * nbytes)
    assert sent == [algorithm(name).bytes_of(numel, torch.float32, size, rank) for rank in range(size)]
    steps = [step for rank in range(size) for step in algorithm(name).steps(size, rank)]
    assert world.traffic.messages == sum(step.send is not None for step in steps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_any_type_and_length_are_foretold(name: str, dtype: torch.dtype) -> None:
    def task(wire: Wire) -> tuple[int, int]:
        metered = Metered(wire)
        reducer = reducers.get(name)(of_one_part(29, dtype), metered)
        reducer.again(0, torch.ones(29, dtype=dtype)).wait()
        return metered.meter.bytes_out.total(), reducer.wire_bytes(wire.size)

    assert all(counted == foretold for counted, foretold in VirtualWorld(6).run(task))


@pytest.mark.parametrize("name", NAMES)
def test_it_travels_while_the_training_thread_computes(name: str) -> None:
    def task(wire: Wire) -> float:
        reducer = reducers.get(name)(of_one_part(1000), wire)
        work = reducer.again(0, torch.ones(1000))
        wire.clock.sleep(1.0)
        begin = wire.clock.now()
        assert work.done()
        work.wait()
        return wire.clock.now() - begin

    assert VirtualWorld(5).run(task) == [0.0] * 5


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", NAMES)
def test_late_workers_and_messages_hold_nobody_for_ever(name: str, seed: int) -> None:
    """Each worker is late by itself before each message, and each link has a latency of its own."""
    size = 3 + seed
    draw = torch.Generator().manual_seed(seed)
    delays = torch.rand(4000, generator=draw).tolist()
    links = {(a, b): Link(1e-3 * delays[16 * a + b]) for a in range(size) for b in range(size) if a != b}

    def task(wire: Wire) -> list[float]:
        late = Delayed(wire, lambda operation, number: 0.01 * delays[(97 * wire.rank + number) % 4000])
        reducer = reducers.get(name)(of_one_part(11), late)
        vectors = [noise(wire.rank + k, 11) for k in range(4)]
        works = []
        for x in vectors:
            wire.clock.sleep(delays[(wire.rank * 31 + len(works)) % 4000] * 0.02)
            works.append(reducer.again(0, x))
        return [float(work.wait().sum()) for work in reversed(works)]

    sums = VirtualWorld(size, seed=seed, network=Network(links=links)).run(task)
    assert sums == [sums[0]] * size
    expected = [float(sum(noise(rank + k, 11) for rank in range(size)).sum()) for k in (3, 2, 1, 0)]
    assert sums[0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_that_is_killed_in_the_middle_of_its_messages_ends_the_sum_everywhere(name: str) -> None:
    """A sum that would take some ten seconds; after 1.3 s one is gone, and the others know of it within a second."""
    size, dead = 6, 2

    def task(wire: Wire) -> tuple[tuple[int, ...], float]:
        reducer = reducers.get(name)(of_one_part(6000), wire)
        work = reducer.again(0, torch.ones(6000))
        if wire.rank == dead:
            wire.clock.sleep(1.3)
            wire.crash()
        error = failed(work)
        return error.ranks, wire.clock.now()

    outcomes = VirtualWorld(size, network=Network(latency=0.1, bandwidth=12_000.0)).outcomes(task)
    results = [outcome.result for outcome in outcomes if outcome.rank != dead]
    assert all(x is not None and x[0] == (dead,) and 1.3 < x[1] < 2.3 for x in results), outcomes


@pytest.mark.parametrize("name", NAMES)
def test_where_others_outlive_a_death_it_ends_the_sum_of_those_too_that_hear_nothing_of_the_dead(name: str) -> None:
    def task(wire: Wire) -> tuple[int, ...]:
        allow_going_on(wire.board, wire.size, name="t")
        wire.tolerate_deaths("gone")
        wire.barrier().wait()
        reducer = reducers.get(name)(of_one_part(8), wire)
        if wire.rank == 3:
            wire.crash()
        return cast(tuple[int, ...], failed(reducer.again(0, torch.ones(8))).ranks)

    outcomes = VirtualWorld(5, timeout=30.0).outcomes(task)
    assert [outcome.result for outcome in outcomes if outcome.rank != 3] == [(3,)] * 4


def failed(work: Any) -> Any:
    """Return the error of waiting for `work`, which is raised again at the next wait."""
    with pytest.raises(PeerFailed) as error:
        work.wait()
    with pytest.raises(PeerFailed):
        work.wait()
    assert work.done()
    return error.value


def test_both_of_a_pair_add_in_one_order_so_that_what_is_no_number_has_equal_bits_too() -> None:
    def task(wire: Wire) -> bytes:
        # Numbers that are none, with bits that tell from whom they are: an addition keeps those of its first number.
        x = torch.full((3,), 0x7FC00001 + wire.rank, dtype=torch.int32).view(torch.float32)
        reducers.get("recursive-doubling")(of_one_part(3), wire).again(0, x).wait()
        return bytes(x.view(torch.uint8).tolist())

    assert len(set(VirtualWorld(4).run(task))) == 1


def test_after_an_error_no_sum_is_begun() -> None:
    """Who has received what of the first one is not known. Of three, the last one's vector has another length."""

    def task(wire: Wire) -> float:
        reducer = reducers.get("ring")(of_one_part(8), wire)
        x = torch.ones(9 if wire.rank == 2 else 8)
        with pytest.raises(Mismatch):
            reducer.again(0, x).wait()
        with pytest.raises(Mismatch):
            reducer.again(0, x).wait()
        return wire.clock.now()

    seconds = [outcome.result for outcome in VirtualWorld(3, timeout=5.0).outcomes(task)]
    assert seconds[0] is not None, "the second sum waits for messages that nobody sends"
    assert seconds[0] < 0.01
