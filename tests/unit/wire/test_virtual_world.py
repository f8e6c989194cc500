"""The virtual world: one seed, one run; causes of failures; deadlocks; what only it promises."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch

from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError, Mismatch, PeerFailed, WireTimeout
from quorate.wire.failure import allow_going_on
from quorate.wire.virtual import Constant, Link, Network, Sampled, VirtualWorld
from quorate.wire.virtual.scheduler import Scheduler


def gossip(wire: Wire) -> list[int]:
    """An asynchronous task: who comes first depends on the schedule."""
    order = []
    for turn in range(5):
        wire.clock.compute(1.0)
        for peer in range(wire.size):
            wire.send(Message((torch.ones(turn),)), peer, "gossip")
        sender, _ = wire.receive(None, "gossip").wait()
        wire.board.swap(f"first/{turn}", None, str(wire.rank).encode())
        order += [sender, int(wire.board.get(f"first/{turn}") or b"-1")]
        wire.all_reduce(torch.ones(3)).wait()
    return order


def traced(seed: int) -> tuple[list[str], list[list[int]]]:
    world = VirtualWorld(8, seed=seed, is_traced=True)
    results = world.run(gossip)
    return world.trace, results


def test_the_same_seed_gives_the_same_run_byte_for_byte() -> None:
    assert traced(3) == traced(3)
    world = VirtualWorld(8, seed=3, is_traced=True)
    world.run(gossip)
    once = list(world.trace)
    world.run(gossip)
    assert world.trace == once == traced(3)[0], "a world can run again"
    assert len(once) > 8 * 5 * 3


def test_another_seed_gives_another_order() -> None:
    assert len({tuple(traced(seed)[0]) for seed in range(5)}) == 5
    assert len({str(traced(seed)[1]) for seed in range(5)}) == 5


def test_exactly_one_worker_runs_at_a_time() -> None:
    running: list[int] = []

    def task(wire: Wire) -> None:
        for _ in range(20):
            running.append(wire.rank)
            torch.ones(2000).sum()
            assert running == [wire.rank]
            running.clear()
            wire.clock.sleep(0.001)

    VirtualWorld(16).run(task)


def test_many_workers_all_reduce() -> None:
    def task(wire: Wire) -> float:
        x = torch.empty(1000)
        for _ in range(5):
            wire.clock.compute(1.0)
            x.fill_(wire.rank)
            wire.all_reduce(x).wait()
        return float(x[-1])

    assert VirtualWorld(256).run(task) == [256 * 255 / 2] * 256


@pytest.mark.slow
def test_thousands_of_workers_wait_together(times: int) -> None:
    def task(wire: Wire) -> float:
        for _ in range(3):
            wire.clock.compute(1.0)
            wire.barrier().wait()
        return wire.clock.now()

    try:
        ends = VirtualWorld(1_000 if times == 1 else 10_000, compute=Sampled("uniform", 0.005, 0.02)).run(task)
    except ConfigurationError as error:
        pytest.skip(str(error))
    assert len(set(ends)) == 1
    assert 3 * 0.0199 < ends[0] < 3 * 0.0201 + 3 * 14 * 50e-6


def test_all_reduce_adds_in_order_of_rank() -> None:
    values = torch.tensor([1e8, 1.0, -1e8, 1.0, 3.0])

    def task(wire: Wire) -> float:
        return wire.all_reduce(values[wire.rank].clone()).wait().item()

    total = values[0].clone()
    for value in values[1:]:
        total += value
    for seed in range(5):
        assert VirtualWorld(5, seed=seed).run(task) == [total.item()] * 5


def test_the_first_failure_is_raised_not_what_followed() -> None:
    def task(wire: Wire) -> None:
        wire.clock.sleep(0.01 * (1 + wire.rank))
        if wire.rank == 2:
            raise LookupError("the cause")
        wire.barrier().wait()

    world = VirtualWorld(4)
    with pytest.raises(LookupError, match="the cause") as caught:
        world.run(task)
    assert "virtual rank 2 of 4" in caught.value.__notes__[0]
    outcomes = world.outcomes(task)
    assert [type(o.error) for o in outcomes] == [PeerFailed, PeerFailed, LookupError, PeerFailed]
    assert [o.seconds for o in outcomes] == pytest.approx([0.08, 0.08, 0.03, 0.08])
    assert str(outcomes[0].error) == "rank 2 (host virtual) raised LookupError: the cause"


def test_a_crash_says_who() -> None:
    def task(wire: Wire) -> None:
        if wire.rank == 1:
            wire.spawn(lambda own: own.crash(), "bomb")
        wire.barrier().wait()

    with pytest.raises(PeerFailed, match="rank 1 crashed") as caught:
        VirtualWorld(3).run(task)
    assert caught.value.ranks == (1,)


def test_a_sum_that_the_dead_had_come_to_ends_for_those_that_wait() -> None:
    """Rank 0 comes and dies; rank 2, which knows it by then, does not come: rank 1 is not to wait for it."""

    def task(wire: Wire) -> tuple[int, ...]:
        wire.tolerate_deaths("gone")
        allow_going_on(wire.board, wire.size, name="x")
        if wire.rank == 2:
            wire.clock.sleep(30.0)
            return tuple(wire.dead)
        work = wire.all_reduce(torch.ones(3))
        if wire.rank == 0:
            wire.crash()
        with pytest.raises(PeerFailed) as caught:
            work.wait()
        return tuple(caught.value.ranks)

    assert [outcome.result for outcome in VirtualWorld(3, timeout=20.0).outcomes(task)] == [None, (0,), (0,)]


def test_a_crash_unwinds_through_what_a_worker_catches() -> None:
    left: list[str] = []

    def task(wire: Wire) -> None:
        try:
            if wire.rank == 0:
                wire.crash()
            wire.barrier().wait()
        except Exception:
            left.append(f"caught {wire.rank}")
            raise
        finally:
            left.append(f"left {wire.rank}")

    assert VirtualWorld(2).outcomes(task)[0].is_crashed
    assert left == ["left 0", "caught 1", "left 1"]


def test_spawned_tasks_end_with_their_worker() -> None:
    ended: list[int] = []

    def listen(own: Wire) -> None:
        try:
            own.receive(None, "never").wait()
        finally:
            ended.append(own.rank)

    def task(wire: Wire) -> float:
        wire.spawn(listen, "listen")
        wire.clock.sleep(0.1 * wire.rank)
        return wire.clock.now()

    before = threading.active_count()
    assert VirtualWorld(3).run(task) == pytest.approx([0.0, 0.1, 0.2])
    assert ended == [0, 1, 2] or sorted(ended) == [1, 2], "rank 0's may never have begun"
    assert threading.active_count() <= before + 3


def test_a_deadlock_ends_at_the_timeout_of_virtual_time() -> None:
    def task(wire: Wire) -> None:
        wire.clock.sleep(0.01 * wire.rank)
        wire.receive((wire.rank + 1) % wire.size, "never").wait()

    for timeout in (600.0, math.inf):
        outcomes = VirtualWorld(3, timeout=timeout).outcomes(task)
        for rank, outcome in enumerate(outcomes):
            assert isinstance(outcome.error, WireTimeout)
            assert outcome.error.ranks == ((rank + 1) % 3,)
            assert f"rank {rank} waited {timeout:g} s for rank {(rank + 1) % 3} in receive" in str(outcome.error)


def test_a_short_wait_times_out_alone() -> None:
    def task(wire: Wire) -> str:
        if wire.rank == 1:
            with pytest.raises(WireTimeout, match="waited 2 s for rank 0"):
                wire.receive(0, "never").wait(timeout=2.0)
            wire.send(Message((), {"at": wire.clock.now()}), 0, "late")
            return ""
        return str(wire.receive(1, "late").wait()[1].header["at"])

    assert VirtualWorld(2).run(task) == ["2.0", ""]


def test_a_deadlock_ends_no_wait_that_was_given_longer() -> None:
    def task(wire: Wire) -> float:
        if wire.rank == 0:
            with pytest.raises(WireTimeout, match="waited 5 s"):
                wire.receive(1, "never").wait()
            wire.send(Message(), 1, "late")
        else:
            wire.receive(0, "late").wait(timeout=50.0)
        return wire.clock.now()

    assert VirtualWorld(2, timeout=5.0).run(task) == pytest.approx([5.0, 5.0 + 50e-6])


def test_a_mismatch_says_who_called_what() -> None:
    def task(wire: Wire) -> None:
        wire.all_reduce(torch.zeros(3 if wire.rank == 1 else 4)).wait()

    with pytest.raises(Mismatch, match=r"ranks 0 and 2 called all_reduce of float32 \(4,\), rank 1 called all_reduce"):
        VirtualWorld(3).run(task)


def test_a_wire_belongs_to_its_thread() -> None:
    def task(wire: Wire) -> None:
        work = wire.spawn(lambda own: wire.barrier().wait(), "thief")
        wire.barrier().wait()
        work.wait()

    with pytest.raises(AssertionError, match="take a channel"):
        VirtualWorld(1).run(task)


def test_a_channel_asked_for_again_is_the_same() -> None:
    def task(wire: Wire) -> bool:
        channel = wire.channel("one")
        return channel is wire.channel("one") and channel is not wire and channel.channel("one") is not channel

    assert VirtualWorld(2).run(task) == [True, True]


def test_pauses_let_others_run_and_polling_lets_time_pass() -> None:
    def task(wire: Wire) -> float:
        work = wire.barrier()
        if wire.rank == 1:
            wire.clock.sleep(0.0)
        while not work.done():
            wire.clock.pause()
        return wire.clock.now()

    for seconds in VirtualWorld(2).run(task):
        assert 50e-6 <= seconds < 100e-6


def test_compute_times_are_drawn_once_a_step() -> None:
    seen: list[tuple[int, int]] = []

    def model(rank: int, step: int) -> float:
        seen.append((rank, step))
        return 1.0 + step

    def task(wire: Wire) -> list[float]:
        times = []
        for share in (0.25, 0.75, 1 / 3, 1 / 3, 1 / 3, 1.0):
            wire.clock.compute(share)
            times.append(wire.clock.now())
        return times

    assert VirtualWorld(1, compute=model).run(task)[0] == pytest.approx([0.25, 1.0, 1 + 2 / 3, 2 + 1 / 3, 3.0, 6.0])
    assert seen == [(0, 0), (0, 1), (0, 2)]


def test_a_link_is_busy_while_it_transmits() -> None:
    network = Network(latency=0.5, bandwidth=100.0, links={(0, 2): Link(0.0, 200.0)})

    def task(wire: Wire) -> list[float]:
        if wire.rank == 0:
            works = [wire.send(Message((torch.zeros(100, dtype=torch.uint8),)), to, "t") for to in (1, 1, 2)]
            assert not works[0].done()
            works[0].wait()
            assert wire.clock.now() == 1.0
            return []
        times = []
        for _ in range(2 if wire.rank == 1 else 1):
            wire.receive(0, "t").wait()
            times.append(wire.clock.now())
        return times

    assert VirtualWorld(3, network=network).run(task) == [[], [1.5, 2.5], [0.5]]


def test_collectives_take_the_time_the_network_says() -> None:
    def task(wire: Wire) -> list[float]:
        wire.clock.sleep(float(wire.rank))
        work = wire.all_reduce(torch.zeros(250))
        begin = wire.clock.now()
        work.wait()
        return [begin, wire.clock.now()]

    network = Network(latency=0.25, bandwidth=1000.0)
    seconds = 2 * (3 * 0.25 + 1000 * 3 / 4 / 1000.0)
    assert VirtualWorld(4, network=network).run(task) == [[float(r), 3.0 + seconds] for r in range(4)]


def test_wrong_worlds_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"size": 0}, {"size": -1}, {"size": 2, "timeout": 0.0}]
    for settings in wrong:
        with pytest.raises(ConfigurationError):
            VirtualWorld(**settings)


def test_torch_threads_and_stack_size_are_put_back() -> None:
    before = torch.get_num_threads(), threading.stack_size()
    assert VirtualWorld(2, compute=Constant(0.0)).run(lambda wire: torch.get_num_threads()) == [1, 1]
    assert (torch.get_num_threads(), threading.stack_size()) == before


def test_an_interruption_ends_every_wait_of_everyone() -> None:
    world = VirtualWorld(4)

    def task(wire: Wire) -> None:
        wire.spawn(lambda own: own.barrier().wait(), "beside")
        if wire.rank == 2:
            wire.clock.sleep(0.1)
            world.stage.scheduler.interrupt()
        for _ in range(2):
            wire.receive(wire.rank, "never").wait()

    assert [type(outcome.error) for outcome in world.outcomes(task)] == [KeyboardInterrupt] * 4


def test_an_interrupt_while_workers_begin_ends_their_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    begin = Scheduler.begin

    def begun(self: Scheduler) -> None:
        begin(self)
        raise KeyboardInterrupt

    def task(wire: Wire) -> None:
        try:
            for _ in range(100_000):
                wire.barrier().wait()
            seen.append("through")
        except KeyboardInterrupt:
            seen.append("told")
            raise

    monkeypatch.setattr(Scheduler, "begin", begun)
    with pytest.raises(KeyboardInterrupt):
        VirtualWorld(2).run(task)
    assert set(seen) == {"told"}, "one that has not begun hears of nothing"


def test_an_interrupt_just_before_the_wait_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python runs a signal's handler between two calls: one that came too late for the last is seen after the next."""
    begin, seen = Scheduler.begin, []

    class Finished(threading.Event):
        waits = 0

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None, "nothing would wake it"
            self.waits += 1
            if self.waits == 2:
                raise KeyboardInterrupt
            return super().wait(timeout)

    def begun(self: Scheduler) -> None:
        self.finished = Finished()
        begin(self)

    def task(wire: Wire) -> None:
        try:
            while True:
                wire.barrier().wait()
        except KeyboardInterrupt:
            seen.append("told")
            raise

    monkeypatch.setattr(Scheduler, "begin", begun)
    with pytest.raises(KeyboardInterrupt):
        VirtualWorld(2).run(task)
    assert seen == ["told", "told"]
