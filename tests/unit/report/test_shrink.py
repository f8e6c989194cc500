"""Rows of models that are made smaller, in the summary, on the page and in the data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorate.records.choice_rows import Shrunk
from quorate.records.records import Recorder, records_of
from quorate.records.rows import Log
from quorate.report.page import page
from quorate.report.reading.run import read_run
from quorate.report.schema import Metric
from quorate.report.summary import markdown, tables
from quorate.report.topics.shrink import ModelSize, RunSizes, ShrinkSummary, sizes_of, summarize
from tests.support.made_records import measured
from tests.support.made_summaries import made_summary
from tests.support.parsed_pages import parsed
from tests.support.raw_rows import RawRow

BEFORE = Shrunk(
    step=5, time=5.0, optimizer="1", moment="before", change="cluster", parameters=100, vector_bytes=400,
    file_bytes=500, operations=64.0, forward=0.002, backward=0.004,
)  # fmt: skip


def run_of(folder: Path, *further: Shrunk, metric: str | None = "top1") -> RunSizes | None:
    recorder = Recorder(records_of(folder, 0))
    recorder.hold(RawRow("shrunk", moment="before"))
    for time in (2.0, 4.0, 8.0):
        recorder.hold(Log(step=int(time), time=time, values={"top1": time / 10}))
    for row in further:
        recorder.hold(row)
    recorder.close()
    run = measured(read_run(folder), seed=3)
    return sizes_of(replace(run, metric=metric))


def test_the_model_before_and_after(tmp_path: Path) -> None:
    after = [
        replace(BEFORE, moment="smaller", change="cluster", file_bytes=None),
        replace(BEFORE, moment="undone", change="cluster"),
        replace(BEFORE, moment="end", time=9.0, parameters=10, vector_bytes=40, file_bytes=100),
    ]
    sizes = run_of(tmp_path, BEFORE, *after)
    assert sizes is not None and (sizes.steps, sizes.undone) == ("cluster", ["cluster"])
    assert (sizes.before.quality, sizes.after.quality) == (0.4, 0.8)
    assert (sizes.before.parameters, sizes.after.parameters, sizes.after.file_bytes) == (100, 10, 100)


def test_a_run_that_did_not_end_has_no_sizes(tmp_path: Path) -> None:
    assert run_of(tmp_path, BEFORE) is None


def test_without_a_metric_there_is_no_quality(tmp_path: Path) -> None:
    sizes = run_of(tmp_path, BEFORE, replace(BEFORE, moment="end"), metric=None)
    assert sizes is not None and sizes.after.quality is None


def size(moment: Any, factor: float, **others: Any) -> ModelSize:
    known = {"operations": 1000 * factor, "forward_seconds": 0.002, "backward_seconds": 0.004, "quality": 0.9}
    numbers = {"parameters": 100 * factor, "vector_bytes": 400 * factor, "file_bytes": 8000 * factor}
    return ModelSize(moment=moment, **{**numbers, **known, **others})


def test_means_over_seeds() -> None:
    runs = [
        RunSizes("cluster", size("before", 1), size("after", x), ["cluster"] if x > 0.5 else []) for x in (0.2, 0.6)
    ]
    summary = summarize(runs)
    assert summary.after.file_bytes == pytest.approx(3200) and summary.undone == ("cluster",)
    unknown = RunSizes("cluster", size("before", 1), size("after", 1, quality=None), [])
    assert summarize([runs[0], unknown]).after.quality is None


def test_the_page_shows_quality_over_bytes() -> None:
    summary = made_summary()
    full = ShrinkSummary(steps="none", before=size("before", 1), after=size("after", 1), undone=())
    small = ShrinkSummary(steps="cluster", before=size("before", 1), after=size("after", 0.1), undone=("cluster",))
    arms = tuple(
        arm.model_copy(update={"shrink": part}) for arm, part in zip(summary.arms, (full, small, None), strict=False)
    )
    summary = summary.model_copy(update={"arms": arms, "metric": Metric(name="top1", higher_is_better=True)})
    words = parsed(page(summary)).one("section", id="shrink").text
    assert "8.00 kB" in words and "top1 over packed file" in words and "top1 over vector of a step" in words
    assert f"A guard has undone steps of {arms[1].name} (cluster)" in words
    written = markdown(summary)
    assert f"- {arms[0].name}: full model, 100 parameters, packed file 8.00 kB, quality 0.9000." in written
    assert "parameters 100 to 10, packed file 8.00 kB to 800 B (10.00×), quality 0.9000, undone by a guard" in written
    rows = dict(tables(summary))["shrink"].splitlines()
    assert rows[0].startswith("arm,moment,parameters,vector_bytes,file_bytes") and len(rows) == 5
