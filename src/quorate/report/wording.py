"""Figures as a reader takes them in: three digits and a unit."""

from __future__ import annotations

from collections.abc import Sequence

from quorate.core.errors import ranks_in_words

RANKS_NAMED = 4


def seconds_in_words(seconds: float) -> str:
    """`12.3 µs`, `182 ms`, `0.311 s`, `64.2 s`, `12 min 5 s`, `3 h 20 min`."""
    size = abs(seconds)
    if size < 0.9995e-3:
        return f"{_three_digits(seconds * 1e6)} µs"
    if size < 0.2495:
        return f"{_three_digits(seconds * 1e3)} ms"
    if size < 99.95:
        return f"{_three_digits(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def number_in_words(number: float) -> str:
    """`0.620`, `8.40`, `270`, `12,300`: three digits, or all before the point."""
    return _three_digits(number)


def bytes_in_words(count: float) -> str:
    """`40.0 kB`, `1.25 GB`: decimal units."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{_three_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def share_in_words(share: float) -> str:
    """`97%`; a tenth of a percent where it is small: `0.4%`, and no less: `<0.1%`."""
    if 0.0 < share < 0.0005:
        return "<0.1%"
    return f"{share:.0%}" if share >= 0.0995 or share == 0.0 else f"{share:.1%}"


def counted(number: int, noun: str) -> str:
    """`1 seed`, `5 seeds`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def range_in_words(least: int, most: int) -> str:
    """`3`, `2 to 3`."""
    return str(least) if least == most else f"{least} to {most}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def ranks_named(ranks: Sequence[int], size: int) -> str:
    """A few ranks by number, many by how many of all they are: `ranks 1 and 3`, `32 of 64 ranks`."""
    return ranks_in_words(ranks) if len(ranks) <= RANKS_NAMED else f"{len(ranks)} of {size} ranks"


def _three_digits(number: float) -> str:
    size = abs(number)
    if size >= 99.95 or number == 0.0:
        return f"{number:,.0f}"
    if size >= 9.995:
        return f"{number:.1f}"
    return f"{number:.2f}" if size >= 0.9995 else f"{number:#.3g}"
