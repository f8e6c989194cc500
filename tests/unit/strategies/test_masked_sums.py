"""Masked sums: what comes out, what does not, and what is left when workers die in the middle."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat
from quorate.launch.worker.world import World
from quorate.strategies.parts import masked_sums
from quorate.strategies.parts.masked_sums import (
    Masked,
    MaskingKeys,
    gathered,
    joined_secret,
    mask,
    masked_sum,
    shared_secret,
    split_secret,
)
from quorate.wire.virtual.world import VirtualWorld
from tests.support.federated_trainings import net, trained
from tests.support.joined import joined
from tests.support.scene import Scene

CHOICE: dict[str, Any] = {"sampled": 0.6, "local_epochs": 2}


def test_any_enough_shares_give_the_secret_and_fewer_do_not() -> None:
    secret, ranks = bytes(range(100, 132)), [0, 2, 3, 7, 8]
    shares = split_secret(secret, ranks, 3)
    draw = random.Random(0)
    for _ in range(10):
        chosen = draw.sample(ranks, 3)
        assert joined_secret({rank: shares[rank] for rank in chosen}) == secret
        assert joined_secret({rank: shares[rank] for rank in chosen[:2]}) != secret
    assert split_secret(secret, ranks, 3) != shares


def test_two_workers_have_one_secret_and_others_none() -> None:
    one, other, third = MaskingKeys(), MaskingKeys(), MaskingKeys()
    assert one.secret_with(other.public) == other.secret_with(one.public)
    assert one.secret_with(other.public) not in (third.secret_with(one.public), third.secret_with(other.public))
    found = joined_secret(split_secret(one._masking.private_bytes_raw(), [0, 1], 2))
    assert shared_secret(found, other.public) == one.secret_with(other.public)


def test_shares_are_sealed_for_one_worker_each() -> None:
    keys = {rank: MaskingKeys() for rank in range(3)}
    public = {rank: one.public for rank, one in keys.items()}
    sealed = {rank: one.sealed_shares(rank, public, 2) for rank, one in keys.items()}
    opened = {rank: one.opened_shares(rank, public, sealed) for rank, one in keys.items()}
    assert joined_secret({rank: opened[rank][0][1] for rank in (1, 2)}) == keys[0].own_seed
    with pytest.raises(ConfigurationError, match="what rank 0 has sealed for a masked sum cannot be read"):
        keys[1].opened_shares(2, public, sealed)


def test_masks_look_like_chance() -> None:
    words = mask(bytes(32), 40_000).astype(float) / 2**32
    assert words.mean() == pytest.approx(0.5, abs=0.01)
    assert np.histogram(words, 16)[0] == pytest.approx(2500, rel=0.1)


def run(size: int, task: Any, *, dies: int | None = None) -> list[Any]:
    """What `task(world, worker)` returns by rank; None of one that died."""

    def live(world: World) -> Any:
        return task(world, Scene("fed-avg", model=net, secure=True).trainer(world).worker)

    outcomes = VirtualWorld(size, seed=2, timeout=60.0).outcomes(joined(live))
    for rank, one in enumerate(outcomes):
        if one.error is not None and rank != dies:
            raise one.error
    return [one.result for one in outcomes]


def vector(worker: Any, scale: float) -> Flat:
    found: Flat = worker.parameters
    return found.map(lambda part: torch.linspace(-scale, scale, part.numel()))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_sum_is_exact_to_its_binary_digits(size: int) -> None:
    def task(world: World, worker: Any) -> Any:
        mine = None if world.rank == 1 else (vector(worker, 1.0 + world.rank), 10.0 + world.rank)
        found = masked_sum(worker, mine, (7, 3), dropouts=1, bits=16)
        assert isinstance(found, Masked)
        expected = sum(1.0 + rank for rank in range(size) if rank != 1)
        for x, y in zip(found.total.bare().parts, vector(worker, expected).bare().parts, strict=True):
            assert float((x - y[: len(x)]).abs().max()) <= size * 2.0**-17 + 1e-6
        return found.weight, found.numbers

    assert run(size, task) == [(sum(10.0 + rank for rank in range(size) if rank != 1), (7.0, 3.0))] * size


def test_what_a_worker_hands_in_says_nothing_by_itself() -> None:
    def task(world: World, worker: Any) -> Any:
        seen: list[np.ndarray] = []  # type: ignore[type-arg]
        plain = masked_sums._sum_of_words

        def spied(*given: Any) -> Any:
            seen.append(given[1].copy())
            return plain(*given)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(masked_sums, "_sum_of_words", spied)
            masked_sum(worker, (vector(worker, 0.0), 0.0), (1, 1), dropouts=1, bits=16)
        return seen[0]

    for words in run(2, task):
        assert len(np.unique(words)) == len(words), "zeros look like anything"
        assert words.astype(float).mean() / 2**32 == pytest.approx(0.5, abs=0.15)


def test_nobody_has_anything() -> None:
    assert run(3, lambda world, worker: masked_sum(worker, None, (0, 0), dropouts=1, bits=16)) == [None] * 3


def test_rows_come_whole() -> None:
    def task(world: World, worker: Any) -> Any:
        return gathered(worker, None if world.rank == 2 else bytes([0, 255, world.rank]), 3)

    assert run(5, task) == [{rank: bytes([0, 255, rank]) for rank in (0, 1, 3, 4)}] * 5


def test_numbers_that_are_too_large_are_refused() -> None:
    def task(world: World, worker: Any) -> Any:
        return masked_sum(worker, (vector(worker, 1e5), 1.0), (1, 1), dropouts=1, bits=16)

    with pytest.raises(ConfigurationError, match="too large for 32 bits with secure_bits=16"):
        run(2, task)


@pytest.mark.parametrize("strategy", ["fed-avg", "fed-opt", "fed-prox"])
def test_a_training_with_masked_sums_is_one_without_to_their_precision(strategy: str) -> None:
    server = {"tau": 0.1} if strategy == "fed-opt" else {}
    found = trained(3, strategy, secure=True, secure_bits=20, **server, **CHOICE)
    torch.testing.assert_close(found, trained(3, strategy, **server, **CHOICE), rtol=1e-4, atol=1e-4)
    assert not torch.equal(found, net().state_dict()["0.weight"])


@pytest.mark.parametrize("call", ["public", "shares", "sum", "unmask"])
@pytest.mark.parametrize("victim", [0, 2])
def test_it_survives_a_dropout_at_any_of_its_exchanges(call: str, victim: int) -> None:
    """Of four workers, one of which may drop out: the sum is of those that had handed in."""

    def task(world: World, worker: Any) -> Any:
        of, calls = worker.means.of, [0]

        def until(x: Flat, *, weight: float = 1.0) -> Any:
            calls[0] += 1
            if world.rank == victim and calls[0] == ("there", "public", "shares", "sum", "unmask").index(call) + 1:
                world.wire.crash()  # type: ignore[attr-defined]
            return of(x, weight=weight)

        worker.means.of = until
        found = masked_sum(worker, (vector(worker, 1.0 + world.rank), 1.0), (1, 1), dropouts=1, bits=16)
        assert isinstance(found, Masked)
        inside = [rank for rank in range(4) if rank != victim or call == "unmask"]
        expected = vector(worker, sum(1.0 + rank for rank in inside))
        for x, y in zip(found.total.bare().parts, expected.bare().parts, strict=True):
            assert float((x - y[: len(x)]).abs().max()) < 1e-3
        return found.weight

    found = run(4, task, dies=victim)
    assert [weight for rank, weight in enumerate(found) if rank != victim] == [4.0 if call == "unmask" else 3.0] * 3


def test_with_more_dropouts_than_stated_the_sum_is_left_out() -> None:
    def task(world: World, worker: Any) -> Any:
        of, calls = worker.means.of, [0]

        def until(x: Flat, *, weight: float = 1.0) -> Any:
            calls[0] += 1
            if world.rank == 1 and calls[0] == 4:
                world.wire.crash()  # type: ignore[attr-defined]
            return of(x, weight=weight)

        worker.means.of = until
        return masked_sum(worker, (vector(worker, 1.0), 1.0), (1, 1), dropouts=0, bits=16)

    found = run(3, task, dies=1)
    assert found[0] == found[2]
    assert "a masked sum of 3 workers is left out: 2 are left, and it takes 3" in found[0]


def test_alone_a_worker_hides_nothing() -> None:
    with pytest.raises(ConfigurationError, match="secure sums are of 2 to 1024 workers, and there are 1"):
        trained(1, "fed-avg", secure=True)
