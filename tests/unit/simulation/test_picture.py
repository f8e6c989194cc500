"""The picture, of rows made up: many strategies keep apart without colour, and names are shown as they are."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from quorate.simulation.figures import Figures
from quorate.simulation.grid import Row
from quorate.simulation.picture import picture

SVG = "{http://www.w3.org/2000/svg}"


def row(strategy: str, workers: int, *, is_recorded: bool = False) -> Row:
    figures = Figures(
        rounds_per_second=None,
        steps_per_second=10.0 * workers,
        no_wait_share=0.9,
        contributors=None,
        staleness_p50=None,
        staleness_p95=None,
        waiting_share=0.1,
        communication_share=0.0,
        bytes_per_step=100.0,
        step_p50=0.1,
        step_p95=0.1,
        seconds=1.0,
    )
    return Row(
        strategy=strategy, workers=workers, imbalance=None, network="x", figures=figures, is_recorded=is_recorded
    )


@pytest.mark.parametrize("counts", [(8,), (8, 64)])
def test_every_one_of_many_strategies_is_dashed_in_its_own_way(counts: tuple[int, ...]) -> None:
    rows = [row(f"strategy-{number}", workers) for number in range(10) for workers in counts]
    tree = ElementTree.fromstring(picture(rows, "many"))
    lines = [element for element in tree.iter() if element.get("class") in ("line", "outline")]
    assert len(lines) == (10 if len(counts) == 1 else 30)
    assert all(element.get("stroke-dasharray") for element in lines)
    assert len({element.get("stroke-dasharray") for element in lines}) >= 7  # then markers and colours tell them apart


def test_what_was_recorded_is_full() -> None:
    tree = ElementTree.fromstring(picture([row("a", 8, is_recorded=True), row("a", 8)], "one"))
    (solid,) = [element for element in tree.iter() if element.get("class") == "solid"]
    assert solid.get("stroke-dasharray") is None
    words = [element.text for element in tree.iter(f"{SVG}text")]
    assert "a (recorded)" in words and "a" in words


def test_names_are_no_markup() -> None:
    tree = ElementTree.fromstring(picture([row("<b>&", 8)], "a < b & c"))
    assert "<b>&" in [element.text for element in tree.iter(f"{SVG}text")]
