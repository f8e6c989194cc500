"""Findings: a fact about this machine or its hosts, how severe it is, and how to fix it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from threading import Thread
from typing import Literal, NamedTuple, get_args

Level = Literal["OK", "WARN", "FAIL"]
"""WARN: a run works, but not well. FAIL: runs fail, or cannot be trusted."""


class Finding(NamedTuple):
    """The result of a check; `fix` is empty where nothing is wrong."""

    level: Level
    found: str
    fix: str = ""


Check = Callable[[], Finding]
Checks = Iterator[tuple[str, Check]]
"""Rows of the doctor by name. A later row may need the results of earlier checks, so each is called at once."""
ok, warn, fail = (partial(Finding, level) for level in get_args(Level))
"""Make findings; `warn` and `fail` take the fact and its fix."""


def examined(check: Check) -> Finding:
    """Return the finding of `check`; one that raises has failed."""
    try:
        return check()
    except (OSError, ImportError) as error:
        return fail(f"could not be checked: {error}", "see the error")


def within(seconds: float, check: Check) -> Finding:
    """Return the finding of `check`, which has failed if it does not end in time."""
    findings: list[Finding] = []
    thread = Thread(target=lambda: findings.append(examined(check)), daemon=True)
    thread.start()
    thread.join(seconds)
    return findings[0] if findings else fail(f"no answer within {seconds:g} s", "see what this machine waits for")
