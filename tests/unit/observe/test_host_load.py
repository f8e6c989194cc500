"""The load of the host, between two readings."""

from __future__ import annotations

import sys
import time

import pytest

from quorate.observe import host_load as module
from quorate.observe.host_load import HostLoad


def test_without_a_beginning_there_is_no_row() -> None:
    assert HostLoad().row(1.0) is None
    load = HostLoad()
    load.begin(1.0)
    assert load.row(1.0) is None


def test_time_on_a_core_counts_as_ones_own_and_as_the_hosts() -> None:
    load, began = HostLoad(), time.monotonic()
    load.begin(began)
    spent = time.process_time() + 0.3
    while time.process_time() < spent:
        pass
    now = time.monotonic()
    row = load.row(now)
    assert row is not None and row.seconds == now - began and row.cores >= 1
    assert 0.25 <= row.cpu_seconds <= row.seconds + 0.1
    if row.busy_seconds is not None:
        assert row.busy_seconds > row.cpu_seconds - 0.1
    assert row.pressure is None or 0.0 <= row.pressure <= 1.0
    if sys.platform in ("linux", "darwin"):
        assert row.load_average is not None


def test_counters_are_of_the_time_between(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {"_cpu": [2.0, 5.0], "_busy": [100.0, 112.0], "_pressure": [1.0, 3.5]}
    for name, values in counters.items():
        monkeypatch.setattr(module, name, iter(values).__next__)
    load = HostLoad()
    load.begin(10.0)
    row = load.row(20.0)
    assert row is not None
    assert (row.time, row.seconds, row.cpu_seconds, row.busy_seconds, row.pressure) == (20.0, 10.0, 3.0, 12.0, 0.25)


def test_where_the_system_counts_nothing_the_row_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_busy", "_pressure", "_load_average"):
        monkeypatch.setattr(module, name, lambda: None)
    load = HostLoad()
    load.begin(10.0)
    row = load.row(11.0)
    assert row is not None and row.as_json().keys() == {"kind", "time", "seconds", "cpu_seconds", "cores"}
