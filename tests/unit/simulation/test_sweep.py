"""Which strategy is the best where, and the map of it."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

from quorate.simulation.figures import Figures
from quorate.simulation.grid import Row
from quorate.simulation.map_picture import map_of
from quorate.simulation.sweep import NEAR, Best, Place, Sweep, swept

FIGURES = Figures(
    rounds_per_second=1.0, steps_per_second=1.0, no_wait_share=1.0, contributors=1.0, staleness_p50=0.0,
    staleness_p95=0.0, waiting_share=0.0, communication_share=0.0, bytes_per_step=0.0, step_p50=1.0, step_p95=1.0,
    seconds=1.0,
)  # fmt: skip


def row(strategy: str, workers: int, rate: float, **others: Any) -> Row:
    figures = replace(FIGURES, steps_per_second=rate)
    values: dict[str, Any] = {"imbalance": None, "network": "50us:10Gbit", **others}
    return Row(strategy=strategy, workers=workers, figures=figures, **values)


ROWS = [
    *(row("a", workers, 10.0) for workers in (8, 64)),
    row("b", 8, 10.0 * NEAR - 0.01),
    row("b", 64, 40.0),
    row("a", 8, 99.0, is_recorded=True),
]


def test_the_best_of_each_cell() -> None:
    """Where two are as good, the first one is the best; recorded rows do not count."""
    sweep = swept(ROWS, ["a", "b"], {})
    few, many = (sweep.at("50us:10Gbit", None, workers) for workers in (8, 64))
    assert few is not None and (few.strategy, few.gain) == ("a", 1.0)
    assert many is not None and (many.strategy, many.gain) == ("b", 4.0)
    assert list(sweep.winners) == ["a", "b"] and sweep.at("50us:10Gbit", "one-of:1s", 8) is None


def test_a_strategy_that_needs_more_passes_has_to_be_faster() -> None:
    many = swept(ROWS, ["a", "b"], {"b": 5.0}).at("50us:10Gbit", None, 64)
    assert many is not None and many.strategy == "a" and many.rates == {"a": 10.0, "b": 8.0}
    missed = swept(ROWS, ["a", "b"], {"b": float("inf")})
    assert list(missed.winners) == ["a"]


@pytest.fixture
def sweep() -> Sweep:
    return swept(ROWS, ["a", "b"], {"b": 2.0})


def test_the_map_as_svg_has_each_cell_in_words(sweep: Sweep) -> None:
    place = Place(network="50us:10Gbit", imbalance=None, workers=64)
    drawn = map_of(sweep, "A <title>", "about", {place: None}, ".svg").decode()
    for words in ("A &lt;title&gt;", "50us:10Gbit", "nobody late", ">A<", ">B x2<", "2 times the passes (measured)"):
        assert words in drawn
    assert drawn.count("stroke-width") == 1 and "framed cells: also measured" in drawn


def test_the_map_names_the_best_strategy_of_real_runs(sweep: Sweep) -> None:
    place = Place(network="50us:10Gbit", imbalance=None, workers=64)
    real = Best(place=place, strategy="c", gain=1.5, rates={})
    drawn = map_of(replace(sweep, strategies=["a", "b", "c"]), "title", "about", {place: real}, ".svg").decode()
    for words in (">B x2<", ">real: C x1.5<", "also measured, in the second line"):
        assert words in drawn


def test_the_map_as_png_can_be_read(sweep: Sweep) -> None:
    from PIL import Image

    with Image.open(io.BytesIO(map_of(sweep, "title", "about", {}, ".png"))) as image:
        assert image.format == "PNG" and image.width >= 1500
        assert len(image.convert("RGB").getcolors(1 << 20) or ()) > 10
