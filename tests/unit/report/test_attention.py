"""Checks of sparse attention in the summary, on the page and in the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quorate.records.records import Recorder, records_of
from quorate.records.rows import Log, Step
from quorate.report.page import page
from quorate.report.reading.run import read_run
from quorate.report.summary import markdown, tables
from quorate.report.topics.attention import AttentionFigures, checks_of, summarize
from tests.support.made_records import measured
from tests.support.made_summaries import made_summary
from tests.support.parsed_pages import parsed


def run_of(folder: Path, *gaps: float, limit: float = 0.02) -> AttentionFigures | None:
    recorder = Recorder(records_of(folder, 0))
    recorder.hold(Step(step=1, optimizer="1", round=1, begin=0.0, arrive=0.5, end=1.0))
    recorder.hold(Log(step=1, time=1.0, values={"top1": 0.5}))
    for number, gap in enumerate(gaps, start=1):
        values: dict[str, Any] = {
            "attention_loss": 1.0 + gap, "dense_attention_loss": 1.0, "attention_gap": gap,
            "attention_taken_back": float(gap > limit),
        }  # fmt: skip
        recorder.hold(Log(step=100 * number, time=float(number), values=values))
    recorder.close()
    return checks_of(measured(read_run(folder), seed=3))


def test_the_checks_of_a_run(tmp_path: Path) -> None:
    figures = run_of(tmp_path, 0.01, -0.005, 0.03)
    assert figures is not None and figures.taken_back == 300
    assert [(check.step, check.gap, check.dense_loss) for check in figures.checks] == [
        (100, 0.01, 1.0), (200, -0.005, 1.0), (300, 0.03, 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize("gaps", [(), (float("nan"),)])
def test_without_a_finite_check_there_is_no_part(gaps: tuple[float, ...], tmp_path: Path) -> None:
    assert run_of(tmp_path, *gaps) is None


def test_the_page_shows_the_gap(tmp_path: Path) -> None:
    for name in "01":
        (tmp_path / name).mkdir()
    runs = [run_of(tmp_path / name, *gaps) for name, gaps in (("0", (0.01, 0.005)), ("1", (0.01, 0.03)))]
    part = summarize([run for run in runs if run is not None])
    assert (part.count, part.largest_gap, part.taken_back) == (4, 0.03, (200,))
    assert part.last_gap == pytest.approx(0.0175)
    summary = made_summary()
    arms = tuple(arm.model_copy(update={"attention": part if arm is summary.arms[0] else None}) for arm in summary.arms)
    summary = summary.model_copy(update={"arms": arms})
    words = parsed(page(summary)).one("section", id="attention").text
    assert "+1.75%" in words and "after step 200" in words and "The gap in loss over training" in words
    line = f"- {arms[0].name}: 4 checks, gap +1.75% in the last, at most +3.00%; dense after step 200."
    assert line in markdown(summary)
    rows = dict(tables(summary))["attention"].splitlines()
    assert rows == ["arm,step,seconds,loss,dense_loss,gap", *rows[1:]] and len(rows) == 3
