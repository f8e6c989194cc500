"""Rows of a model in stages, in figures, on the page, in the summary, in the data, in the trace and at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quorate.records.records import Recorder, records_of
from quorate.records.rows import Step
from quorate.report.closing import closing_line
from quorate.report.figures.lateness import meetings_of
from quorate.report.figures.time_use import ACTIVITIES, spent_in
from quorate.report.page import page
from quorate.report.reading.run import RunRecords, read_run
from quorate.report.summary import markdown, tables
from quorate.report.topics.stages import RankStages, StagesSummary, stages_of
from quorate.report.trace import activities
from tests.support.made_records import measured
from tests.support.made_summaries import made_summary
from tests.support.parsed_pages import parsed
from tests.support.raw_rows import RawRow

PIPELINE = {"schedule": "1f1b", "microbatches": 4, "stages": 2, "workers": 2}


def step(number: int, bubble: float | None, **more: Any) -> Step:
    begin = 10.0 + number
    parts: dict[str, Any] = {"compute": 0.5, "wait": 0.375, "update": 0.125, **more}
    if bubble is not None:
        parts |= {"bubble": bubble, "stage_out": 100 * number, "stage_in": 10}
    return Step(number, "1", number, begin, begin + 0.75, begin + 1.0, **parts)


def run_of(folder: Path, pipeline: Any = PIPELINE, shares: tuple[float | None, ...] = (0.25, 0.125)) -> RunRecords:
    for rank, share in enumerate(shares):
        recorder = Recorder(records_of(folder, rank))
        recorder.hold(RawRow("start", rank=rank, size=len(shares), host="tower", clock="monotonic", now=9.0, wall=1.0))
        pipelined = {**pipeline, "worker": rank} if isinstance(pipeline, dict) else pipeline
        recorder.hold(RawRow("distribute", optimizer="1", strategy="all-reduce", settings={}, pipeline=pipelined))
        for number in range(1, 4):
            recorder.step(step(number, share))
        recorder.close()
    return read_run(folder)


def test_the_share_of_steps_that_each_worker_waited(tmp_path: Path) -> None:
    stages = stages_of(measured(run_of(tmp_path), warm_up=1, seed=3))
    assert stages is not None
    assert (stages.schedule, stages.workers, stages.stages, stages.microbatches) == ("1f1b", 2, 2, 4)
    assert stages.formula == pytest.approx(1 / 5)
    assert stages.ranks == (
        RankStages(rank=0, worker=0, bubble=0.25, bytes_out=250.0, bytes_in=10.0),
        RankStages(rank=1, worker=1, bubble=0.125, bytes_out=250.0, bytes_in=10.0),
    )


@pytest.mark.parametrize(
    "pipeline", [None, 3, {}, {**PIPELINE, "stages": "2"}, {**PIPELINE, "workers": -1}, {**PIPELINE, "schedule": 1}]
)
def test_what_is_not_sound_says_nothing(tmp_path: Path, pipeline: Any) -> None:
    assert stages_of(measured(run_of(tmp_path, pipeline))) is None


def test_a_schedule_that_nobody_knows_has_no_formula(tmp_path: Path) -> None:
    stages = stages_of(measured(run_of(tmp_path, {**PIPELINE, "schedule": "2f2b"})))
    assert stages is not None and stages.formula is None


def test_rows_without_stages_do_not_speak_of_them(tmp_path: Path) -> None:
    assert not {"bubble", "stage_out", "stage_in"} & step(1, None).as_json().keys()
    assert {"bubble", "stage_out", "stage_in"} < step(1, 0.0).as_json().keys()
    assert stages_of(measured(run_of(tmp_path, shares=(None, None)))) is None
    assert "waited for each other" not in (closing_line(tmp_path) or "")


def test_a_bubble_is_waiting_for_others(tmp_path: Path) -> None:
    spent = spent_in(meetings_of(run_of(tmp_path).after(0), is_together=None))
    waiting = {times.rank: times.by[ACTIVITIES.index("waiting")] for times in spent}
    assert waiting == {0: 0.25, 1: 0.125}


def test_where_it_lies_in_the_trace() -> None:
    parts = activities(0, 750_000, 1_000_000, step(1, 0.25), 0)
    assert parts == [
        ("bubble", 0, 250_000),
        ("compute", 250_000, 750_000),
        ("communication", 750_000, 875_000),
        ("update", 875_000, 1_000_000),
    ]
    assert activities(0, 750_000, 1_000_000, step(1, 0.5), 0)[0] == ("bubble", 0, 250_000), "no more than fits"


def test_it_is_on_the_page_in_the_summary_and_in_the_data(tmp_path: Path) -> None:
    stages = stages_of(measured(run_of(tmp_path)))
    assert stages is not None
    summary = made_summary()
    arms = (summary.arms[0].model_copy(update={"stages": stages}), *summary.arms[1:])
    changed = summary.model_copy(update={"arms": arms})
    words = parsed(page(changed)).one("section", id="stages").text
    assert "1f1b, 2 stages, 4 micro-batches" in words and "25%" in words and "2 of 2" in words
    assert "waiting for other stages: rank 0 25%, rank 1 12% (by formula, for equal stages: 20%)" in markdown(changed)
    assert tables(changed)["stages"].splitlines()[1].endswith(",0,0,0.25,200.0,10.0")
    many = StagesSummary(
        **{**dict(stages), "ranks": tuple(stages.ranks[0].model_copy(update={"rank": n}) for n in range(20))}
    )
    arms = (summary.arms[0].model_copy(update={"stages": many}), *summary.arms[1:])
    assert "rank 15 25% and 4 more ranks" in markdown(summary.model_copy(update={"arms": arms}))


def test_the_line_at_the_end(tmp_path: Path) -> None:
    run_of(tmp_path)
    assert "stages waited for each other 12% to 25% of the time" in (closing_line(tmp_path) or "")
