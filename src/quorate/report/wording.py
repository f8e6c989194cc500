"""Figures for readers: three digits and a unit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from quorate.core.errors import ranks_in_words

RANKS_NAMED = 4
Words = Callable[[float], str]
_SECONDS = (("µs", 1e-6, 0.0), ("ms", 1e-3, 0.9995e-3), ("s", 1.0, 0.2495), ("min", 60.0, 600.0), ("h", 3600.0, 36e3))
_BYTES = (("B", 1.0, 0.0), ("kB", 1e3, 1e3), ("MB", 1e6, 1e6), ("GB", 1e9, 1e9))
"""Name, size, and the greatest value from which on figures side by side are written in it."""
_FAR_BELOW = 0.01
"""A share of a unit: smaller values are written in a smaller unit."""
_MORE = 2
"""Digits that the greatest of figures side by side may have beyond the requested, so that the least has some."""


def seconds_in_words(seconds: float) -> str:
    """`12.3 µs`, `182 ms`, `0.311 s`, `64.2 s`, `12 min 5 s`, `3 h 20 min`."""
    size = abs(seconds)
    if size < 0.9995e-3:
        return f"{number_in_words(seconds * 1e6)} µs"
    if size < 0.2495:
        return f"{number_in_words(seconds * 1e3)} ms"
    if size < 99.95:
        return f"{number_in_words(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def number_in_words(number: float) -> str:
    """`0.620`, `8.40`, `270`, `12,300`: three digits, or all before the point."""
    size = abs(number)
    if size >= 99.95 or number == 0.0:
        return f"{number:,.0f}"
    if size >= 9.995:
        return f"{number:.1f}"
    return f"{number:.2f}" if size >= 0.9995 else f"{number:#.3g}"


def rate_in_words(rate: float) -> str:
    """`8.40`, `270`, `12,300`: three digits, and zeros after them."""
    return number_in_words(float(f"{rate:.3g}"))


def time_left_in_words(seconds: float) -> str:
    """`1 s`, `42 s`, `12 min 5 s`: an estimate, in whole seconds."""
    return f"{max(1, round(seconds))} s" if seconds < 99.5 else seconds_in_words(round(seconds))


def bytes_in_words(count: float) -> str:
    """`40.0 kB`, `1.25 GB`: decimal units."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{number_in_words(count / size)} {unit}"
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
    """Name a few ranks by number, many by their share: `ranks 1 and 3`, `32 of 64 ranks`."""
    return ranks_in_words(ranks) if len(ranks) <= RANKS_NAMED else f"{len(ranks)} of {size} ranks"


def seconds_alike(values: Iterable[float | None]) -> Words:
    """Return the form of times in one column or chart: in one unit, with one number of digits."""
    return _in_one_unit(values, _SECONDS)


def bytes_alike(values: Iterable[float | None]) -> Words:
    """Return the form of sizes in one column or chart; bytes themselves are whole."""
    return _in_one_unit(values, _BYTES)


def numbers_alike(values: Iterable[float | None], digits: int = 3) -> Words:
    """Return the form of numbers in one column: the greatest has so many digits; far apart ones are powers of ten."""
    sizes = _known(values)
    if sizes and ((sizes[-1] > 1e4 * sizes[0] and sizes[0] < 1.0) or sizes[-1] < 1e-4):
        return lambda value: f"{value:.{digits - 1}e}"
    places = _places(sizes, digits)
    return lambda value: f"{value:,.{places}f}"


def shares_alike(values: Iterable[float | None]) -> Words:
    """Return the form of shares in one column: `97%`, and a tenth of a percent if one is small."""
    places = 1 if any(value < 0.0995 for value in _known(values)) else 0
    return lambda share: "<0.1%" if 0.0 < share < 0.0005 and places else f"{share:.{places}%}"


def ratios_alike(values: Iterable[float | None]) -> Words:
    """Return the form of ratios in one column: `1.31×`."""
    places = 2 if max(_known(values), default=0.0) < 99.5 else 0
    return lambda ratio: f"{ratio:,.{places}f}×"


def _in_one_unit(values: Iterable[float | None], units: Sequence[tuple[str, float, float]]) -> Words:
    sizes = _known(values)
    greatest = sizes[-1] if sizes else 0.0
    place = max((at for at, (_, _, least) in enumerate(units) if greatest >= least), default=0)
    while place and sizes[0] < _FAR_BELOW * units[place][1]:
        place -= 1
    name, size, _ = units[place]
    places = 0 if name == "B" else _places([value / size for value in sizes], 3)
    return lambda value: f"{value / size:,.{places}f} {name}"


def _known(values: Iterable[float | None]) -> list[float]:
    return sorted(abs(value) for value in values if value is not None and math.isfinite(value) and value != 0.0)


def _places(sizes: Sequence[float], digits: int) -> int:
    """Return digits after the point: `digits` in all for the greatest, one fewer for the least if not too many."""
    if not sizes:
        return 0
    least, most = (digits - 1 - math.floor(math.log10(value) + 1e-9) for value in (sizes[0], sizes[-1]))
    return max(0, min(max(most, least - 1), most + _MORE))
