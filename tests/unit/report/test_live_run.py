"""A run under way, read a little at a time."""

from __future__ import annotations

import io
import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from quorate.records.records import LiveRows, records_of
from quorate.report.live import display
from quorate.report.live.run import LiveRun
from quorate.report.live.series import Series
from quorate.report.live.words import end_in_words, events_in_words, lateness_in_words, progress_in_words, run_in_words
from tests.support.made_records import make_run
from tests.support.terminals import Terminal


def grown(folder: Path, made: Path, share: float) -> None:
    """Copy the beginning of the run in `made`, up to `share` of each file, cut in the middle of a row."""
    folder.mkdir(exist_ok=True)
    shutil.copy(made / "run.json", folder)
    for path in made.glob("rank-*.jsonl"):
        data = path.read_bytes()
        (folder / path.name).write_bytes(data[: int(share * len(data))])


def test_it_tells_what_compare_does_and_who_is_slow(tmp_path: Path) -> None:
    run = LiveRun(make_run(tmp_path / "x", steps=120))
    run.look()
    assert run.size == 4 and run.joined == 4 and not run.is_virtual
    strategy, step, rate, examples, loss, *logged = progress_in_words(run)
    assert (strategy, step) == ("all-reduce", "step 120") and rate.startswith("2") and rate.endswith(" steps/s")
    assert examples.endswith("examples/s") and loss.startswith("loss ") and logged[0].startswith("top1 ")
    said = lateness_in_words(run, run.skew())
    assert said is not None and said.startswith("rank 3 is 1") and said.endswith(" late, median of the last 50 steps")
    assert end_in_words(run) is not None and str(end_in_words(run)).startswith("ended well after ")


def test_nobody_is_late(tmp_path: Path) -> None:
    run = LiveRun(make_run(tmp_path, slow_rank=None))
    run.look()
    said = lateness_in_words(run, run.skew())
    assert said is not None and said.startswith("no rank is significantly late: the last one comes ")


def test_where_nobody_waits(tmp_path: Path) -> None:
    run = LiveRun(make_run(tmp_path, waits=False, strategy="quorum", steps=100))
    run.look()
    said = run_in_words(run)
    assert any("rounds, 3." in line and "of 4 workers in each" in line for line in said), said
    assert any(line.startswith("rank 3 needs ") and " per step, 1." in line and "x the others" in line for line in said)
    assert len(run.taken_in.points) <= 100


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
        run = LiveRun(folder)
        run.look()
        assert any(f"epoch {1 if share == '25%' else 2} ({share})" in line for line in run_in_words(run))


def test_it_grows_with_its_files(tmp_path: Path) -> None:
    made, folder = make_run(tmp_path / "made", steps=100), tmp_path / "run"
    folder.mkdir()
    time = [0.0]
    run = LiveRun(folder, now=lambda: time[0])
    run.look()
    assert progress_in_words(run) == ["starting"] and run.skew() is None
    steps = []
    for share in (0.002, 0.3, 0.3001, 0.7, 1.0):
        grown(folder, made, share)
        time[0] += 5.0
        run.look()
        steps.append(run.leader.steps if run.leader else 0)
        assert not run.has_ended or share == 1.0
    assert steps[0] == 0 and 0 < steps[1] <= steps[2] < steps[3] < steps[4] == 100
    at_once = LiveRun(folder)
    at_once.look()
    assert at_once.losses.points == run.losses.points and at_once.sent.points == run.sent.points
    assert at_once.ranks[2].bytes_out == run.ranks[2].bytes_out > 0
    assert run.has_ended and end_in_words(run) == "every worker has ended"


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
    assert len(run.losses.points) < 60 and all(len(rank.recent) > 10 for rank in run.workers)


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
    assert events_in_words(run) == [
        "rank 1 was killed by signal 9 (SIGKILL) after update 17; 3 went on",
        "rank 4 joined at update 20; 4 train since",
    ]
    assert [rank.rank for rank in run.workers] == [0, 2, 3]
    assert end_in_words(run) == "failed with status 1 after 14.2 s: rank 2 raised OSError"


def test_time_left_where_it_is_known(tmp_path: Path) -> None:
    folder = make_run(tmp_path, steps=40, about={"seconds_limit": 100.0})
    (folder / "outcome.json").unlink()
    for path in folder.glob("rank-*.jsonl"):
        path.write_text("".join(path.read_text().splitlines(True)[:-1]))
    run = LiveRun(folder)
    run.look()
    assert run.left is not None and 90.0 < run.left < 100.0
    assert progress_in_words(run)[-1].startswith("about 9")


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
    assert progress_in_words(run)[1] == "step 20"


@pytest.mark.parametrize("count", [1, 7, 10, 11, 1000])
def test_a_series_keeps_its_mean_and_its_bound(count: int) -> None:
    series = Series(10)
    for x in range(count):
        series.add(float(x), float(2 * x))
    points = series.points
    assert 0 < len(points) <= 11 and points == sorted(points)
    assert all(y == pytest.approx(2 * x) for x, y in points)
    assert points[-1][0] >= 0.8 * (count - 1)
    gaps = {round(b - a, 6) for (a, _), (b, _) in pairwise(points[:-1])}
    assert len(gaps) <= 1, "each point but the last is the mean of as many"


def test_the_lines_fit_and_say_it(tmp_path: Path) -> None:
    run = LiveRun(make_run(tmp_path / "train-1", steps=120))
    run.look()
    for width in (40, 120):
        terminal = Terminal(width)
        console = Console(file=io.StringIO(), width=width, force_terminal=True)
        with console.capture() as captured:
            console.print(display.lines_of(run, width))
        terminal.feed(captured.get().encode())
        assert all(len(line) <= width for line in terminal.lines) and (len(terminal.lines) == 3) == (width == 120)
        assert terminal.lines[1].startswith("all-reduce · step 120 · ")
        figures = {figure for line in terminal.lines for figure in line.rstrip(" ·").split(" · ")}
        assert figures >= set(progress_in_words(run))


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
