"""Strategies by their times: settings that decide when and with which workers to agree, and their simulation.

A setting has its strategy's own name, type and default, which are read from its source, without importing it. Settings
that change numbers, but no times, are accepted.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar

from quorate.core.errors import ConfigurationError, unknown
from quorate.core.settings import settings_for
from quorate.core.source import Setting
from quorate.gossip.topology import topology_of
from quorate.rounds.terms import Agreed, check
from quorate.simulation import neighbours, together
from quorate.simulation.played import Case, Played
from quorate.simulation.rounds import QuorumRun
from quorate.strategies import strategies

Kind = Literal["meetings", "rounds", "exchanges", "questions"]
WaitFor = int | float | Literal["all", "majority", "designated"]


@dataclass(frozen=True, kw_only=True)
class Times(ABC):
    """One strategy by its times. Its fields are the settings of the strategy that change them."""

    kind: ClassVar[Kind]
    """The kind of exchanges: a run of one strategy determines the costs of others of its kind."""
    name: str

    @abstractmethod
    def play(self, case: Case) -> Played:
        """Simulate the workers of `case`."""

    def check(self, workers: int) -> None:  # noqa: B027  (most settings fit any number of workers)
        """Raise `ConfigurationError` where the settings do not fit the number of workers."""


_T = TypeVar("_T", bound=Times)


@dataclass(frozen=True, kw_only=True)
class EveryStep(Times):
    """All workers meet in every step."""

    kind: ClassVar[Kind] = "meetings"

    def play(self, case: Case) -> Played:
        return together.in_every_step(case)


@dataclass(frozen=True, kw_only=True)
class LocalSteps(Times):
    """All workers meet every so many steps."""

    kind: ClassVar[Kind] = "meetings"

    sync_every: int | str
    momentum: Literal["keep", "average", "reset"] = "keep"
    after: int | Literal["decay"] = 0

    def check(self, workers: int) -> None:
        self.period()
        if self.after == "decay":
            raise ConfigurationError(
                f"{self.name} takes local steps from the first decay of the learning rate on, which recorded times do "
                "not tell; say after how many steps, such as after=20"
            )

    def period(self) -> tuple[float, str]:
        """Return the count and the unit (steps, examples or seconds) between two means."""
        if isinstance(self.sync_every, int) and self.sync_every > 0:
            return self.sync_every, "steps"
        from quorate.strategies.parts.local_steps import period_from  # imports torch

        period = period_from(self.sync_every)
        return period.count, period.unit

    def play(self, case: Case) -> Played:
        assert isinstance(self.after, int)
        vectors = 2 if self.momentum == "average" else 1
        return together.every_so_many(case, *self.period(), vectors=vectors, after=self.after)


@dataclass(frozen=True, kw_only=True)
class RoundTimes(Times):
    """Rounds with a quorum."""

    kind: ClassVar[Kind] = "rounds"

    wait_for: WaitFor
    late: Literal["carry", "drop", "replace"] = "carry"
    max_staleness: int
    overlap: bool = False
    sync_every: int | str = 1

    def check(self, workers: int) -> None:
        check(self.agreed(workers, 0))
        if not isinstance(self.sync_every, int) or self.sync_every < 1:
            raise ConfigurationError(
                f"sync_every of {self.name} is {self.sync_every!r}; with recorded times it must be a "
                "number of steps (at least 1)"
            )
        if self.overlap and self.max_staleness < 1:
            raise ConfigurationError(
                "overlap makes every gradient at least one round stale; max_staleness is at least 1"
            )

    def agreed(self, workers: int, seed: int) -> Agreed:
        """Return the workers' agreed settings, as far as they decide when rounds start and which contributions they
        take."""
        return Agreed(size=workers, wait_for=self.wait_for, late=self.late, max_staleness=self.max_staleness, seed=seed)

    def play(self, case: Case) -> Played:
        assert isinstance(self.sync_every, int)
        return QuorumRun(case, self.agreed(case.workers, case.seed), every=self.sync_every, overlap=self.overlap).run()


@dataclass(frozen=True, kw_only=True)
class ExchangeTimes(Times):
    """Gossip in which neighbours wait for each other."""

    kind: ClassVar[Kind] = "exchanges"

    topology: str
    overlap: bool = False
    bound: int = 0
    directed: bool = True
    """Whether edges may lead one way; not a setting."""

    def check(self, workers: int) -> None:
        graph = topology_of(self.topology, workers)
        if graph.directed and not self.directed:
            raise ConfigurationError(
                f'edges of the topology "{self.topology}" are directed, but {self.name} needs undirected ones'
            )
        if self.bound < 0:
            raise ConfigurationError(f"bound is {self.bound}; it must be a number of steps, 0 or more")

    def play(self, case: Case) -> Played:
        graph = topology_of(self.topology, case.workers)
        return neighbours.exchanges(case, graph, ahead=self.overlap, bound=self.bound)


@dataclass(frozen=True, kw_only=True)
class Questions(ExchangeTimes):
    """Gossip in which no worker waits for another's computing."""

    kind: ClassVar[Kind] = "questions"

    def play(self, case: Case) -> Played:
        return neighbours.questions(case, ahead=self.overlap)


_KINDS: dict[str, tuple[type[Times], dict[str, object]]] = {
    "ddp": (EveryStep, {}),
    "all-reduce": (EveryStep, {}),
    "local-sgd": (LocalSteps, {}),
    "post-local-sgd": (LocalSteps, {}),
    "slowmo": (LocalSteps, {}),
    "diloco": (LocalSteps, {}),
    "quorum": (RoundTimes, {}),
    "eager-solo": (RoundTimes, {}),
    "eager-majority": (RoundTimes, {}),
    "backup-workers": (RoundTimes, {}),
    "bounded-staleness": (RoundTimes, {}),
    "eager-averaging": (RoundTimes, {}),
    "d-psgd": (ExchangeTimes, {"directed": False}),
    "d2": (ExchangeTimes, {"directed": False}),
    "relay": (ExchangeTimes, {"directed": False}),
    "sgp": (ExchangeTimes, {}),
    "osgp": (ExchangeTimes, {}),
    "ad-psgd": (Questions, {"directed": False}),
}


def known() -> tuple[str, ...]:
    """Return the names of the strategies with known times, sorted."""
    return tuple(sorted(_KINDS))


def settings_of(name: str) -> frozenset[str]:
    """Return the settings of that strategy that change times; none for an unknown name."""
    if name not in _KINDS:
        return frozenset()
    return frozenset({setting.name for setting in _declared(name)} & {field.name for field in fields(_KINDS[name][0])})


def times_of(name: str, settings: Mapping[str, object]) -> Times:
    """Return the strategy of that name, with its defaults and these settings.

    Raises `ConfigurationError` for an unknown name or setting, a value of another type, and a strategy that is not
    among `known`.
    """
    if name not in _KINDS:
        if name in strategies:
            raise ConfigurationError(
                f"recorded times do not tell when workers meet under {name}; simulate it with --real WORKLOAD, "
                "or one of "
                f"these: {', '.join(known())}"
            )
        raise unknown("strategy", name, {*known(), *strategies}, listed_by="quorate list strategies")
    kind, fixed = _KINDS[name]
    return filled(kind, name, settings, settings_of(name), fixed)


def filled(
    kind: type[_T], name: str, settings: Mapping[str, object], own: Set[str], fixed: Mapping[str, object] | None = None
) -> _T:
    """Return a strategy of class `kind` with the settings `own`; others, which change no times, are checked."""
    values: dict[str, Any] = {
        **(fixed or {}),
        **{key: value for key, value in usual_settings(name).items() if key in own},
    }
    _check_names(name, settings)
    values |= settings_for(kind, {key: value for key, value in settings.items() if key in own}, name)
    if set(settings) - own:
        settings_for(strategies.get(name), settings, name)
    return kind(name=name, **values)


def _declared(name: str) -> Sequence[Setting]:
    """Return the settings of the strategy in its source; none for a baseline."""
    source = strategies.source(name) if name in strategies else None
    return () if source is None else source.settings


def usual_settings(name: str) -> dict[str, object]:
    """Return the defaults of that strategy, as far as its source has them as literals."""
    defaults = {}
    for setting in _declared(name):
        if setting.default is not None:
            try:
                defaults[setting.name] = ast.literal_eval(setting.default)
            except ValueError:
                pass  # made by a call: no setting of this kind changes times
    return defaults


def _check_names(name: str, settings: Mapping[str, object]) -> None:
    names = [setting.name for setting in _declared(name)]
    if not names and settings:
        raise ConfigurationError(f"{name} has no settings; leave out {', '.join(sorted(settings))}")
    for key in settings:
        if key not in names:
            raise unknown(f"setting of {name}", key, names)
