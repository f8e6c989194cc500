"""The response to a failure, described in one line of text: the part of the machine's behaviour that is chosen.

    detect=10s,silent=10s,reshard=20s,join=20s,slice=1,checkpoint=auto,save=10s,spare=1min,during=absorb

key                meaning
detect=10s         from a death until the others know of it
silent=10s         a worker of a learner that is silent for longer counts as dead (default: detect)
reshard=20s        from then until the rest of its learner goes on without it
join=20s           for so long the live workers of a learner stop when others come back (default: reshard)
slice=1            so many neighbours are idle with a dead worker, until it is repaired: a host, or a slice
checkpoint=auto    work between two checkpoints of a learner that is alone: a duration, or auto (Young, 1974)
save=10s           for so long workers stop to save one
spare=1min         a spare worker takes the place of a dead one after so long; without it, a repaired one does
inside=elastic     the rest of a learner goes on after a death; `restart`: all of it starts again (all-reduce: on_death)
during=absorb      a death during a stop is handled in the same stop; `again`: the stop begins again
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from quorate.core.errors import ConfigurationError
from quorate.core.quantities import seconds_from

KEYS = ("detect", "silent", "reshard", "join", "slice", "checkpoint", "save", "spare", "inside", "during")
FORMS = (
    "detect=10s,reshard=20s,join=20s,slice=64,checkpoint=auto,save=10s,spare=1min,inside=elastic,during=absorb "
    "(each may be left out)"
)


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """The response to a failure. Times in seconds; `text` is the line that was read."""

    detect: float = 10.0
    silent: float | None = None
    """None: as long as `detect`."""
    reshard: float = 20.0
    join: float | None = None
    """None: as long as `reshard`."""
    slice: int = 1
    checkpoint: float | None = None
    """None: the best period by Young's formula."""
    save: float = 10.0
    spare: float | None = None
    """None: there are no spares."""
    inside: Literal["elastic", "restart"] = "elastic"
    during: Literal["absorb", "again"] = "absorb"
    text: str = ""

    def __post_init__(self) -> None:
        if self.slice < 1:
            raise ConfigurationError(f"a slice has {self.slice} workers; it must be 1 or more")
        if self.checkpoint is not None and not self.checkpoint > 0:
            raise ConfigurationError(f"checkpoint is {self.checkpoint:g} s; it must be auto, or above 0")
        for name, value, choices in (
            ("inside", self.inside, ("elastic", "restart")),
            ("during", self.during, ("absorb", "again")),
        ):
            if value not in choices:
                raise ConfigurationError(f'{name} is "{value}"; it must be {choices[0]} or {choices[1]}')

    @property
    def joining(self) -> float:
        """For how long the live workers of a learner stop when others come back."""
        return self.reshard if self.join is None else self.join

    @property
    def silence(self) -> float:
        """Seconds after which a silent worker counts as dead."""
        return self.detect if self.silent is None else self.silent

    def period(self, rate: float, step: float) -> float:
        """Return the work between two checkpoints of a learner whose state is lost `rate` times a second; at least a
        step."""
        if self.checkpoint is not None:
            return max(self.checkpoint, step)
        return max(math.sqrt(2 * self.save / rate), step) if rate > 0 else math.inf


def recovery_from(text: str) -> Recovery:
    """Return the recovery that a line of text describes. Raises `ConfigurationError`, which names what is wrong in
    it."""
    settings: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (side.strip() for side in part.partition("="))
        if not equals or key not in KEYS:
            raise ConfigurationError(f'"{part.strip()}" in "{text}" is not a part of a recovery; write {FORMS}')
        if key in settings:
            raise ConfigurationError(f'{key} appears twice in "{text}"; write it once')
        settings[key] = _value(key, value, text)
    return Recovery(text=text, **settings)


def _value(key: str, value: str, text: str) -> object:
    if key == "slice":
        if not value.isdecimal() or len(value) > 9:
            raise ConfigurationError(f'"slice={value}" in "{text}" is not a number of workers')
        return int(value)
    if key in ("inside", "during"):
        return value
    if key == "checkpoint" and value == "auto":
        return None
    return seconds_from(value, text)
