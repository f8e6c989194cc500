"""The work of servers, in figures and on the page."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.records.rows import Served
from quorate.report.page import page
from quorate.report.reading.rank import served_of
from quorate.report.summary import tables
from quorate.report.topics.servers import (
    SERVERS,
    Server,
    ServerFigures,
    ServersSummary,
    figures_of_servers,
    load_chart,
    servers_summary,
)
from tests.support.made_summaries import made_summary
from tests.support.parsed_pages import parsed


def row(**changes: Any) -> Served:
    said: dict[str, Any] = {
        "time": 10.0, "optimizer": "1", "seconds": 4.0, "busy": 1.0, "bytes_in": 4000, "bytes_out": 8000, "steps": 5,
        "taken": [[0, 3], [2, 2]], "counted": [3.0, 1.0], "dropped": [[1, 5]], "given": [[0, 5, 0], [3, 0, 5]],
    }  # fmt: skip
    return Served(**{**said, **changes})


def summary_of(*runs: ServerFigures | None) -> ServersSummary:
    summary = servers_summary([run for run in runs if run is not None])
    assert summary is not None
    return summary


def test_rows_and_runs_add_up() -> None:
    others: dict[str, Any] = {"taken": None, "counted": None, "dropped": None, "given": None}
    run = figures_of_servers({0: [row(), row()], 1: [row(busy=3.0, bytes_in=0, **others)], 2: []})
    again = figures_of_servers({0: [row(seconds=8.0, taken=[[2, 10]], counted=[5.0], dropped=[], given=[[0, 10, 0]])]})
    summary = summary_of(run, again)
    assert (summary.gradients, summary.steps) == (30, 15), "the second server follows the first one"
    assert summary.staleness == (6, 0, 14) and summary.staleness_mean == pytest.approx(28 / 20)
    assert summary.weights == pytest.approx((1.0, 0.0, 0.5))
    assert summary.dropped_share == pytest.approx(10 / 30) and summary.scaled_share == pytest.approx(14 / 30)
    assert summary.ranks == ((0, 20, 0), (3, 0, 10))
    assert summary.servers == (
        Server(rank=0, busy_share=3 / 16, bytes_in=750.0, bytes_out=1500.0),
        Server(rank=1, busy_share=3 / 4, bytes_in=0.0, bytes_out=2000.0),
    )


def test_virtual_servers_are_not_said_to_be_idle() -> None:
    summary = summary_of(figures_of_servers({0: [row(busy=0.0)]}))
    assert summary.servers[0].busy_share is None


def test_without_gradients_there_is_nothing_to_show() -> None:
    assert figures_of_servers({0: [], 1: []}) is None
    assert figures_of_servers({0: [row(taken=[], counted=[], dropped=[], given=[])]}) is None
    assert servers_summary([]) is None


@pytest.mark.parametrize(
    "damage",
    [
        {"taken": [[0, 3]]}, {"taken": [[0, 3], [2]]}, {"taken": [[0, 3], [0.5, 1]]}, {"counted": [3.0]},
        {"counted": [3.0, "much"]}, {"counted": [3.0, -1.0]}, {"counted": [3.0, float("nan")]},
        {"dropped": [[1, -5]]}, {"dropped": [[1]]}, {"given": [[0, 5]]},
        {"given": 7}, {"seconds": -1.0}, {"busy": None}, {"bytes_in": -1},
    ],
)  # fmt: skip
def test_rows_that_cannot_be_are_left_out(damage: dict[str, Any]) -> None:
    whole = row().as_json()
    assert served_of(whole) is not None
    assert served_of({**whole, **damage}) is None


def test_rows_of_servers_that_follow_say_less() -> None:
    less = row(taken=None, counted=None, dropped=None, given=None).as_json()
    assert {"taken", "counted", "dropped", "given"}.isdisjoint(less)
    assert served_of(less) is not None


def made(servers: int = 2, busy: float | None = 0.25) -> ServersSummary:
    loads = tuple(Server(rank=rank, busy_share=busy, bytes_in=2e6, bytes_out=3e6) for rank in range(servers))
    summary = summary_of(figures_of_servers({0: [row()]}))
    return summary.model_copy(update={"servers": loads})


def read(world: str = "real", **of: Any) -> Any:
    whole = made_summary()
    arms = [whole.arms[0], *(arm.model_copy(update={"servers": made(**of)}) for arm in whole.arms[1:])]
    return parsed(page(whole.model_copy(update={"arms": tuple(arms), "world": world})))


def test_the_page_says_what_became_of_gradients() -> None:
    section = read().one("section", id="servers")
    table = section.all("table")[0]
    assert [cell.text for cell in table.all("tr")[1].all("td")] == [
        "5", "10", "0.800", "50%", "20%", "0.400", "rank 3, 100% of its gradients",
    ]  # fmt: skip
    words = section.text
    assert "rank 1: 25% busy, in 2.00 MB/s, out 3.00 MB/s" in words
    labels = [chart.attributes["aria-label"] for chart in section.all("svg", "chart")]
    assert any("0 60%, 1 0%, 2 40%" in label for label in labels), labels
    assert section.one("h2").text == "Servers"


def test_many_servers_are_not_all_drawn() -> None:
    section = read(servers=SERVERS + 3).one("section", id="servers")
    assert f"rank {SERVERS - 1}:" in section.text and f"rank {SERVERS}:" not in section.text
    assert "Further servers: 6" in section.text, "of two arms"


def test_a_virtual_world_does_not_say_how_busy() -> None:
    section = read(world="virtual", busy=None).one("section", id="servers")
    assert "busy," not in section.text and "in virtual time servers handle messages instantly" in section.text


def test_without_servers_there_is_no_section() -> None:
    assert not parsed(page(made_summary())).all("section", id="servers")


def test_bars_are_as_long_as_servers_were_busy() -> None:
    servers = [Server(rank=n, busy_share=share, bytes_in=0.0, bytes_out=0.0) for n, share in enumerate((0.5, 0.25))]
    rows = [("a", server) for server in servers]
    drawn = str(load_chart(rows, {"a": 0}, title="busy", width=613.0, label="Loads"))
    widths = [float(bar.attributes["width"]) for bar in parsed(drawn).all("rect")]
    assert widths == pytest.approx([599.0, 299.0], abs=1.0), "of 600, with a pixel for the axis"
    assert "the full width is 50%" in drawn


def test_the_data_is_there() -> None:
    whole = made_summary()
    arms = (whole.arms[0], whole.arms[1].model_copy(update={"servers": made()}))
    csv = tables(whole.model_copy(update={"arms": arms}))
    assert csv["served"].splitlines() == [
        "arm,staleness,gradients,weight", "all-reduce,0,3,1.0", "all-reduce,1,0,0.0", "all-reduce,2,2,0.5",
    ]  # fmt: skip
    assert csv["given"].splitlines()[1:] == ["all-reduce,0,5,0", "all-reduce,3,0,5"]
    assert csv["servers"].splitlines()[1] == "all-reduce,0,0.25,2000000.0,3000000.0"
