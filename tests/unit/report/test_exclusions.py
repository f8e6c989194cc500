"""Whose gradients were left out: in records, in figures, on the page and in the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.observe.step_times import Timing
from quorate.records.records import Recorder, records_of, rows
from quorate.report.closing import closing_line
from quorate.report.page import page
from quorate.report.reading.run import RunRecords, read_run
from quorate.report.summary import tables
from quorate.report.topics.exclusions import exclusions_of
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.made_records import measured
from tests.support.made_summaries import made_summary
from tests.support.parsed_pages import parsed
from tests.support.raw_rows import RawRow


def run_of(folder: Path, *exclusions: Any) -> RunRecords:
    recorder = Recorder(records_of(folder, 0))
    recorder.hold(RawRow("start", rank=0, size=3, host="tower", clock="monotonic", now=9.0, wall=1.0))
    for number, ranks in enumerate(exclusions):
        about = {"round": 10 * number + 10, "optimizer": "1", "begin": 10.0 + number, "arrive": 10.4 + number}
        rest = dict.fromkeys(("data", "compute", "delay", "encode", "decode", "update"), 0.0)
        rest |= dict.fromkeys(("bytes_out", "bytes_in", "examples"), 0) | {"loss": None}
        recorder.hold(RawRow("step", step=number + 1, end=10.5 + number, **about, **rest))
        recorder.hold(RawRow("excluded", step=1, time=10.5 + number, optimizer="1", sums=10, ranks=ranks))
    recorder.close()
    return read_run(folder)


def test_counts_are_added_up_by_rank_and_reason(tmp_path: Path) -> None:
    exclusions = exclusions_of(
        measured(run_of(tmp_path, [[2, "far", 10], [1, "not finite", 1]], [[2, "far", 8]]), seed=5)
    )
    assert exclusions is not None and (exclusions.seed, exclusions.sums) == (5, 20)
    figures = [
        (exclusion.rank, exclusion.why, exclusion.count, exclusion.share, len(exclusion.times))
        for exclusion in exclusions.ranks
    ]
    assert figures == [(1, "not finite", 1, 0.05, 1), (2, "far", 18, 0.9, 2)]
    assert exclusions.ranks[1].last - exclusions.ranks[1].first == 1.0


def test_the_closing_line_tells_of_it(tmp_path: Path) -> None:
    run_of(tmp_path, [[2, "far", 10], [1, "not finite", 1], [0, "no weight", 10]], [[2, "far", 9], [0, "no weight", 9]])
    words = "; rank 2's gradients were far off in 95% of the means; rank 1's gradients were not finite in 5.0% of the "
    assert words in (closing_line(tmp_path) or "")


@pytest.mark.parametrize("ranks", [3, None, [3], [["a", "far", 1]], [[1, "far"]]])
def test_rows_that_say_nothing(ranks: Any, tmp_path: Path) -> None:
    assert exclusions_of(measured(run_of(tmp_path, ranks))) is None


def test_on_the_page_and_in_the_data(tmp_path: Path) -> None:
    exclusions, summary = (
        exclusions_of(measured(run_of(tmp_path, [[2, "outvoted", 10]], [[2, "outvoted", 9]]))),
        made_summary(),
    )
    arms = (summary.arms[0].model_copy(update={"exclusions": exclusions}), *summary.arms[1:])
    changed = summary.model_copy(update={"arms": arms})
    words = parsed(page(changed)).one("section", id="exclusions").text
    assert "rank 2" in words and "outvoted" in words and "95%" in words
    assert ",2,outvoted,19,0.95," in tables(changed)["exclusions"].splitlines()[1]


def train(world: quorate.World, folder: Path, reduce: str, strategy: str) -> None:
    """Rank 4's gradients are turned, and once rank 1's is none."""
    place = current.here()
    place.context(Timing).recorder = recorder = Recorder(records_of(folder, world.rank))
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    settings: dict[str, Any] = {} if strategy == "draco" else {"reduce": reduce}
    settings |= {"wait_for": 6} if strategy == "quorum" else {}
    plain = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer: Any = quorate.distribute(plain, model, strategy, on_nonfinite="ignore", **settings)
    if world.rank == 4:
        model.weight.register_hook(lambda g: -50 * g)
    generator = torch.Generator().manual_seed(0 if strategy == "draco" else world.rank)
    for step in range(25):
        optimizer.zero_grad()
        x = torch.randn(64, 6, generator=generator)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        (loss * torch.nan if world.rank == 1 and step == 3 else loss).backward()
        optimizer.step()
    optimizer.finish()
    recorder.close()


@pytest.mark.parametrize(
    ("strategy", "reduce", "why"),
    [
        ("all-reduce", "median", "far"),
        ("all-reduce", "multi-krum", "no weight"),
        ("draco", "", "outvoted"),
        ("quorum", "median", "far"),
        ("quorum", "multi-krum", "no weight"),
    ],
)
def test_those_that_are_wrong_are_in_the_records(strategy: str, reduce: str, why: str, tmp_path: Path) -> None:
    VirtualWorld(6).run(joined(lambda world: train(world, tmp_path, reduce, strategy)))
    exclusion_rows = [row for row in rows(records_of(tmp_path, 0)) if row["kind"] == "excluded"]
    assert [row["sums"] for row in exclusion_rows] == [10, 10, 5]
    assert [4, why, 10] in exclusion_rows[0]["ranks"] and [1, "not finite", 1] in exclusion_rows[0]["ranks"]
    assert not any(row["kind"] == "excluded" for rank in range(1, 6) for row in rows(records_of(tmp_path, rank)))
