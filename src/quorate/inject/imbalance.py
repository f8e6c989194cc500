"""Injected imbalance: the delay of each worker in each step, described in one line of text.

Delays are drawn by counting from the seed, the step and, where ranks are independent, the rank. So every worker
computes the same table without communication, and another strategy meets exactly the same delays.

form                      delay
one-of:200ms              every step one worker, drawn again
3-of:200ms                every step three different workers
rank:3:200ms              always this worker
rank:3:x2                 this worker takes twice as long as it would otherwise
normal:10ms:2ms           mean and standard deviation, cut off at 0; independent for every rank and step
lognormal:10ms:0.5        median and standard deviation of the logarithm; independent as well
uniform:5ms:20ms          from, to; independent as well
trace:FILE                seconds, one number a line, or JSON lines with `seconds` and `rank`
trace:NAME                a published batch time, drawn for every rank and step, minus the least one

A trace may be followed by a factor (`:x0.1`), and forms are added with `+`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from quorate.core.draws import chosen, mixed
from quorate.core.durations import Batches, Durations, Trace, parse_sampled, parse_trace
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import factor_from, seconds_from

FORMS = (
    "one-of:200ms, 3-of:200ms, rank:3:200ms, rank:3:x2, normal:10ms:2ms, lognormal:10ms:0.5, uniform:5ms:20ms, "
    "trace:FILE or trace:NAME, also with :x0.1, or several with + between them"
)

Delay = Callable[[int, int, float], float]
"""(rank, step, base) -> seconds, as in `Imbalance.delay`."""

_STREAM = zlib.crc32(b"imbalance")
_PLUS = re.compile(r"\+(?=\s*(?:[a-z][a-z-]*|[0-9]+-of)\s*:)")


@dataclass(frozen=True)
class Imbalance:
    """A sum of delays; `text` is the line that was read. Cost: some microseconds a step."""

    text: str
    terms: tuple[Delay, ...]

    def delay(self, rank: int, step: int, base: float) -> float:
        """Return the seconds by which `rank` is late in `step` (from 0), which would take `base` seconds otherwise."""
        return sum(term(rank, step, base) for term in self.terms)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class _SomeOf:
    """Every step, `count` different workers of `size` are `seconds` late."""

    count: int
    size: int
    seconds: float
    seed: int

    def __call__(self, rank: int, step: int, base: float) -> float:
        return self.seconds if rank in chosen(self.count, self.size, self.seed, step) else 0.0


@dataclass(frozen=True)
class _OneRank:
    """Worker `rank` is always late: by `seconds`, and by `share` of its usual time."""

    rank: int
    seconds: float = 0.0
    share: float = 0.0

    def __call__(self, rank: int, step: int, base: float) -> float:
        return self.seconds + self.share * base if rank == self.rank else 0.0


@dataclass(frozen=True)
class _Each:
    """Every worker is late by its `durations`, minus `least`."""

    durations: Durations
    least: float = 0.0

    def __call__(self, rank: int, step: int, base: float) -> float:
        return self.durations(rank, step) - self.least


def parse_imbalance(text: str, *, seed: int, size: int) -> Imbalance:
    """Return the imbalance that `text` describes, among `size` workers. The terms of a sum are drawn independently.

    Raises `ConfigurationError` for an unknown form (with a list of the known ones), and for a wrong number. It raises
    one too for a rank or a count of workers that does not exist, and for a file that cannot be used.
    """
    pieces = _PLUS.split(text)
    seeds = [mixed(seed, _STREAM, place) for place in range(len(pieces))]
    return Imbalance(text, tuple(_term(piece.strip(), own, size) for piece, own in zip(pieces, seeds, strict=True)))


def _term(text: str, seed: int, size: int) -> Delay:
    match text.split(":"):
        case ["rank", rank, late]:
            return _one_rank(rank, late, text, size)
        case [count, seconds] if count.endswith("-of"):
            return _SomeOf(_count(count.removesuffix("-of"), text, size), size, seconds_from(seconds, text), seed)
    durations = parse_sampled(text, seed=seed) or parse_trace(text, seed=seed)
    if durations is None:
        raise ConfigurationError(f'"{text}" is not an imbalance; write {FORMS}')
    if isinstance(durations, Trace):
        durations.check_ranks(size)
    return _Each(durations, durations.least if isinstance(durations, Batches) else 0.0)


def _one_rank(rank: str, late: str, text: str, size: int) -> _OneRank:
    if not re.fullmatch(r"[0-9]+", rank):
        raise ConfigurationError(f'"{rank}" in "{text}" is not a rank, which is a whole number (at least 0)')
    if int(rank) >= size:
        there = f"there are {size} workers, ranks 0 to {size - 1}" if size > 1 else "there is one worker, rank 0"
        raise ConfigurationError(f'"{text}" is about rank {int(rank)}, but {there}')
    if not late.strip().startswith("x"):
        return _OneRank(int(rank), seconds=seconds_from(late, text))
    factor = factor_from(late, text)
    if factor < 1:
        raise ConfigurationError(f'"{text}" would make a worker faster; the factor must be x1 or more')
    return _OneRank(int(rank), share=factor - 1)


def _count(count: str, text: str, size: int) -> int:
    number = 1 if count == "one" else int(count) if re.fullmatch(r"[0-9]+", count) else 0
    if number < 1:
        raise ConfigurationError(f'"{text}" does not say how many workers are late; write one-of, 2-of, 3-of, …')
    if number > size:
        workers = f"{size} workers" if size > 1 else "one worker"
        raise ConfigurationError(
            f'"{text}" needs {number} different workers, but there {"are" if size > 1 else "is"} {workers}'
        )
    return number
