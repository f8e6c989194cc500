"""The published table of Megatron against what is foreseen of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from quorate.planning.published import EFFICIENCY, PEAK, TABLE, Row, foreseen, teraflops

known = cache(foreseen)
TOLERANCE = 0.065
"""For every row; one figure was fitted to all ten."""


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.billions:g}")
def test_each_row_is_near(row: Row) -> None:
    prediction = known(row)
    assert teraflops(row, prediction) == pytest.approx(row.teraflops, rel=TOLERANCE)
    assert prediction.memory < 80e9, "it was run"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.billions:g}")
def test_the_rows_hold_together(row: Row) -> None:
    """Parameters are those of the sizes; batches divide."""
    assert row.sizes.numbers / 1e9 == pytest.approx(row.billions, abs=0.06)
    layout = row.layout
    assert layout.workers == row.gpus
    assert layout.replicas * layout.microbatches * row.microbatch == row.batch


def test_the_largest_is_at_half_of_the_peak() -> None:
    """52 % by the table."""
    row = TABLE[-1]
    assert teraflops(row, known(row)) * 1e12 / PEAK == pytest.approx(0.52, abs=0.04)


def test_the_fitted_figure_is_the_best_one() -> None:
    smallest, largest = TABLE[:4], TABLE[-1:]

    def farthest(rows: Sequence[Row], change: float) -> float:
        foretold = [(row, foreseen(row, EFFICIENCY + change) if change else known(row)) for row in rows]
        return max(abs(teraflops(row, prediction) / row.teraflops - 1) for row, prediction in foretold)

    # A figure that fits some rows worse than this one fits all is worse.
    assert farthest((*smallest, *largest), 0.0) < min(farthest(largest, -0.03), farthest(smallest, 0.03))
