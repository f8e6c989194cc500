"""`quorate simulate --failures` as it is typed: what is refused, planned, shown and kept."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from quorate.cli.main import main

DIES = ("--failures", "mtbf=10d,repair=30min,restart=5min", "--seconds", "2d")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def status(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--failures", "repair=3s"], '"repair=3s" lacks mtbf'),
        ([*DIES, "--recovery", "reshard=soon"], '"soon" in "reshard=soon" is not a duration'),
        ([*DIES, "--imbalance", "one-of:1s"], "--failures and --imbalance cannot be combined"),
        ([*DIES, "--like", "x", "--steps", "3"], "--failures and --steps and --like cannot be combined"),
        ([*DIES, "--real", "digits"], "--failures and --real cannot be combined"),
        ([*DIES, "--compute", "lognormal:1s:0.2"], "with --failures all steps take the same time"),
        ([*DIES, "--parameters", "7B"], "--parameters needs --network as well"),
        ([*DIES, "--strategy", "sgp"], "failures under sgp cannot be simulated"),
        (
            [*DIES, "--strategy", "all-reduce", "--learners", "2"],
            "under all-reduce all workers form one learner; leave",
        ),
        ([*DIES, "--learners", "2000"], "2,000 learners cannot be made of 1,000 workers"),
        ([*DIES, "--learners", "2,2"], "the number of learners 2 is given twice"),
        ([*DIES, "-n", "10000001"], "--workers 10000001: from 1 to 10,000,000 workers are simulated"),
        (["--failures", "mtbf=1s", "-n", "1000"], "2,592,000,000 failures among 1,000 workers, and at most 5,000,000"),
        ([*DIES[:2], "--seconds", "0"], "--seconds 0: it must be above 0"),
        ([*DIES[:2], "--seconds", "soon"], '"soon" is not a number of seconds, or a duration'),
        (["--recovery", "slice=3"], "--recovery can be given with --failures only"),
        (["--learners", "3", "--seconds", "3s"], "--learners and --seconds can be given with --failures only"),
    ],
)
def test_wrong_input_is_one_sentence(capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    assert status(*words) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
    assert not Path("runs").exists()


def test_a_table_figures_and_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*DIES, "-n", "10,1000", "--learners", "1,8", "--name", "one", "--picture", "here.svg")
    assert status(*words) == 0
    out = capsys.readouterr().out
    assert "goodput" in out and "uptime" in out and "1,000 workers: " in out and " deaths, 0 stops" in out
    kept = json.loads(Path("runs/one/simulate.json").read_text())
    assert [(row["strategy"], row["learners"], row["workers"]) for row in kept["rows"]] == [
        (strategy, learners, workers)
        for strategy, learners in (
            ("all-reduce", 1), ("all-reduce-on_death=continue", 1), ("decoupled-diloco", 1), ("decoupled-diloco", 8)
        )
        for workers in (10, 1000)
    ]  # fmt: skip
    of_many = {(row["strategy"], row["learners"]): row["goodput"] for row in kept["rows"] if row["workers"] == 1000}
    never, elastic, one, eight = of_many.values()
    assert never < elastic == one < eight
    assert kept["seconds"] == 2 * 86_400 and kept["failures"] == DIES[1]
    drawn = Path("here.svg").read_text()
    assert drawn == Path("runs/one/simulate.svg").read_text()
    lines = [one for one in ElementTree.fromstring(drawn).iter() if one.get("class") == "line"]
    assert len(lines) == 4 * 3 and all(one.get("stroke-dasharray") for one in lines)  # two panels and the names


def test_one_number_of_workers_is_drawn_as_bars() -> None:
    assert status(*DIES, "--strategy", "quorum", "--learners", "4", "--name", "one") == 0
    tree = ElementTree.fromstring(Path("runs/one/simulate.svg").read_text())
    (bar,) = [one for one in tree.iter() if one.get("class") == "outline"]
    assert bar.get("stroke-dasharray")


def test_what_exchanges_cost_is_a_column_where_a_network_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*DIES, "--strategy", "all-reduce", "--network", "50us:10Gbit:halving", "--parameters", "1B", "--json")
    assert status(*words) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["network"] == "50us:10Gbit:halving" and row["moving"] > 3 * row["goodput"]


def test_a_dry_run_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(*DIES, "-n", "1000000", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "would simulate all-reduce, all-reduce-on_death=continue and decoupled-diloco with 1,000,000 workers" in out
    assert "2 days of steps of 1.00 s): 3 rows" in out
    assert not Path("runs").exists()


def test_so_few_workers_for_so_short_a_time_as_a_run_has(capsys: pytest.CaptureFixture[str]) -> None:
    from quorate.inject.failures import failures_from
    from quorate.simulation.failing.playing import play

    text = "mtbf=16s,repair=2s,restart=1s"
    words = (
        "--failures",
        text,
        "--seed",
        "3",
        "-n",
        "8",
        "--learners",
        "8",
        "--seconds",
        "180",
        "--compute",
        "constant:50ms",
    )
    assert status(*words, "--strategy", "decoupled-diloco:sync_every=20", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    own = play(failures_from(text), 8, learners=8, strategy="decoupled-diloco", settings={"sync_every": 20},
               seconds=180.0, seed=3, step=0.05)  # fmt: skip
    assert row["goodput"] == own.goodput and row["failures"]["deaths"] > 40
