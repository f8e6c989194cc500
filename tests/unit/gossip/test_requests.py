"""Named requests among virtual workers: what is asked and answered, what is refused, who dies or ends meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError, PeerFailed, RequestFailed, WireTimeout
from quorate.launch.worker.world import World
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined


def run(size: int, task: Callable[[World], Any], seed: int = 0, timeout: float = 20.0) -> list[Any]:
    """What each worker's task returns, or raises."""

    outcomes = VirtualWorld(size, seed=seed, timeout=timeout).outcomes(joined(task))
    return [one.result if one.error is None else one.error for one in outcomes]


def served(function: Callable[..., Any], ask: Callable[[World], Any], size: int = 2, **settings: Any) -> list[Any]:
    """Rank 0 serves `function` as "it", and the others `ask`; their results, by rank from 1 on."""

    def task(world: World) -> Any:
        if world.rank == 0:
            world.serve("it", function)
        found = ask(world) if world.rank or size == 1 else None
        world.serve_until_done()
        return found

    found = run(size, task, **settings)
    for one in sorted(
        (one for one in found if isinstance(one, BaseException)), key=lambda one: type(one) is PeerFailed
    ):
        raise one
    return found[0 if size == 1 else 1 :]


def echo(*args: Any, **kwargs: Any) -> Any:
    return [list(args), kwargs]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_all_get_their_answers(size: int) -> None:
    count = [0]

    def add(amount: int) -> int:
        count[0] += amount
        return count[0]

    def ask(world: World) -> list[int]:
        return [world.ask(0, "it", 1).wait() for _ in range(5)]

    found = served(add, ask, size)
    assert sorted(number for one in found for number in one) == list(range(1, 5 * max(1, size - 1) + 1))
    assert all(one == sorted(one) for one in found)


def test_values_come_as_they_were() -> None:
    value = {"a": [1, 2.5, None, True, "ä"], "b": (1, [2]), 3: {"x": float("inf")}}
    (found,) = served(echo, lambda world: world.ask(0, "it", value, key=(1,)).wait())
    assert found == [[value], {"key": (1,)}] and isinstance(found[0][0]["b"], tuple)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (400, 300)])
def test_tensors_of_any_kind_travel(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    (found,) = served(lambda one: {"twice": [one, one]}, lambda world: world.ask(0, "it", x).wait())
    assert all(torch.equal(one, x) and one.dtype == dtype for one in found["twice"])


def test_what_is_asked_with_may_change_at_once() -> None:
    def ask(world: World) -> tuple[Tensor, Tensor]:
        small, large = torch.ones(3), torch.ones(100_000)
        answer = world.ask(0, "it", small, large)
        small.zero_(), large.zero_()
        (found, _) = answer.wait()
        return found[0], found[1]

    ((small, large),) = served(echo, ask)
    assert small.sum() == 3 and large.sum() == 100_000


def test_several_may_be_under_way_and_wait_until_they_are_served() -> None:
    def task(world: World) -> Any:
        found = None
        if world.rank:
            answers = [world.ask(0, "late", number) for number in range(4)]
            found = [one.wait() for one in reversed(answers)]
            assert all(one.done() for one in answers) and answers[0].wait() == 0
        else:
            world.serve("early", echo)
            world.wire.clock.sleep(1.0)
            world.serve("late", lambda number: calls.append(number) or 10 * number)  # type: ignore[func-returns-value]
            world.serve("other", echo)
        world.serve_until_done()
        return found

    calls = list[int]()
    assert run(2, task)[1] == [30, 20, 10, 0]
    assert calls == [0, 1, 2, 3], "each once, in the order in which they came"


def typed(count: int, names: list[str], x: Tensor | None = None, *, rate: float = 1.0) -> dict[str, int]:
    if count < 0:
        raise ValueError("too few")
    return {"count": "wrong" if count == 7 else count}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("args", "kwargs", "kind", "sentence"),
    [
        ((), {}, ConfigurationError, "\"it\" of rank 0: missing a required argument: 'count'; it is \\(count: int"),
        ((1, [], None, 3), {}, ConfigurationError, "too many positional arguments"),
        (("1", []), {}, ConfigurationError, "count is '1'; it should be a whole number"),
        ((1, [2]), {}, ConfigurationError, "names is \\[2\\]; it should be text"),
        ((1, [], 2.0), {}, ConfigurationError, "x is 2.0; it should be"),
        ((1, []), {"rate": torch.ones(2)}, ConfigurationError, "rate is a Tensor"),
        ((-1, []), {}, RequestFailed, '"it" of rank 0 raised ValueError: too few'),
        ((7, []), {}, ConfigurationError, "the answer is {'count': 'wrong'}"),
        ((object(),), {}, ConfigurationError, '"it" cannot be asked with args.0, which is a object; allowed are'),
        (([0.1] * 200_000,), {}, ConfigurationError, "bytes of numbers and text; give many numbers as a tensor"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_server_goes_on(
    args: tuple[Any, ...], kwargs: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    def ask(world: World) -> Any:
        with pytest.raises(kind, match=sentence):
            world.ask(0, "it", *args, **kwargs).wait()
        return world.ask(0, "it", 1, ["a"], torch.ones(2), rate=2).wait()

    assert served(typed, ask) == [{"count": 1}]


def test_an_answer_that_cannot_be_sent_fails_the_request() -> None:
    def ask(world: World) -> None:
        with pytest.raises(RequestFailed, match="an answer cannot have .*, which is a object; allowed are"):
            world.ask(0, "it").wait()

    served(lambda: object(), ask)


def test_names_are_served_once_and_ranks_are_there() -> None:
    def task(world: World) -> None:
        world.serve("it", echo)
        with pytest.raises(ConfigurationError, match='"it" is already served'):
            world.serve("it", echo)
        with pytest.raises(ConfigurationError, match="is not a function with types"):
            world.serve("number", 3)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="world.ask was given rank 2; the ranks are 0 to 1"):
            world.ask(2, "it")
        world.serve_until_done()

    assert run(2, task) == [None, None]


def test_a_function_that_is_served_does_not_ask() -> None:
    def task(world: World) -> None:
        world.serve("it", lambda: world.ask(0, "it").wait())
        if world.rank:
            with pytest.raises(RequestFailed, match="a served function cannot ask other workers"):
                world.ask(0, "it").wait()
        world.serve_until_done()

    assert run(2, task) == [None, None]


def test_a_time_limit_names_whom_was_asked_for_what() -> None:
    def task(world: World) -> None:
        if world.rank:
            with pytest.raises(WireTimeout, match='rank 1 waited 0.5 s for rank 0 to answer "nothing"') as found:
                world.ask(0, "nothing", timeout=0.5).wait()
            assert list(found.value.ranks) == [0]
        world.serve_until_done()

    assert run(2, task) == [None, None]


def test_who_ends_without_an_answer_is_named() -> None:
    def task(world: World) -> None:
        if world.rank:
            with pytest.raises(PeerFailed, match='rank 0 ended before it answered "nothing"'):
                world.ask(0, "nothing").wait()
        else:
            world.serve("it", echo)
            world.wire.clock.sleep(0.5)

    assert run(2, task) == [None, None]


@pytest.mark.seeds(8, 60)
def test_random_requests(seed: int) -> None:
    """All ask all others at any time, and every request counts once."""
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5])

    def task(world: World) -> tuple[int, list[int], list[tuple[int, int]]]:
        own, seen = random.Random(100 * seed + world.rank), list[tuple[int, int]]()
        asked = [0] * size

        def note(source: int, number: int) -> int:
            seen.append((source, number))
            return len(seen)

        world.serve("note", note)
        under_way = []
        for _ in range(20):
            to = own.randrange(size)
            under_way.append(world.ask(to, "note", world.rank, asked[to]))
            asked[to] += 1
            if own.random() < 0.5:
                under_way.pop(own.randrange(len(under_way))).wait()
            world.wire.clock.sleep(own.choice([0.0, 1e-4, 0.01]))
        for answer in under_way:
            answer.wait()
        world.serve_until_done()
        return world.rank, asked, seen

    found = run(size, task, seed)
    for rank, _, seen in found:
        assert len(seen) == len(set(seen)) == sum(asked[rank] for _, asked, _ in found)
        for source in range(size):
            numbers = [number for other, number in seen if other == source]
            assert numbers == sorted(numbers)
