"""Findings: what an examination says, and how a fact is got within a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class Level(StrEnum):
    """The severity of a finding."""

    OK = "OK"
    WARN = "WARN"
    """It works, but not for everything, or not well."""
    FAIL = "FAIL"
    """Trainings cannot run, or cannot be trusted."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row of the table. `fix`: how to solve the problem, or how to get more; may be empty."""

    name: str
    level: Level
    found: str
    fix: str = ""


def ok(name: str, result: str, fix: str = "") -> Finding:
    """Return a finding that needs no action."""
    return Finding(name=name, level=Level.OK, found=result, fix=fix)


def warn(name: str, result: str, fix: str) -> Finding:
    """Return a finding about something that works with limits."""
    return Finding(name=name, level=Level.WARN, found=result, fix=fix)


def fail(name: str, result: str, fix: str) -> Finding:
    """Return a finding about something that does not work."""
    return Finding(name=name, level=Level.FAIL, found=result, fix=fix)


@dataclass(frozen=True, kw_only=True)
class Examination(Generic[T]):
    """One examination: `probe` returns a fact within `seconds`, `judge` makes a finding of it."""

    name: str
    seconds: float
    probe: Callable[[], T]
    judge: Callable[[T], Finding]

    def finding(self) -> Finding:
        """Probe and judge. A probe that raises `OSError`, or does not end in time, has failed."""
        answers: list[T | OSError] = []
        thread = threading.Thread(target=self._ask, args=(answers,), daemon=True)
        thread.start()
        thread.join(self.seconds)
        if not answers and thread.is_alive():
            return fail(self.name, f"no answer within {self.seconds:g} s", "see what this machine is waiting for")
        answer = answers[0] if answers else OSError("the probe ended without an answer")
        if isinstance(answer, OSError):
            return fail(self.name, f"could not be looked at: {answer}", "see the error; then ask again")
        return self.judge(answer)

    def _ask(self, answers: list[T | OSError]) -> None:
        try:
            answers.append(self.probe())
        except OSError as error:
            answers.append(error)
