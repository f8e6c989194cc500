"""The bus bandwidth of sums of tensors on a GPU, or on the device that stands in for one."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.launch.worker.bus_bandwidth import bus_bandwidth
from tests.support.on_gpu import WAYS, needs_gpu, run_on_gpu

pytestmark = [pytest.mark.gpu, needs_gpu]


def measured(world: Any) -> Any:
    rows = bus_bandwidth(world.wire, world.device, (1 << 12, 1 << 16))
    return world.device.type, [(row.size, row.dtype, row.error) for row in rows], rows[-1].seconds


@pytest.mark.parametrize("way", WAYS)
def test_two_workers(way: str) -> None:
    (device, rows, seconds), second = run_on_gpu(2, measured, gpus=way)
    assert device != "cpu" and rows == [(1 << 12, "float32", 0.0), (1 << 16, "float32", 0.0)]
    assert second == (device, rows, seconds)
