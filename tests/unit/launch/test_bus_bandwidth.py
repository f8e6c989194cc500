"""The bus bandwidth of a world: the formulas by the clock of the virtual network, and real processes."""

from __future__ import annotations

import functools

import pytest
import torch

import quorate.launch.worker.bus_bandwidth as module
from quorate.core.contracts import Wire
from quorate.launch.worker.bus_bandwidth import Rate, bus_bandwidth
from quorate.wire.virtual import VirtualWorld
from quorate.wire.virtual.network import Network
from tests.support.processes import run_real

CPU = torch.device("cpu")


def measured(wire: Wire, sizes: tuple[int, ...] | None = None) -> list[Rate]:
    return bus_bandwidth(wire, CPU, sizes)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_bus_bandwidth_of_a_ring_is_that_of_its_links(size: int) -> None:
    world = VirtualWorld(size, network=Network(latency=0.0, bandwidth=1e9))
    every = world.run(functools.partial(measured, sizes=(1 << 12, 1 << 20)))
    for rows in every:
        assert [(row.size, row.elements, row.dtype, row.error) for row in rows] == [
            (1 << 12, 1 << 10, "float32", 0.0), (1 << 20, 1 << 18, "float32", 0.0),
        ]  # fmt: skip
        for row in rows:
            assert row.bus_bandwidth == pytest.approx(1e9)
            assert row.algorithm_bandwidth == pytest.approx(1e9 * size / (2 * (size - 1)))
            assert row.seconds == pytest.approx(row.size / row.algorithm_bandwidth)
    assert all(rows == every[0] for rows in every), "all workers say the same"


def test_latency_lowers_the_rate_of_small_sizes() -> None:
    world = VirtualWorld(4, network=Network(latency=1e-3, bandwidth=1e9))
    small, large = world.run(functools.partial(measured, sizes=(1 << 12, 1 << 22)))[0]
    assert small.bus_bandwidth < 0.01 * large.bus_bandwidth < 1e9


def test_sizes_that_would_take_too_long_are_left_out() -> None:
    world = VirtualWorld(2, network=Network(latency=0.0, bandwidth=1e4))
    assert [row.size for row in world.run(measured)[0]] == [1 << 14]


def test_a_wrong_sum_has_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def task(wire: Wire) -> list[Rate]:
        real = wire.all_reduce

        def wrong(x: torch.Tensor) -> object:
            if wire.rank == 1:
                x[3] += 0.5
            return real(x)

        wire.all_reduce = wrong  # type: ignore[method-assign, assignment]
        return bus_bandwidth(wire, CPU, (1 << 10,))

    assert [row.error for rows in VirtualWorld(2).run(task) for row in rows] == [0.5, 0.5]


def test_two_processes() -> None:
    """By shared memory, in the four sizes of a CPU."""
    first, second = run_real(2, measured)
    assert first == second and [row.size for row in first] == list(module.ON_CPU)
    assert all(row.error == 0.0 and row.seconds > 0 and row.bus_bandwidth == row.algorithm_bandwidth for row in first)
