"""The map of a sweep: which strategy is the best where, as SVG or PNG.

A panel for each network; in it a row for each imbalance and a column for each number of workers. A cell has the letter
and the colour of its best strategy, and the gain over the first strategy. Cells with a recorded run have a frame, and
measured ones a second line with the strategy that was the best there in real runs.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from quorate.core.installed import missing_extra
from quorate.report.charts.drawing import shortened
from quorate.report.charts.markup import Markup, element
from quorate.simulation.sweep import Best, Place, Sweep

COLOURS = ("#cfd8dc", "#f6c667", "#8ecae6", "#90be6d", "#f4978e", "#b8a1e3", "#e9d8a6", "#84dcc6")
"""Light enough for black letters; others repeat them."""
_PAPER, _INK, _FAINT = "#ffffff", "#1c2733", "#5b6770"
_MARGIN, _CELL, _TALL, _HEAD, _LETTER = 24.0, 92.0, 40.0, 92.0, 13.0
_PER_ROW = 2
_NAMES = 190.0
"""Width of the names of imbalances."""
_SCALE = 2
"""Pixels of a PNG for each unit."""


@dataclass(frozen=True)
class _Box:
    x: float
    y: float
    width: float
    height: float
    fill: str
    frame: str = ""


@dataclass(frozen=True)
class _Words:
    x: float
    y: float
    """The base line."""
    words: str
    size: float = _LETTER
    anchor: str = "start"
    fill: str = _INK
    is_bold: bool = False


_Shape = _Box | _Words
Measured = Mapping[Place, Best | None]
"""The places with a recorded run, each with its best strategy in real runs where several were measured."""


def map_of(sweep: Sweep, title: str, about: str, measured: Measured, suffix: str) -> bytes:
    """Return the map in the format of `suffix`, .svg or .png; cells in `measured` are framed, with its best strategies.

    Raises `MissingExtra` for a PNG without Pillow.
    """
    width, height, shapes = _drawn(sweep, title, about, measured)
    return _png(width, height, shapes) if suffix == ".png" else _svg(width, height, shapes, title).encode()


def _drawn(sweep: Sweep, title: str, about: str, measured: Measured) -> tuple[float, float, Sequence[_Shape]]:
    """Return width, height, and all shapes."""
    networks = list(dict.fromkeys(best.place.network for best in sweep.best))
    late = list(dict.fromkeys(best.place.imbalance for best in sweep.best))
    counts = sorted({best.place.workers for best in sweep.best})
    winners = {*sweep.winners, *(best.strategy for best in measured.values() if best is not None)}
    letters = {name: _letter(place) for place, name in enumerate(name for name in sweep.strategies if name in winners)}
    per_row = min(_PER_ROW, len(networks))
    panel = _NAMES + _CELL * len(counts) + 20
    tall = 62 + _TALL * len(late)
    width = max(760.0, 2 * _MARGIN + panel * per_row)
    shapes: list[_Shape] = [
        _Words(_MARGIN, 38, shortened(title, width - 2 * _MARGIN, 18), 18, is_bold=True),
        _Words(_MARGIN, 60, shortened(about, width - 2 * _MARGIN, 12), 12, fill=_FAINT),
    ]
    for number, network in enumerate(networks):
        left, top = _MARGIN + panel * (number % per_row), _HEAD + tall * (number // per_row)
        shapes.append(_Words(left, top, network, 14, is_bold=True))
        for place, count in enumerate(counts):
            x = left + _NAMES + _CELL * (place + 0.5)
            shapes.append(_Words(x, top + 20, f"{count:,}", 12, "middle", _FAINT))
        for line, imbalance in enumerate(late):
            y = top + 28 + _TALL * line
            shapes.append(_Words(left, y + 25, shortened(imbalance or "nobody late", _NAMES - 12, 13)))
            for place, count in enumerate(counts):
                best = sweep.at(network, imbalance, count)
                if best is not None:
                    at = left + _NAMES + _CELL * place, y
                    shapes += _cell(*at, letters, best, measured.get(best.place), best.place in measured)
    foot = _HEAD + tall * -(-len(networks) // per_row)
    shapes += _legend(sweep, letters, foot)
    notes = list(_notes(sweep, measured))
    below = foot + 26 * len(letters) + 12
    shapes += [_Words(_MARGIN, below + 20 * place, note, 12, fill=_FAINT) for place, note in enumerate(notes)]
    return width, below + 20 * len(notes) + 6, shapes


def _cell(
    x: float, y: float, letters: Mapping[str, str], best: Best, real: Best | None, is_framed: bool
) -> Iterator[_Shape]:
    colour = COLOURS[list(letters).index(best.strategy) % len(COLOURS)]
    yield _Box(x + 2, y + 2, _CELL - 4, _TALL - 4, colour, _INK if is_framed else "")
    middle = x + _CELL / 2
    yield _Words(middle, y + (25 if real is None else 18), _in_words(best, letters), 13, "middle", is_bold=True)
    if real is not None:
        yield _Words(middle, y + 33, f"real: {_in_words(real, letters)}", 11, "middle")


def _in_words(best: Best, letters: Mapping[str, str]) -> str:
    letter = letters[best.strategy]
    return letter if abs(best.gain - 1) < 0.005 else f"{letter} x{best.gain:.3g}"


def _legend(sweep: Sweep, letters: dict[str, str], top: float) -> Iterator[_Shape]:
    for place, (name, letter) in enumerate(letters.items()):
        y = top + 26 * place
        yield _Box(_MARGIN, y - 15, 30, 21, COLOURS[place % len(COLOURS)])
        yield _Words(_MARGIN + 15, y, letter, 13, "middle", is_bold=True)
        passes = sweep.passes.get(name)
        known = "" if passes is None else f", {passes:.3g} times the passes (measured)"
        yield _Words(_MARGIN + 42, y, f"{name}{known}")


def _notes(sweep: Sweep, measured: Measured) -> Iterator[str]:
    first = sweep.strategies[0]
    measure = "Rate of learning" if sweep.passes else "Steps per second, not learning"
    yield f"{measure}: letter of the best strategy, and its factor over {first}. Columns: workers."
    real = any(best is not None for best in measured.values())
    also = "; framed cells: also measured" + (", in the second line" if real else "") if measured else ""
    yield f"Simulated, not measured{also}."


def _letter(place: int) -> str:
    return ascii_uppercase[place] if place < len(ascii_uppercase) else f"{place + 1}"


def _svg(width: float, height: float, shapes: Sequence[_Shape], title: str) -> str:
    parts = [element("rect", x=0, y=0, width=width, height=height, fill=_PAPER)]
    for shape in shapes:
        if isinstance(shape, _Box):
            parts.append(
                element(
                    "rect", x=shape.x, y=shape.y, width=shape.width, height=shape.height, rx=4, fill=shape.fill,
                    stroke=shape.frame or None, stroke_width=2.5 if shape.frame else None,
                )
            )  # fmt: skip
        else:
            weight = 600 if shape.is_bold else None
            parts.append(
                element(
                    "text", shape.words, x=shape.x, y=shape.y, font_size=shape.size, fill=shape.fill,
                    text_anchor=None if shape.anchor == "start" else shape.anchor, font_weight=weight,
                )
            )  # fmt: skip
    body = Markup("".join(parts))
    return element(
        "svg", body, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width:g} {height:g}", width=width,
        height=height, font_family="system-ui, sans-serif", role="img", aria_label=title,
    )  # fmt: skip


def _png(width: float, height: float, shapes: Sequence[_Shape]) -> bytes:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise missing_extra("a map as PNG needs Pillow", extra="images", package="Pillow") from None
    image = Image.new("RGB", (round(width * _SCALE), round(height * _SCALE)), _PAPER)
    draw = ImageDraw.Draw(image)
    for shape in shapes:
        x, y = shape.x * _SCALE, shape.y * _SCALE
        if isinstance(shape, _Box):
            corner = x + shape.width * _SCALE, y + shape.height * _SCALE
            draw.rounded_rectangle((x, y, *corner), 8, shape.fill, shape.frame or None, 5 if shape.frame else 0)
        else:
            font = ImageFont.load_default(shape.size * _SCALE)
            anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
            width_of_stroke = 1 if shape.is_bold else 0
            draw.text((x, y), shape.words, shape.fill, font, anchor, stroke_width=width_of_stroke)
    data = io.BytesIO()
    image.save(data, "PNG", optimize=True)
    return data.getvalue()
