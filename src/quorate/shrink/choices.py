"""The texts of `quorate compare --shrink`: steps that make the model smaller. Nothing here imports torch.

A text such as `prune:amount=0.9+cluster:groups=16` has steps with settings, and `+` between them; `none` has no step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from quorate.core.errors import ConfigurationError, unknown
from quorate.core.settings import settings_for, written_settings

NONE = "none"
"""The text of a model that stays as it is."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One step that makes the model smaller. Raises `ConfigurationError` for invalid settings."""

    kind: ClassVar[str]
    call: ClassVar[str]
    """The function of `quorate.shrink` that it calls."""
    at: float = 0.0
    """Its moment: below 1 a share of the training; from 1 on the number of the worker's step after which it is made."""
    guard: float | None = None
    """The largest relative rise of the training loss, above the lowest before a turn. The turn that exceeds it is
    undone, and the ones after it are left out. None: losses are not compared."""
    patience: float | None = None
    """The time until the loss is compared, in the unit of `at`; None: a tenth of the training, or 50 steps."""

    def __post_init__(self) -> None:
        if not self.at >= 0 or (self.at >= 1 and self.at != int(self.at)):
            raise ConfigurationError(
                f"at={self.at:g} of {self.kind} is a share of the training, from 0 to below 1, or a number of steps"
            )
        if self.guard is not None and not self.guard >= 0:
            raise ConfigurationError(f"guard={self.guard:g} of {self.kind} is a relative rise of the loss, at least 0")
        if self.guard is None and self.patience is not None:
            raise ConfigurationError(f"patience of {self.kind} says when guard compares losses; set guard as well")
        if self.patience is not None and not (0 < self.patience < 1 if self.is_share else self.patience >= 1):
            raise ConfigurationError(f"patience={self.patience:g} of {self.kind} is in the unit of at={self.at:g}")

    @property
    def patterns(self) -> list[str] | None:
        """The names or patterns of layers; None: all that can be."""
        layers: str | int | None = getattr(self, "layers", None)
        return None if layers is None else str(layers).split("|")

    @property
    def is_share(self) -> bool:
        """Whether `at` is a share of the training."""
        return self.at < 1

    def turns(self) -> Iterator[tuple[float, float]]:
        """Yield when to act, and the share of the whole that is reached then."""
        yield self.at, 1.0

    def events(self) -> Iterator[Event]:
        """Yield all that is to be done, in order."""
        wait = (0.1 if self.is_share else 50) if self.patience is None else self.patience
        turns = list(self.turns())
        for place, (at, share) in enumerate(turns):
            yield Event(at, self, share)
            if self.guard is not None:
                next_at = turns[place + 1][0] if place + 1 < len(turns) else at + wait
                yield Event(min(next_at, at + wait, *([0.99] if self.is_share else [])), self, share, checks=True)


@dataclass(frozen=True, kw_only=True)
class PruneChoice(Choice):
    """`quorate.shrink.prune`, in several turns of a cubic schedule."""

    kind, call = "prune", "prune"
    amount: float
    """The share of the numbers that is pruned in the end."""
    scope: Literal["layer", "global"] = "layer"
    by: Literal["magnitude", "random"] = "magnitude"
    unit: Literal["number", "filter"] = "number"
    at: float = 0.2
    until: float | None = None
    """The moment of the last turn; None: halfway from `at` to the end of the training, or at once if `at` is a step."""
    count: int = field(default=8)
    """The number of turns, if there is time for several."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.amount < 1:
            raise ConfigurationError(f"amount={self.amount:g} of prune is a share of the numbers, above 0 and below 1")
        if self.count < 1:
            raise ConfigurationError(f"count={self.count} of prune is a number of turns, at least 1")
        if self.until is not None and (self.until < self.at or (self.until < 1) != self.is_share):
            raise ConfigurationError(
                f"until={self.until:g} of prune is in the unit of at={self.at:g}, and not before it"
            )

    def turns(self) -> Iterator[tuple[float, float]]:
        until = self.until
        if until is None:
            until = (1 + self.at) / 2 if self.is_share else self.at
        count = 1 if until == self.at else self.count
        for turn in range(1, count + 1):
            at = self.at if count == 1 else self.at + (until - self.at) * (turn - 1) / (count - 1)
            yield (at if self.is_share else round(at)), 1 - (1 - turn / count) ** 3


@dataclass(frozen=True, kw_only=True)
class LowRankChoice(Choice):
    """`quorate.shrink.low_rank`."""

    kind, call = "low-rank", "low_rank"
    rank: int | None = None
    share: float | None = None
    layers: str | int | None = None
    """Names or patterns of layers, with "|" between them."""
    at: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.rank is None) == (self.share is None):
            raise ConfigurationError("low-rank takes either rank or share, as in low-rank:share=0.25")


@dataclass(frozen=True, kw_only=True)
class ClusterChoice(Choice):
    """`quorate.shrink.cluster`."""

    kind, call = "cluster", "cluster"
    groups: int = 16
    layers: str | int | None = None
    """Names or patterns of layers, with "|" between them."""
    at: float = 0.75


KINDS: dict[str, type[Choice]] = {kind.kind: kind for kind in (PruneChoice, LowRankChoice, ClusterChoice)}


@dataclass(frozen=True)
class Event:
    """Something to be done at a moment of the training."""

    at: float
    choice: Choice
    share: float
    """The share of the amount of a pruning that is reached."""
    checks: bool = False
    """Whether the losses are compared, in place of making the model smaller."""


def choices_from(text: str) -> tuple[Choice, ...]:
    """Return the steps of a text; none for `none`.

    Raises `ConfigurationError` for an unknown step or setting, and if some `at` are shares and others are steps.
    """
    if text == NONE:
        return ()
    choices = []
    for part in text.split("+"):
        name, raw = written_settings(part, "step of --shrink")
        if name not in KINDS:
            raise unknown("step of --shrink", name, (*KINDS, NONE))
        kind = KINDS[name]
        settings = settings_for(kind, raw, name)
        needed = [spec.name for spec in fields(kind) if spec.name == "amount" and "amount" not in settings]
        if needed:
            raise ConfigurationError(f'"{part}" lacks the share of numbers to prune; write prune:amount=0.9')
        choices.append(kind(**settings))
    if len({choice.is_share for choice in choices}) > 1:
        raise ConfigurationError(f'"{text}" has both shares of the training and numbers of steps; give each its at')
    return tuple(choices)


def events_of(choices: Sequence[Choice]) -> list[Event]:
    """Return all that is to be done, by moment; what is checked at a moment comes before what is made smaller."""
    events = [event for choice in choices for event in choice.events()]
    return sorted(events, key=lambda event: (event.at, not event.checks))
