"""The traffic of layers along the tensor axis, in figures, on the page and in the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quorate.records.records import Recorder, records_of
from quorate.report.page import page
from quorate.report.reading.run import RunRecords, read_run
from quorate.report.summary import tables
from quorate.report.topics.layers import layers_of
from quorate.report.wording import bytes_in_words
from tests.support.made_records import measured
from tests.support.made_summaries import made_summary
from tests.support.parsed_pages import parsed
from tests.support.raw_rows import RawRow

SENT = {"blocks.0.up": 3000, "head": 5000, "blocks.1.up": 3000}


def run_of(folder: Path, sent: Any = SENT) -> RunRecords:
    recorder = Recorder(records_of(folder, 0))
    recorder.hold(RawRow("start", rank=0, size=1, host="tower", clock="monotonic", now=9.0, wall=1.0))
    recorder.hold(RawRow("distribute", optimizer="1", strategy="all-reduce", settings={}, tensor=2))
    recorder.hold(RawRow("layers", step=1, time=10.0, optimizer="1", sent=sent))
    recorder.close()
    return read_run(folder)


def test_the_busiest_first(tmp_path: Path) -> None:
    layers = layers_of(measured(run_of(tmp_path), seed=3))
    assert layers is not None and (layers.seed, layers.rank, layers.tensor) == (3, 0, 2)
    assert [(layer.name, layer.bytes_out) for layer in layers.layers] == [
        ("head", 5000),
        ("blocks.0.up", 3000),
        ("blocks.1.up", 3000),
    ]


@pytest.mark.parametrize("sent", [3, None, ["a"], {"a": "many"}])
def test_rows_that_say_nothing(sent: Any, tmp_path: Path) -> None:
    assert layers_of(measured(run_of(tmp_path, sent))) is None


def test_on_the_page_and_in_the_data(tmp_path: Path) -> None:
    layers, summary = layers_of(measured(run_of(tmp_path))), made_summary()
    arms = (summary.arms[0].model_copy(update={"layers": layers}), *summary.arms[1:])
    changed = summary.model_copy(update={"arms": arms})
    words = parsed(page(changed)).one("section", id="layers").text
    assert "head" in words and bytes_in_words(5000) in words and "45%" in words
    assert tables(changed)["layers"].splitlines()[1].endswith(",head,5000")
