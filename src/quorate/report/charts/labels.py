"""Names at the ends of curves: beside the last point, where they hide neither a curve nor each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from quorate.report.charts import drawing

Point = tuple[float, float]

SIZE = 13.0
_TALL = 16.0
_GAP = 9.0
"""The distance between the last point and the name."""
_ROWS = 4
"""The number of rows above and below its end in which a name may be put."""
_BESIDE = 7.0
"""The least distance between two names in a row."""
_APART = 4.0
"""The distance between points that are considered along a curve."""
_COVERS, _ENDS, _HIDES = 1000.0, 60.0, 3.0
"""The costs of covering another name, of hiding the end of a curve, and a point of one, in units of distance."""


@dataclass(frozen=True, kw_only=True)
class Label:
    """The place of a name: its left end, and its base line."""

    words: str
    x: float
    y: float

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom."""
        wide = drawing.text_width(self.words, SIZE)
        return self.x, self.y - 0.75 * _TALL, self.x + wide, self.y + 0.25 * _TALL


def placed(
    names: Sequence[str], curves: Sequence[Sequence[Point]], *, left: float, right: float, top: float, bottom: float
) -> list[Label]:
    """Return a label for each curve, as near to its last point as possible; curves are places on the drawing.

    Among the places around an end, the label takes one where it covers no other, hides little of the curves, and is
    near. Curves that end furthest right choose first: they have the least room.
    """
    dots = [list(_along(curve)) for curve in curves]
    ends = [curve[-1] for curve in curves]
    labels: dict[int, Label] = {}
    for place in sorted(range(len(names)), key=lambda place: (-curves[place][-1][0], curves[place][-1][1])):
        candidates = _candidates(names[place], curves[place][-1], left, right, top, bottom)
        labels[place] = min(
            candidates, key=lambda candidate: candidate[0] + _cost(candidate[1], dots, ends, labels.values())
        )[1]
    return [labels[place] for place in range(len(names))]


def _along(curve: Sequence[Point]) -> Iterator[Point]:
    """Yield points close enough to each other that no label fits between two of them."""
    yield from curve[:1]
    for (x1, y1), (x2, y2) in pairwise(curve):
        count = max(1, int(max(abs(x2 - x1), abs(y2 - y1)) / _APART))
        yield from ((x1 + (x2 - x1) * n / count, y1 + (y2 - y1) * n / count) for n in range(1, count + 1))


def _candidates(
    words: str, end: Point, left: float, right: float, top: float, bottom: float
) -> Iterator[tuple[float, Label]]:
    """Yield labels right of the end, in its row or near ones, or centred over and under it, each after its distance."""
    x, y = end
    wide = drawing.text_width(words, SIZE)
    for row in range(2 * _ROWS + 1):
        shift = (row + 1) // 2 * _TALL * (1 if row % 2 else -1)
        base = min(max(y + 4.0 + shift, top - 4.0), bottom - 3.0)
        for begin in (x + _GAP, x - wide / 2.0) if shift else (x + _GAP,):
            at = min(max(begin, left), right - wide)
            yield abs(shift) + abs(at - x - _GAP) / 4.0, Label(words=words, x=at, y=base)


def _cost(label: Label, dots: Sequence[Sequence[Point]], ends: Sequence[Point], others: Iterable[Label]) -> float:
    box = label.box
    hidden = sum(_within(box, dot) for curve in dots for dot in curve)
    covered = sum(_overlap(box, other.box) for other in others)
    marks = sum(_within(box, end) for end in ends)
    return _COVERS * covered + _HIDES * hidden + _ENDS * marks


def _within(box: tuple[float, float, float, float], dot: Point) -> bool:
    return box[0] - 2.0 <= dot[0] <= box[2] + 2.0 and box[1] <= dot[1] <= box[3]


def _overlap(box: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return (
        box[0] < other[2] + _BESIDE
        and other[0] < box[2] + _BESIDE
        and box[1] < other[3] - 1.0
        and other[1] + 1.0 < box[3]
    )
