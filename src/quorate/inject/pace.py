"""Injected pace: the least duration of a step, so that a fast machine behaves like a slow or large training.

form                      seconds
280ms                     every step
50us/token                for each token of the step's batches
trace:FILE                one number a line, step by step, or JSON lines with `seconds` and `rank`
trace:NAME                a published batch time, drawn for every rank and step

A trace may be followed by a factor (`:x0.1`), and forms are added with `+`: `2ms+50us/token`.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

from quorate.core.draws import mixed
from quorate.core.durations import Durations, Trace, parse_trace
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import seconds_from

FORMS = "280ms, 50us/token, trace:FILE or trace:NAME, also with :x0.1, or several with + between them"

_STREAM = zlib.crc32(b"pace")
_PLUS = re.compile(r"(?<![0-9.][eE])\+(?=\s*(?:[0-9.]|trace:))")


@dataclass(frozen=True)
class Pace:
    """The least duration of steps: a sum of fixed seconds, seconds per token, and traces; `text` is the line of it."""

    text: str
    fixed: float = 0.0
    per_token: float = 0.0
    traces: tuple[Durations, ...] = ()

    @property
    def needs_tokens(self) -> bool:
        """Whether it depends on the tokens of a batch."""
        return self.per_token > 0

    def seconds(self, rank: int, step: int, tokens: int | None) -> float:
        """Return the least seconds of `rank` for `step` (from 0), whose batches hold `tokens`.

        Raises `ConfigurationError` where the tokens count and are unknown.
        """
        total = self.fixed + sum(trace(rank, step) for trace in self.traces)
        if not self.needs_tokens:
            return total
        if tokens is None:
            raise ConfigurationError(
                f'the minimum step time "{self.text}" counts tokens, but the batches do not say how many they hold; '
                "give what the loader yields an attribute `tokens`"
            )
        return total + self.per_token * tokens

    def __str__(self) -> str:
        return self.text


def parse_pace(text: str, *, seed: int, size: int) -> Pace:
    """Return the pace that `text` describes, among `size` workers; several traces are drawn independently.

    Raises `ConfigurationError` for an unknown form (the known ones are listed), and for a file that cannot be used.
    """
    fixed = per_token = 0.0
    traces: list[Durations] = []
    for place, piece in enumerate(_PLUS.split(text)):
        piece = piece.strip()
        trace = parse_trace(piece, seed=mixed(seed, _STREAM, place))
        if isinstance(trace, Trace):
            trace.check_ranks(size)
        if trace is not None:
            traces.append(trace)
        elif not re.match(r"[0-9.]", piece):
            raise ConfigurationError(f'"{piece}" is not a minimum step time; write {FORMS}')
        elif piece.endswith("/token"):
            per_token += seconds_from(piece.removesuffix("/token"), text)
        else:
            fixed += seconds_from(piece, text)
    return Pace(text, fixed, per_token, tuple(traces))
