"""Works of several exchanges: further ones that begin when their turn has come, with and without waiting."""

from __future__ import annotations

import pytest
import torch

from quorate.core.contracts import Wire
from quorate.core.errors import WireTimeout
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from quorate.wire.work import Followed, Stages, Together, advanced


def twice(wire: Wire, seen: list[str]) -> Together[float]:
    """Sum 1 of each worker, and then this sum of each."""

    def second(results: list[torch.Tensor]) -> Stages[float]:
        seen.append("first")
        total = yield wire.all_reduce(results[0])
        seen.append("second")
        return float(total)

    return Together([wire.all_reduce(torch.ones(1))], second, wire.clock)


@pytest.mark.parametrize("follows", [False, True])
def test_a_wait_of_little_time_goes_on_where_the_one_before_has_ended(follows: bool) -> None:
    def task(wire: Wire) -> tuple[float, int, list[str]]:
        seen, timeouts = list[str](), 0
        work = Followed(twice(wire, seen)) if follows else twice(wire, seen)
        while True:
            try:
                return work.wait(0.3), timeouts, seen
            except WireTimeout:
                timeouts += 1

    for value, timeouts, seen in VirtualWorld(2, network=Network(latency=0.5)).run(task):
        assert value == 4.0 and timeouts >= 2 and seen == ["first", "second"]


def test_two_works_go_on_without_waiting_in_whatever_order() -> None:
    def task(wire: Wire) -> list[float]:
        works = [twice(wire.channel(name), []) for name in ("a", "b")]
        outer = [Together([work], lambda results: results[0], wire.clock) for work in works]
        assert not advanced(outer[0])
        order = outer if wire.rank else outer[::-1]
        for work in order:
            while not advanced(work):
                wire.clock.sleep(0.01)
                for other in order:
                    advanced(other)
        return [work.wait(0.0) for work in outer]

    assert VirtualWorld(2, network=Network(latency=0.05)).run(task) == [[4.0, 4.0]] * 2


def test_an_error_of_a_further_exchange_is_raised_by_the_wait() -> None:
    def task(wire: Wire) -> None:
        def fails(results: list[torch.Tensor]) -> Stages[None]:
            yield wire.all_reduce(results[0])
            raise ArithmeticError

        with pytest.raises(ArithmeticError):
            Together([wire.all_reduce(torch.ones(1))], fails, wire.clock).wait()

    VirtualWorld(2).run(task)
