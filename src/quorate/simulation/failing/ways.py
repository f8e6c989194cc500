"""A strategy under failures of learners: whether they meet, how often, and how many of them a round needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from quorate.core.errors import ConfigurationError
from quorate.rounds.terms import Agreed, check
from quorate.simulation.models import (
    EveryStep,
    Kind,
    LocalSteps,
    RoundTimes,
    Times,
    WaitFor,
    filled,
    known,
    times_of,
    usual_settings,
)
from quorate.simulation.played import Case, Played
from quorate.strategies import strategies

Meets = Literal["one learner", "meetings", "rounds", "merges"]
DECOUPLED = "decoupled-diloco"


@dataclass(frozen=True, kw_only=True)
class Merging(Times):
    """Learners that never wait for each other, with outer steps by fragment."""

    kind: ClassVar[Kind] = "rounds"

    sync_every: int | str
    wait_for: WaitFor
    fragments: int = 1

    def play(self, case: Case) -> Played:
        raise ConfigurationError(f"the rounds of {self.name} cannot be simulated from times alone")


@dataclass(frozen=True, kw_only=True)
class Way:
    """One strategy among learners that fail."""

    name: str
    meets: Meets
    period: float = 1.0
    """Between two meetings, or contributions of everything: so many steps, or seconds of work."""
    unit: Literal["steps", "seconds"] = "steps"
    fragments: int = 1
    wait_for: WaitFor = "all"
    goes_on: bool = True
    """Whether the others go on when a worker, or a learner, is dead (`on_death`)."""

    def work(self, step: float) -> float:
        """Return the seconds of work in a period, for steps of `step` seconds."""
        return self.period * step if self.unit == "steps" else max(self.period, step)

    def quorum(self, learners: int) -> int:
        """Return how many of so many learners must train for a round to be formed."""
        wanted: WaitFor = "majority" if self.wait_for == "designated" else self.wait_for
        if isinstance(wanted, int):
            return max(1, min(wanted, learners))
        return max(1, Agreed(size=learners, wait_for=wanted).quorum)

    def check(self, learners: int) -> None:
        """Raise `ConfigurationError` where that many learners cannot form a quorum."""
        if self.meets in ("rounds", "merges"):
            check(Agreed(size=learners, wait_for=self.wait_for))


def way_of(name: str, settings: Mapping[str, object]) -> Way:
    """Return the strategy of that name, with its defaults and these settings.

    Raises `ConfigurationError` for names and settings as `times_of` does, and for a strategy whose behaviour under
    failures is not known.
    """
    usual = usual_settings(name) if name in strategies else {}
    on_death = settings.get("on_death", usual.get("on_death", "stop"))
    if "on_death" in usual:  # looked at here: its strategy imports torch
        if on_death not in ("stop", "continue"):
            raise ConfigurationError(f"on_death of {name} is {on_death!r}; it must be stop or continue")
        settings = {key: value for key, value in settings.items() if key != "on_death"}
    goes_on = on_death == "continue"
    if name == DECOUPLED:
        times: Times = filled(Merging, name, settings, {"sync_every", "wait_for", "fragments"})
    elif name not in strategies or name in known():
        times = times_of(name, settings)
    else:
        raise _unknown(name)
    if isinstance(times, EveryStep):
        return Way(name=name, meets="one learner", goes_on=goes_on)
    if isinstance(times, LocalSteps):
        period, unit = _period(name, times.sync_every)
        return Way(name=name, meets="meetings", period=period, unit=unit, goes_on=goes_on)
    if not goes_on:
        raise ConfigurationError(
            f'with on_death="stop" a death ends the training of all learners under {name}; leave it out, or simulate '
            "all-reduce, whose workers start again from a checkpoint"
        )
    if isinstance(times, Merging):
        period, unit = _period(name, times.sync_every)
        if times.fragments < 1:
            raise ConfigurationError(f"fragments of {name} is {times.fragments}; it must be 1 or more")
        way = Way(name=name, meets="merges", period=period, unit=unit, fragments=times.fragments)
        return _waiting(way, times.wait_for)
    if isinstance(times, RoundTimes):
        period, unit = _period(name, times.sync_every)
        return _waiting(Way(name=name, meets="rounds", period=period, unit=unit), times.wait_for)
    raise _unknown(name)


def _unknown(name: str) -> ConfigurationError:
    kinds = sorted(name for name in known() if isinstance(times_of(name, {}), EveryStep | LocalSteps | RoundTimes))
    return ConfigurationError(
        f"failures under {name} cannot be simulated; give one of these: {', '.join(sorted([*kinds, DECOUPLED]))}"
    )


def _waiting(way: Way, wait_for: WaitFor) -> Way:
    return replace(way, wait_for=wait_for)


def _period(name: str, sync_every: int | str) -> tuple[float, Literal["steps", "seconds"]]:
    if isinstance(sync_every, int):
        if sync_every < 1:
            raise ConfigurationError(f"sync_every of {name} is {sync_every}; it must be a number of steps (at least 1)")
        return float(sync_every), "steps"
    from quorate.strategies.parts.local_steps import period_from  # imports torch

    period = period_from(sync_every)
    if period.unit == "examples":
        raise ConfigurationError(
            f"sync_every of {name} counts examples, which a simulation of failures does not have; give steps or seconds"
        )
    return period.count, "seconds" if period.unit == "seconds" else "steps"
