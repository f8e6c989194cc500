"""Proposals of choices to try: optuna's where it is installed (the extra `tune`), and those of a grid without it.

A proposer only proposes: which choice is taken, `tuning.decision` says.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

from quorate.tuning.choices import Choice, Profile

LEAST_BYTES, MOST_BYTES = 1 << 16, 1 << 27
LEAST_FIRST, MOST_FIRST = 1 << 12, 1 << 24
CHANNELS = (1, 2, 4)
_ASKED = 40
"""Proposals of optuna, most of which the model refuses."""


class Proposer(Protocol):
    """Proposes choices one after the other."""

    name: str

    def ask(self) -> Choice | None:
        """Return the next proposal; None: there is none left."""

    def tell(self, choice: Choice, speed_up: float) -> None:
        """Note how many times as fast as the default a step was, or is predicted to be."""


class Grid:
    """Proposes the best cut by the model, ways to send it, and sizes by powers of two, in the order of predictions."""

    name = "grid"

    def __init__(self, default: Choice, profile: Profile) -> None:
        ways = list(_of_grid(default))
        ways.sort(key=lambda choice: (choice.part_layout != "measured", profile.predicted(choice)))
        self._left = iter(ways)

    def ask(self) -> Choice | None:
        return next(self._left, None)

    def tell(self, choice: Choice, speed_up: float) -> None:
        pass


def _of_grid(default: Choice) -> Iterator[Choice]:
    best = replace(default, part_layout="measured", part_overlap=True, part_channels=1)
    yield from (replace(best, part_channels=channels) for channels in CHANNELS)
    yield replace(default, part_overlap=not default.part_overlap)
    for exponent in range(18, 28):
        nbytes = 1 << exponent
        yield replace(default, part_bytes=nbytes, first_part_bytes=nbytes // 8, part_order="arrival")


class Optuna:
    """Proposes by optuna's TPE sampler, after the first choices of the grid."""

    name = "optuna"

    def __init__(self, default: Choice, profile: Profile, seed: int = 0) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.TPESampler(n_startup_trials=4, seed=seed)
        self._study: Any = optuna.create_study(direction="maximize", sampler=sampler)
        self._default, self._trials, self._first = default, dict[Choice, Any](), Grid(default, profile)
        self._of_grid = len(CHANNELS) + 1
        self._asked = 0

    def ask(self) -> Choice | None:
        self._asked += 1
        if self._asked <= self._of_grid:
            return self._first.ask()
        if self._asked > self._of_grid + _ASKED:
            return None
        trial = self._study.ask()
        choice = replace(
            self._default,
            part_bytes=trial.suggest_int("part_bytes", LEAST_BYTES, MOST_BYTES, log=True),
            first_part_bytes=trial.suggest_int("first_part_bytes", LEAST_FIRST, MOST_FIRST, log=True),
            part_order=trial.suggest_categorical("part_order", ["registration", "arrival"]),
            part_channels=trial.suggest_categorical("part_channels", list(CHANNELS)),
        )
        self._trials[choice] = trial
        return choice

    def tell(self, choice: Choice, speed_up: float) -> None:
        trial = self._trials.pop(choice, None)
        if trial is not None:
            self._study.tell(trial, speed_up)


def proposer_of(default: Choice, profile: Profile) -> Proposer:
    """Return the proposer: optuna's where it is installed."""
    return Grid(default, profile) if importlib.util.find_spec("optuna") is None else Optuna(default, profile)
