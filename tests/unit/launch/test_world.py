"""`World`: results of its calls, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, WireTimeout
from quorate.wire import current
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld


def refusals(size: int, call: Callable[[quorate.World], Any]) -> list[str]:
    def live(wire: Wire) -> str:
        current.enter(wire, thread_only=True)
        world = quorate.join()
        with pytest.raises(ConfigurationError) as raised:
            call(world)
        return str(raised.value)

    return VirtualWorld(size, timeout=5.0).run(live)


@pytest.mark.parametrize(
    ("argument_of", "words"),
    [
        (lambda rank: torch.zeros(2 + (rank == 1)), "torch.float32 of the shape (3,) on rank 1 and torch.float32 of"),
        (lambda rank: torch.zeros(2, 3 if rank else 0), "of the shape (2, 3) on rank 1 and torch.float32 of the shape"),
        (lambda rank: torch.zeros(6).view((2, 3) if rank == 2 else (3, 2)), "of the shape (2, 3) on rank 2 and"),
        (lambda rank: torch.zeros(2).to(torch.float64 if rank == 2 else torch.float32), "float64 of the shape (2,) on"),
        (lambda rank: torch.zeros(()) if rank == 2 else 1.0, "float32 of the shape () on rank 2 and torch.float64"),
    ],
)
def test_a_mean_of_different_things_is_refused_on_all(argument_of: Callable[[int], Any], words: str) -> None:
    said = refusals(3, lambda world: world.mean(argument_of(world.rank)))
    assert len(set(said)) == 1
    assert said[0].startswith("world.mean was given ")
    assert words in said[0]


def answers(size: int, call: Callable[[quorate.World], Any], **world: Any) -> list[Any]:
    """What `call` returns on each of `size` workers."""

    def live(wire: Wire) -> Any:
        current.enter(wire, thread_only=True)
        return call(quorate.join())

    return VirtualWorld(size, timeout=5.0, **world).run(live)


@pytest.mark.parametrize(
    ("argument_of", "total", "largest"),
    [
        (lambda rank: rank + 1, 6, 3),
        (lambda rank: [0, 1.5, 2][rank], 3.5, 2.0),
        (lambda rank: rank == 1, 1, 1),
        (lambda rank: torch.tensor([rank, -rank]), torch.tensor([3, -3]), torch.tensor([2, 0])),
        (lambda rank: torch.tensor([rank > 0]), torch.tensor([2]), torch.tensor([True])),
        (lambda rank: torch.full((2,), 256.5 + rank).half(), torch.full((2,), 772.5).half(), torch.full((2,), 258.5)),
        (lambda rank: torch.tensor(float("nan") if rank else 1.0), torch.tensor(torch.nan), torch.tensor(torch.nan)),
    ],
)
def test_sums_and_largest_values(argument_of: Callable[[int], Any], total: Any, largest: Any) -> None:
    def both(world: quorate.World) -> tuple[Any, Any]:
        return world.sum(argument_of(world.rank)), world.max(argument_of(world.rank))

    for sum_, max_ in answers(3, both):
        torch.testing.assert_close(sum_, total, equal_nan=True)
        torch.testing.assert_close(max_, largest, equal_nan=True, check_dtype=False)
        assert type(sum_) is type(total)


@pytest.mark.parametrize("call", ["sum", "max"])
def test_different_things_are_refused_on_all(call: str) -> None:
    said = refusals(3, lambda world: getattr(world, call)(torch.zeros(2 + (world.rank == 1))))
    assert len(set(said)) == 1
    assert said[0].startswith(f"world.{call} was given torch.float32 of the shape (3,) on rank 1")
    assert set(refusals(2, lambda world: getattr(world, call)("x"))) == {
        f"world.{call} takes a tensor or a real number, not a str"
    }


@pytest.mark.parametrize("x", [torch.tensor([[1, 2]]), torch.tensor(True), torch.ones(0), {"a": [1, None]}, "text", 3])
def test_all_workers_receive_the_value_of_the_source(x: Any) -> None:
    for received in answers(3, lambda world: world.broadcast(x if world.rank == 2 else None, source=2)):
        torch.testing.assert_close(received, x) if isinstance(x, torch.Tensor) else None
        assert type(received) is type(x)
        assert isinstance(x, torch.Tensor) or received == x


def test_broadcasts_from_different_sources_or_of_what_cannot_be_sent_are_refused() -> None:
    said = refusals(2, lambda world: world.broadcast(1, source=world.rank))
    assert said[0] == (
        "world.broadcast was given source=0 on rank 0 and source=1 on rank 1; every worker names the same source"
    )
    said = refusals(2, lambda world: world.broadcast(1, source=2))
    assert said[0] == "world.broadcast was given source=2; the ranks are 0 to 1"
    said = refusals(1, lambda world: world.broadcast(object()))
    assert said[0] == (
        "world.broadcast cannot send the value, which is a object; allowed are numbers, text, tensors, and lists, "
        "tuples and dicts of these"
    )


def test_objects_hold_tensors_and_tuples() -> None:
    def live(world: quorate.World) -> list[Any]:
        own = {"x": torch.full((2,), world.rank), "pair": (world.rank, None), 3: [True, 0.5]}
        return [world.gather(own), world.broadcast(own, source=1)]

    for gathered, received in answers(2, live):
        for rank, value in enumerate([*gathered, received]):
            rank = min(rank, 1)
            assert torch.equal(value.pop("x"), torch.full((2,), rank))
            assert value == {"pair": (rank, None), 3: [True, 0.5]}


def test_metrics_are_averaged_together() -> None:
    def live(world: quorate.World) -> dict[str, float]:
        metrics = {"loss": float(world.rank), "accuracy": torch.tensor(1.0 - world.rank)}
        return world.mean(metrics if world.rank else dict(reversed(metrics.items())), weight=1 + 2 * world.rank)

    assert answers(2, live) == [{"accuracy": 0.25, "loss": 0.75}, {"loss": 0.75, "accuracy": 0.25}]
    said = refusals(2, lambda world: world.mean({"loss" if world.rank else "los": 1.0}))
    assert set(said) == {
        "world.mean was given a dict with the keys loss on rank 1 and a dict with the keys los on rank 0; shape and "
        "dtype, or keys, must be the same on all workers"
    }
    assert refusals(1, lambda world: world.mean({"x": torch.ones(2)})) == [
        "world.mean takes a dict of numbers; give each tensor a call of its own"
    ]


@pytest.mark.parametrize("call", ["sum", "max", "broadcast"])
def test_a_wait_is_limited_and_names_the_worker_that_did_not_call(call: str) -> None:
    def wait_for_rank_1(world: quorate.World) -> str:
        if world.rank == 1:
            world.wire.clock.sleep(20.0)
            return ""
        with pytest.raises(WireTimeout) as raised:
            getattr(world, call)(1)
        return str(raised.value)

    assert answers(2, wait_for_rank_1)[0] == f"rank 0 waited 5 s for rank 1 in world.{call}()"


def test_local_ranks_count_the_workers_of_each_host() -> None:
    assert answers(3, lambda world: world.local_rank) == [0, 1, 2]
    network = Network(hosts=(0, 0, 1, 1, 1))
    assert answers(5, lambda world: world.local_rank, network=network) == [0, 1, 0, 1, 2]
