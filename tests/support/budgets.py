"""How long the tests of each room may take; and `--seconds`, for a check that has to be short.

Together they are to take less than 1,800 s, a quarter of an hour on two quiet cores, of all cases but those of
`make test-hosts`, `make test-launchers` and `make test-interop`. Where a program that imports torch takes longer than
on the cores that budgets are for, budgets are as many times longer. Add to a room's budget only after looking for what
its tests could share, do in the virtual world, or start by `tests.support.programs`. What takes more than ten seconds
is marked `slow`; random searches take `pytest.mark.seeds` or the fixture `times`, and go on in `make soak`.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.import_graph import changed_files, changed_modules, order_of, read_sources

ROOT = Path(__file__).parents[2]
BUDGETS = {
    "architecture": 48,
    "contract": 310,
    "gpu": 400,
    "interop": 1900,
    "launchers": 640,
    "newcomer": 4,
    "release": 6,
    "soak": 30,
    "unit/aggregation": 12,
    "unit/attention": 12,
    "unit/buckets": 8,
    "unit/codecs": 10,
    "unit/checkpoint": 38,
    "unit/cli": 70,
    "unit/compare": 12,
    "unit/core": 7,
    "unit/data": 22,
    "unit/foreign": 6,
    "unit/gossip": 5,
    "unit/horovod": 10,
    "unit/inject": 5,
    "unit/launch": 100,
    "unit/means": 30,
    "unit/notebook": 12,
    "unit/observe": 17,
    "unit/optim": 8,
    "unit/planning": 35,
    "unit/quorums": 10,
    "unit/records": 4,
    "unit/replica": 25,
    "unit/report": 32,
    "unit/rounds": 75,
    "unit/servers": 16,
    "unit/sharding": 25,
    "unit/shrink": 18,
    "unit/simulation": 20,
    "unit/strategies": 190,
    "unit/train": 50,
    "unit/tuning": 8,
    "unit/wire": 30,
    "unit/workloads": 18,
    "world": 525,
}
"""Seconds on one quiet core, set-up included, for all cases."""
IMPORT_SECONDS = 1.3
"""What a program that only imports torch takes on these cores."""
SHARES = {"one": 0.55, "fifth": 0.7, "third": 0.75}
"""`--cases`: the share of it that fewer cases take."""
MOST_FILES = 48
"""Test files that `--seconds` reads: a tenth of a second each on a slow core."""
MOST_NAMED = 12
"""Files of a room that takes too long, at most, that are named."""
_CACHE = "quorate/import_graph"

LONG = (
    "world",
    "soak",
    "unit/launch",
    "contract",
    "unit/cli",
    "unit/strategies",
    "unit/train",
    "unit/checkpoint",
    "unit/rounds",
)


def room_of(path: str) -> str:
    """The room that a test file, given from the root, is about: `unit/train`, `world`."""
    parts = Path(path).parts[1:]
    return "/".join(parts[: 2 if parts[0] == "unit" else 1])


def in_order(items: list[pytest.Item]) -> None:
    """Rooms with long tests first: what comes last is short, so that no worker is alone with a long file at the end."""
    places = {room: place for place, room in enumerate(LONG)}
    items.sort(key=lambda item: places.get(room_of(item.nodeid), len(LONG)))


class Short:
    """With `--seconds`: runs the test files nearest to what changed, and begins no test after so many.

    The process that others report to chooses the files, so that all of them collect the same tests. Collecting every
    file would take longer than the check.
    """

    def __init__(self, config: pytest.Config, seconds: float) -> None:
        self._seconds, self._until = seconds, math.inf
        self._collected = self._begun = self._unread = 0
        self._is_worker = hasattr(config, "workerinput")
        if self._is_worker:
            self._files: list[str] = config.workerinput["files"]  # type: ignore[attr-defined]
        else:
            self._files, self._unread = self._chosen(config)
        if self._files:
            config.args[:] = [str(ROOT / file) for file in self._files]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand the choice to a process that xdist starts."""
        node.workerinput["files"] = self._files

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        places = {file: place for place, file in enumerate(self._files)}
        items.sort(key=lambda item: places.get(item.nodeid.split("::")[0], len(places)))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected = len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Count what each process that xdist has started has collected: all collect the same."""
        self._collected = len(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        """Leave a test out without a report, of which thousands would take as long as some tests."""
        self._until = min(self._until, time.monotonic() + self._seconds)
        return True if time.monotonic() > self._until else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._begun += report.when == "setup"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._is_worker:
            terminalreporter.write_line(
                f"--seconds {self._seconds:g}: {self._begun} tests have run, of the files nearest to what changed; "
                f"left out: {self._collected - self._begun} more of these files, and {self._unread} files farther off "
                "that import it (`make test CASES=all` runs them)"
            )

    @staticmethod
    def _chosen(config: pytest.Config) -> tuple[list[str], int]:
        """Return the nearest test files under the command's paths, and how many that reach a change are not among them.

        There are none where a path names a test in a file.
        """
        if any("::" in arg for arg in config.args):
            return [], 0
        paths = [(config.invocation_params.dir / arg).resolve() for arg in config.args]
        cache = getattr(config, "cache", None)
        sources, kept = read_sources(ROOT, cache and cache.get(_CACHE, None))
        if cache is not None:
            cache.set(_CACHE, kept)
        tests = [
            file
            for file in sources
            if Path(file).name.startswith("test_") and any((ROOT / file).is_relative_to(path) for path in paths)
        ]
        order = order_of(tests, sources, changed_modules(changed_files(ROOT), sources))
        return list(order.files[:MOST_FILES]), len(order.concerned.difference(order.files[:MOST_FILES]))


class Budgets:
    """Adds up what the tests of each room have taken, and names rooms that take too long, with their longest files."""

    def __init__(self, share: float) -> None:
        self.spent, self._files, self._share = Counter[str](), Counter[str](), share

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.spent[room_of(report.nodeid)] += report.duration  # type: ignore[assignment]
        self._files[report.nodeid.split("::")[0]] += report.duration  # type: ignore[assignment]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if all(seconds <= self._share * BUDGETS.get(room, 0) for room, seconds in self.spent.items()):
            return
        taken = _seconds_to_import_torch()
        slower = max(1.0, taken / IMPORT_SECONDS)
        terminalreporter.write_line(
            f"a program that imports torch takes {taken:.1f} s here, and {IMPORT_SECONDS} s where budgets were set: "
            f"they are taken {slower:.1f} times"
        )
        for room, seconds in sorted(self.spent.items()):
            budget = slower * self._share * BUDGETS.get(room, 0)
            if seconds > budget:
                files = [(file, taken) for file, taken in self._files.most_common() if room_of(file) == room]
                longest = ", ".join(f"{Path(file).name} {taken:.0f}" for file, taken in files[:MOST_NAMED])
                terminalreporter.write_line(
                    f"the tests of {room} took {seconds:.0f} s; their budget is {budget:.0f} s "
                    f"(tests/support/budgets.py): {longest}"
                )


def _seconds_to_import_torch() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - begin
