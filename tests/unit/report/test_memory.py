"""Memory rows, in figures, on the page and in the summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quorate.records.host_rows import Memory
from quorate.records.records import Recorder, records_of
from quorate.report.page import page
from quorate.report.reading.run import read_run
from quorate.report.summary import markdown, tables
from quorate.report.topics.memory import MemorySummary, RankMemory, memory_of
from tests.support.made_records import measured
from tests.support.made_summaries import made_summary
from tests.support.parsed_pages import parsed
from tests.support.raw_rows import RawRow

FORESEEN = {"parameters": 4_000_000, "gradients": 4_000_000, "optimizer": 8_000_000}


def run_of(folder: Path, *, foreseen: Any = FORESEEN, **others: Any) -> MemorySummary | None:
    recorder = Recorder(records_of(folder, 0))
    recorder.hold(Memory(time=0.0, step=0, resident=200, live=50, peak_live=50))
    fields = {"foreseen": foreseen} if foreseen else {}
    recorder.hold(RawRow("distribute", optimizer="1", zero=3, shards=2, **fields, **others))
    recorder.hold(Memory(time=5.0, step=9, resident=400, live=60, peak_live=90, gpu=7, peak_gpu=8))
    recorder.hold(RawRow("memory", time="never"))
    recorder.hold(RawRow("end", time=9.0, steps=9, peak_bytes=500))
    recorder.close()
    return memory_of(measured(read_run(folder), seed=3))


def test_the_most_and_what_was_foreseen(tmp_path: Path) -> None:
    memory = run_of(tmp_path)
    assert memory is not None and (memory.seed, memory.zero, memory.shards) == (3, 3, 2)
    assert memory.ranks == (
        RankMemory(
            rank=0, resident_before=200, peak_resident=500, live_before=50, peak_live=90, peak_gpu=8, **FORESEEN
        ),
    )


def test_optimizers_add_up_and_a_resumed_one_counts_once(tmp_path: Path) -> None:
    recorder = Recorder(records_of(tmp_path, 0))
    for name in ("1", "2", "1"):
        recorder.hold(RawRow("distribute", optimizer=name, foreseen=FORESEEN))
    recorder.close()
    memory = run_of(tmp_path)
    assert memory is not None
    assert (memory.ranks[0].parameters, memory.ranks[0].optimizer) == (8_000_000, 16_000_000)


def test_what_is_not_known_stays_unknown(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    memory = run_of(tmp_path / "a", foreseen={"parameters": 4, "gradients": 4})
    assert memory is not None and (memory.ranks[0].gradients, memory.ranks[0].optimizer) == (4, None)
    memory = run_of(tmp_path, foreseen=None)
    assert memory is not None and memory.ranks[0].parameters is None
    assert memory_of(measured(read_run(tmp_path / "none"))) is None


def test_it_is_on_the_page_in_the_summary_and_in_the_data(tmp_path: Path) -> None:
    summary = made_summary()
    arms = (summary.arms[0].model_copy(update={"memory": run_of(tmp_path)}), *summary.arms[1:])
    changed = summary.model_copy(update={"arms": arms})
    section = parsed(page(changed)).one("section", id="memory")
    for words in ("3 over 2", "4.00 MB", "8.00 MB", "16.0 MB", "90 B", "500 B", "8 B"):
        assert words in section.text
    text = markdown(changed)
    assert "rank 0 peaked at 90 B live, 500 B resident, 8 B on the GPU" in text
    assert "ZeRO 3 over 2 workers; predicted between steps: parameters 4.00 MB" in text
    assert tables(changed)["memory"].splitlines()[1].endswith(",0,4000000,4000000,8000000,50,90,200,500,8")
    assert "## Memory" not in markdown(summary)


def test_an_arm_has_one_row_and_no_column_of_what_says_nothing() -> None:
    ranks = tuple(
        RankMemory(rank=rank, resident_before=None, peak_resident=size, live_before=None, peak_live=None, peak_gpu=None,
                   parameters=81_300, gradients=81_300, optimizer=0)
        for rank, size in enumerate((305_000_000, 311_000_000, 309_000_000))
    )  # fmt: skip
    memory = MemorySummary(seed=0, zero=0, shards=1, ranks=ranks)
    arms = tuple(arm.model_copy(update={"memory": memory}) for arm in made_summary().arms)
    table = parsed(page(made_summary(arms=arms))).one("section", id="memory").one("table")
    assert [head.text for head in table.one("thead").all("th")] == [
        "strategy", "ranks", "predicted", "resident, peak",
    ]  # fmt: skip
    rows = table.one("tbody").all("tr")
    assert [cell.text for cell in rows[0].all("td")] == ["3", "163 kB", "305 MB – 311 MB"] and len(rows) == len(arms)
