"""Replicas that differ, in the report: distances over time, and the quality of single ones."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from quorate.records.records import records_of
from quorate.report.page import page
from quorate.report.reading.run import read_run
from quorate.report.summary import summarize
from quorate.report.topics.replicas import distances_of
from tests.support.made_records import make_run


def with_distances(folder: Path, ranks: int) -> Path:
    """A run whose rank r was (r + 1) / number away from a mean of norm 10, at evaluations 1 and 2."""
    make_run(folder)
    begin = read_run(folder).begin
    for rank in range(ranks):
        with open(records_of(folder, rank), "a", encoding="utf-8") as file:
            for number in (1, 2):
                row = {"kind": "distance", "step": 5 * number, "time": begin + number, "optimizer": "1", "norm": 10.0}
                file.write(json.dumps({**row, "distance": (rank + 1) / number}) + "\n")
    return folder


def test_the_distance_is_the_root_mean_square_as_a_share_of_the_norm(tmp_path: Path) -> None:
    make_run(tmp_path)
    ranks = len(read_run(tmp_path).ranks)
    run = read_run(with_distances(tmp_path, ranks))
    square = sum((rank + 1) ** 2 for rank in range(ranks)) / ranks
    assert [far for _, _, far in distances_of(run)] == pytest.approx([math.sqrt(square) / 10, math.sqrt(square) / 20])


def test_evaluations_that_not_all_have_noted_are_left_out(tmp_path: Path) -> None:
    assert distances_of(read_run(with_distances(tmp_path, 1))) == []


def test_the_page_has_a_section_only_where_replicas_differ(tmp_path: Path) -> None:
    make_run(tmp_path / "equal")
    summary = summarize(tmp_path / "equal")
    assert summary.arms[0].replicas is None
    assert 'id="replicas"' not in page(summary)
    ranks = len(read_run(tmp_path / "equal").ranks)
    summary = summarize(with_distances(tmp_path / "apart", ranks))
    assert summary.arms[0].replicas is not None
    assert len(summary.arms[0].replicas.distance[0].quality) == 2
    assert 'id="replicas"' in page(summary)
