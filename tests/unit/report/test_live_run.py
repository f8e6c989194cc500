"""A run under way, read a little at a time."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from quorate.records.records import LiveRows, records_of
from quorate.report.live import display
from quorate.report.live.run import LiveRun
from quorate.report.live.view import LiveView, view_of
from tests.support.made_records import make_run
from tests.support.terminals import Terminal


def grown(folder: Path, made: Path, share: float) -> None:
    """Copy the beginning of the run in `made`, up to `share` of each file, cut in the middle of a row."""
    folder.mkdir(exist_ok=True)
    shutil.copy(made / "run.json", folder)
    for path in made.glob("rank-*.jsonl"):
        data = path.read_bytes()
        (folder / path.name).write_bytes(data[: int(share * len(data))])


def view_in(folder: Path) -> LiveView:
    run = LiveRun(folder)
    run.look()
    return view_of(run)


def test_it_tells_what_compare_does_and_who_is_slow(tmp_path: Path) -> None:
    run = LiveRun(make_run(tmp_path / "x", steps=120))
    run.look()
    assert run.size == 4 and run.joined == 4 and not run.is_virtual
    view = view_of(run)
    strategy, step, rate, examples, loss, *logged = view.progress
    assert (strategy, step) == ("all-reduce", "step 120") and rate.startswith("2") and rate.endswith(" steps/s")
    assert examples.endswith("examples/s") and loss.startswith("loss ") and logged[0].startswith("top1 ")
    assert view.has_slow and view.slow is not None
    assert view.slow.startswith("rank 3 arrived last in 100% of the steps, 1") and view.slow.endswith("(last 50 steps)")
    assert view.end is not None and view.end.startswith("ended well after ")


def test_nobody_is_late(tmp_path: Path) -> None:
    view = view_in(make_run(tmp_path, slow_rank=None))
    assert view.slow == "no rank is significantly slower than the others (last 50 steps)" and not view.has_slow


def test_where_nobody_waits(tmp_path: Path) -> None:
    view = view_in(make_run(tmp_path, waits=False, strategy="quorum", steps=100))
    assert "rounds, 3." in view.rounds[0] and "of 4 workers in each" in view.rounds[0]
    assert view.slow is not None and view.slow.startswith("rank 3 needs ") and " per step, 1." in view.slow
    assert {*view.rounds, view.slow} <= {*view.lines}


def test_the_end_of_an_epoch_is_in_sight(tmp_path: Path) -> None:
    """The first takes as many steps as it has batches, later ones as many as the one before."""
    folder = make_run(tmp_path, steps=60)
    rows = records_of(folder, 0).read_text().splitlines()
    after = [index for index, row in enumerate(rows) if json.loads(row).get("kind") == "step"]
    epochs = [(after[0], {"kind": "epoch", "epoch": 0, "batches": 80})]
    epochs.append((after[40], {"kind": "epoch", "epoch": 1, "batches": 80}))
    for index, row in reversed(epochs):
        rows.insert(index, json.dumps(row))
    for share, last in (("25%", after[20] + 1), ("50%", len(rows))):
        records_of(folder, 0).write_text("\n".join(rows[:last]) + "\n")
        view = view_in(folder)
        assert view.epoch is not None and view.epoch.startswith(f"epoch {1 if share == '25%' else 2} ({share}")
        assert (view.end is None) == view.epoch.endswith(" s left)") and view.epoch in view.progress
        assert view.share == (0.25 if view.end is None else None)


def test_it_grows_with_its_files(tmp_path: Path) -> None:
    made, folder = make_run(tmp_path / "made", steps=100), tmp_path / "run"
    folder.mkdir()
    time = [0.0]
    run = LiveRun(folder, now=lambda: time[0])
    run.look()
    assert view_of(run).progress == ["starting"] and run.skew() is None
    steps = []
    for share in (0.002, 0.3, 0.3001, 0.7, 1.0):
        grown(folder, made, share)
        time[0] += 5.0
        run.look()
        steps.append(run.leader.steps if run.leader else 0)
        assert not run.has_ended or share == 1.0
    assert steps[0] == 0 and 0 < steps[1] <= steps[2] < steps[3] < steps[4] == 100
    assert view_in(folder) == view_of(run)
    assert run.has_ended and view_of(run).end == "every worker has ended"


def test_of_much_at_once_only_the_newest_is_read(tmp_path: Path) -> None:
    made, folder = make_run(tmp_path / "made", steps=400), tmp_path / "run"
    grown(folder, made, 0.3)
    time = [0.0]
    run = LiveRun(folder, most_bytes=4 * 8192, now=lambda: time[0])
    run.look()
    assert run.leader is None, "what is there when it is made is of another session"
    grown(folder, made, 1.0)
    time[0] += 5.0
    run.look()
    assert run.leader is not None and run.leader.steps == 400
    assert all(10 < len(rank.recent) < 50 for rank in run.workers)


def test_a_row_at_the_seam_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text('{"kind":"a"}\n')
    rows = LiveRows(path)
    rows.skip(0)
    with open(path, "a") as file:
        file.write('{"kind":"x"}\n')
    assert [row["kind"] for row in rows.look()] == ["x"]
    with open(path, "a") as file:
        file.write('{"kind":"b"}\n{"kind":"c"}\n')
    rows.skip(len('{"kind":"c"}\n') + 5)
    assert [row["kind"] for row in rows.look()] == ["c"]


def test_deaths_joins_and_a_failure(tmp_path: Path) -> None:
    folder = make_run(tmp_path, steps=40)
    death = {"kind": "gone", "time": 1.0, "rank": 1, "host": "tower", "reason": "was killed by signal 9 (SIGKILL)",
            "round": 17, "generation": 1, "left": 3}  # fmt: skip
    joined = {"kind": "joined", "time": 2.0, "rank": 4, "round": 20, "live": 4}
    with open(records_of(folder, 0), "a") as file:
        file.write(json.dumps(joined) + "\n" + json.dumps(death) + "\n" + json.dumps(death) + "\n")
    (folder / "outcome.json").write_text(json.dumps({"status": 1, "seconds": 14.2, "why": "rank 2 raised OSError"}))
    run = LiveRun(folder)
    run.look()
    assert view_of(run).events == [
        "rank 1 was killed by signal 9 (SIGKILL) after update 17; 3 continued",
        "rank 4 joined at update 20; 4 train since",
    ]
    assert [rank.rank for rank in run.workers] == [0, 2, 3]
    assert view_of(run).has_failed and view_of(run).end == "failed with status 1 after 14.2 s: rank 2 raised OSError"


def test_time_left_where_it_is_known(tmp_path: Path) -> None:
    folder = make_run(tmp_path, steps=40, about={"seconds_limit": 100.0})
    (folder / "outcome.json").unlink()
    for path in folder.glob("rank-*.jsonl"):
        path.write_text("".join(path.read_text().splitlines(True)[:-1]))
    run = LiveRun(folder)
    run.look()
    assert run.left is not None and 90.0 < run.left < 100.0
    assert view_of(run).progress[-1].startswith("about 9")


def test_damaged_rows_are_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path, steps=20)
    with open(records_of(folder, 0), "a") as file:
        for row in (
            '{"kind":"step","step":"x"}', '{"kind":"round","number":[],"contributors":3}', '{"kind":"log","values":7}',
            '{"kind":"log","values":{"a":1e999,"b":null},"time":"x"}', '{"kind":"gone"}', "[]", "{",
        ):  # fmt: skip
            file.write(row + "\n")
    run = LiveRun(folder)
    run.look()
    assert view_of(run).progress[1] == "step 20"


def test_the_lines_fit_and_say_it(tmp_path: Path) -> None:
    view = view_in(make_run(tmp_path / "train-1", steps=120))
    for width in (40, 100):
        terminal = Terminal(width)
        console = Console(file=io.StringIO(), width=width, force_terminal=True)
        with console.capture() as captured:
            console.print(display.lines_of(view))
        terminal.feed(captured.get().encode())
        assert all(len(line) <= width for line in terminal.lines) and len(terminal.lines) == 3
        assert terminal.lines[1].startswith("all-reduce · step 120 · ") and terminal.lines[2].startswith(
            "rank 3 arrived last"
        )


def test_a_line_where_there_is_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, folder = make_run(tmp_path / "made", steps=120), tmp_path / "run"
    folder.mkdir()
    said = []

    def looks(look: object, seconds: float) -> object:
        said.append(seconds)
        grown(folder, made, 1.0)
        look()  # type: ignore[operator]
        return display.ExitStack()

    monkeypatch.setattr(display, "repeated", looks)
    with display.progress_shown(folder):
        pass
    assert said == [60.0]
    assert capsys.readouterr().err.startswith("quorate: all-reduce, step 120, 2")
