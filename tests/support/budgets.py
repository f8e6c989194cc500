"""How long the tests of each room may take; and `--seconds`, for a check that has to be short.

Together they are to take less than 1,800 s, of all cases but those of `make test-hosts`, `make test-launchers` and
`make test-interop`; on two slow cores (a program that imports torch takes 3.5 s) they take three times as long. Add to
a room's budget only after looking for what its tests could share, do in the virtual world, or start by
`tests.support.programs`. What takes more than ten seconds is marked `slow`; random searches take `pytest.mark.seeds`
or the fixture `times`, and go on in `make soak`.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BUDGETS = {
    "architecture": 29,
    "contract": 370,
    "gpu": 400,
    "interop": 400,
    "launchers": 640,
    "soak": 33,
    "unit/aggregation": 20,
    "unit/buckets": 8,
    "unit/codecs": 20,
    "unit/checkpoint": 41,
    "unit/cli": 65,
    "unit/compare": 14,
    "unit/core": 7,
    "unit/data": 26,
    "unit/gossip": 10,
    "unit/inject": 5,
    "unit/launch": 116,
    "unit/means": 50,
    "unit/notebook": 12,
    "unit/observe": 17,
    "unit/optim": 8,
    "unit/planning": 45,
    "unit/quorums": 4,
    "unit/records": 4,
    "unit/replica": 45,
    "unit/report": 36,
    "unit/rounds": 93,
    "unit/servers": 8,
    "unit/sharding": 42,
    "unit/simulation": 22,
    "unit/strategies": 240,
    "unit/train": 84,
    "unit/wire": 40,
    "unit/workloads": 20,
    "world": 775,
}
"""Seconds on one quiet core, set-up included, for all cases."""
SHARES = {"one": 0.5, "third": 0.65}
"""`--cases`: the share of it that fewer cases take."""


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


def changed_rooms() -> set[str]:
    """The rooms of the package whose files differ from the newest commit, or do in it; empty where git cannot say."""
    words = (["diff", "--name-only", "HEAD~1"], ["ls-files", "--others", "--exclude-standard"])
    try:
        asked = [subprocess.run(["git", *w], cwd=ROOT, capture_output=True, text=True, timeout=10) for w in words]
    except (OSError, subprocess.TimeoutExpired):
        return set()
    paths = [Path(line).parts for one in asked for line in one.stdout.splitlines()]
    return {parts[2] for parts in paths if parts[:2] == ("src", "quorate") and len(parts) > 3} | {
        parts[2] for parts in paths if parts[:2] == ("tests", "unit") and len(parts) > 3
    }


class Short:
    """With `--seconds`: tests of changed rooms first, and those for which there is no time left are skipped."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._until = seconds, time.monotonic() + seconds

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        changed = changed_rooms()

        def place(item: pytest.Item) -> tuple[bool, bool]:
            room = room_of(item.nodeid)
            return room.removeprefix("unit/") not in changed, room not in ("architecture", "contract")

        items.sort(key=place)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if time.monotonic() > self._until:
            pytest.skip(f"not in the first {self._seconds:g} seconds; `make test CASES=all` runs it")


class Budgets:
    """Adds up what the tests of each room have taken, and says which rooms take more than they may."""

    def __init__(self, share: float) -> None:
        self.spent, self._share = Counter[str](), share

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.spent[room_of(report.nodeid)] += report.duration  # type: ignore[assignment]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for room, seconds in sorted(self.spent.items()):
            budget = self._share * BUDGETS.get(room, 0)
            if seconds > budget:
                terminalreporter.write_line(
                    f"the tests of {room} took {seconds:.0f} s; their budget is {budget:.0f} s "
                    "(tests/support/budgets.py)"
                )
