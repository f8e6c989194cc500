"""`quorate simulate` as it is typed: what is refused, planned, shown and kept."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from quorate.cli.main import main
from quorate.core.durations import Sampled
from tests.support.simulated_runs import make_simulated_run

SMALL = ("--steps", "20", "--parameters", "1k")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def status(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert status(*words, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def recorded(folder: Path) -> Path:
    """A run of four workers, and one of another strategy."""
    compute = Sampled("lognormal", 0.05, 0.4, seed=2)
    make_simulated_run(folder / "runs" / "first", "all-reduce", compute, latency=0.002)
    make_simulated_run(folder / "runs" / "second", "eager-solo", compute, latency=0.005)
    return folder


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--strategy", "quorom"], 'unknown strategy "quorom"; did you mean "quorum"? See quorate list strategies'),
        (["--strategy", "quorum:wait=1"], 'unknown setting of quorum "wait"; did you mean "wait_for"?'),
        (["--strategy", "quorum:wait_for=9", "-n", "8"], "wait_for is 9, and there are 8 workers"),
        (["--strategy", "sgp", "--strategy", "sgp"], "the strategy sgp is given twice; give each one once"),
        (["--strategy", "adaptive-local-sgd"], "simulate it with --real WORKLOAD, or one of these: "),
        (["-n", "0"], "--workers 0: from 1 to 100,000 workers are simulated"),
        (["-n", "many"], '--workers "many": give a number, or several such as 8,64,512'),
        (["-n", "8,8"], "the number of workers 8 is given twice"),
        (["--steps", "0"], "--steps 0: it must be a whole number from 1 to 1,000,000"),
        (["--compute", "soon"], '"soon" is not a model of compute times'),
        (["--min-step-time", "5us/token"], "counts tokens, which a simulation does not have"),
        (["--min-step-time", "soon"], '"soon" is not a minimum step time'),
        (["--imbalance", "some"], '"some" is not an imbalance'),
        (["--imbalance", "rank:8:1s"], '"rank:8:1s" is about rank 8, but there are 8 workers'),
        (["--network", "fast"], '--network "fast": write LATENCY:BANDWIDTH'),
        (["--coding", "fast"], '--coding "fast": write ENCODE:DECODE in numbers a second, such as 200M:1B, or none'),
        (
            ["--strategy", "all-reduce:compress=power-sgd"],
            "recorded times are not enough for power-sgd, whose sums take more",
        ),
        (["--strategy", "all-reduce:compress=threshold"], "how long codes of threshold are depends on the numbers"),
        (["--strategy", "local-sgd:compress=half"], 'compress="half" cannot be combined with local-sgd'),
        (["--strategy", "all-reduce:compress=half,bits=3"], 'unknown setting of half "bits"'),
        (["--parameters", "none"], '--parameters "none": write a number (at least 1), such as 8193, 25M or'),
        (["--batch", "0"], "--batch 0: it must be a whole number from 1"),
        (["--seed", "-1"], "--seed -1: a seed is a whole number from 0"),
        (["--check"], "--check compares a recorded run with its simulation; name the run with --like"),
        (["--like", "nothing"], 'there is no run "nothing"'),
        (["--like", "first", "--compute", "constant:1ms"], "--like and --compute cannot be combined"),
        (["--like", "first", "--real", "digits"], "--like and --real cannot be combined"),
        (["--like", "first", "--like", "runs/first"], "--like first is given twice; give each run once"),
        (["--real", "digitz"], 'unknown workload "digitz"; did you mean "digits"?'),
        (["--real", "digits", "--steps", "5"], "the workload sets the amount of work; leave out --steps"),
        (["--real", "digits", "-n", "2000"], "--workers 2000: from 1 to 1,024 workers are simulated with real gradie"),
        (["--real", "digits", "--network", "1ms:1GB"], "in the virtual world every two workers have a link of their"),
        (["--epochs", "2"], "--epochs can be given with --real WORKLOAD only"),
        (["--picture", "here.png"], "--picture here.png: give a file name that ends in .svg"),
        (["--picture", "no/such/here.svg"], "--picture no/such/here.svg: give a file name that ends"),
        (["--name", "first"], "runs/first already holds a run"),
        (["--name", "../x"], '"../x" is not a name for a run'),
        (["--local"], "no such option: --local"),
    ],
)
def test_wrong_input_is_one_sentence(
    recorded: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert status(*words) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
    assert sorted(path.name for path in Path("runs").iterdir()) == ["first", "second"]


def test_a_table_figures_and_a_picture(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--strategy", "all-reduce", "--strategy", "quorum:wait_for=2", "-n", "4,16", "--imbalance", "one-of:20ms")
    assert status(*words, *SMALL, "--name", "one", "--picture", "here.svg") == 0
    out = capsys.readouterr().out
    assert "quorum-wait_for=2" in out and "contributors" in out and "runs/one/simulate.svg" in out
    kept = json.loads(Path("runs/one/simulate.json").read_text())
    assert [(row["strategy"], row["workers"]) for row in kept["rows"]] == [
        ("all-reduce", 4), ("all-reduce", 16), ("quorum-wait_for=2", 4), ("quorum-wait_for=2", 16)
    ]  # fmt: skip
    assert kept["rows"][0]["steps_per_second"] == pytest.approx(4 / 0.030, rel=0.1)
    drawn = Path("here.svg").read_text()
    assert drawn == Path("runs/one/simulate.svg").read_text()
    assert not Path("runs/one/run.json").exists()


def test_what_was_simulated_is_drawn_dashed(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("--like", "first", "--strategy", "all-reduce", "--strategy", "sgp", "-n", "4,8", "--name", "one") == 0
    tree = ElementTree.fromstring(Path("runs/one/simulate.svg").read_text())
    space = "{http://www.w3.org/2000/svg}"
    lines = [one for one in tree.iter(f"{space}path") if one.get("class") == "line"]
    assert len(lines) == 2 * 2 + 2 and all(one.get("stroke-dasharray") for one in lines)
    assert len({one.get("stroke-dasharray") for one in lines}) == 2  # two strategies look unlike each other
    assert sum(one.get("class") == "solid" for one in tree.iter(f"{space}circle")) == 2
    words = "".join(one.text or "" for one in tree.iter(f"{space}text"))
    assert "dashed: simulated, not measured; full mark: recorded" in words
    assert "simulated" in (tree.get("aria-label") or "").lower()


def test_a_run_is_held_against_its_simulation(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("--like", "first", "--check", "--name", "one") == 0
    out = capsys.readouterr().out
    assert "all-reduce (recorded)" in out
    assert "the run itself, rounds per second: recorded " in out
    check = json.loads(Path("runs/one/simulate.json").read_text())["check"]
    assert {one["name"]: one["holds"] for one in check} == dict.fromkeys(
        ["rounds per second", "steps per second", "contributors", "bytes per step"], True
    )


def test_a_check_that_fails_is_status_1(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(4):  # whose bytes are not those of its strategy
        path = Path(f"runs/first/rank-{rank}.jsonl")
        path.write_text(path.read_text().replace('"parameters":1000', '"parameters":2000'))
    assert status("--like", "first", "--name", "one") == 0
    assert status("--like", "first", "--check", "--name", "two") == 1
    assert "which is more than 10%" in capsys.readouterr().out


def test_runs_of_other_kinds_tell_what_their_exchanges_cost(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--like", "first", "--strategy", "all-reduce", "--strategy", "quorum")
    alone = told(capsys, *words, "--name", "one")
    both = told(capsys, *words, "--like", "second", "--name", "two")
    assert any("pass such a run as another --like" in one for one in alone["cautions"])
    assert not any("another --like" in one for one in both["cautions"])
    rates = [[row["steps_per_second"] for row in one["rows"]] for one in (alone, both)]
    assert rates[0][:2] == rates[1][:2]
    assert rates[1][2] < 0.95 * rates[0][2]  # a message of rounds took longer


def test_a_recorded_run_can_be_made_later(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = told(capsys, "--like", "first", "--name", "one")
    late = told(capsys, "--like", "first", "--imbalance", "rank:0:100ms", "--name", "two")
    seconds = [4 / one["rows"][1]["steps_per_second"] for one in (plain, late)]
    assert 0.03 < seconds[1] - seconds[0] < 0.1


def test_every_network_and_imbalance_is_a_row(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--network", "50us:10Gbit", "--network", "5ms:1Gbit", "--imbalance", "none", "--imbalance", "one-of:1s")
    rows = told(capsys, *words, "--strategy", "all-reduce", *SMALL)["rows"]
    assert [(row["network"], row["imbalance"]) for row in rows] == [
        ("50us:10Gbit", None), ("50us:10Gbit", "one-of:1s"), ("5ms:1Gbit", None), ("5ms:1Gbit", "one-of:1s")
    ]  # fmt: skip
    rates = [row["steps_per_second"] for row in rows]
    assert rates[0] > rates[2] > rates[1] > rates[3]


def test_the_same_seed_gives_the_same_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--strategy", "eager-majority", "--compute", "lognormal:10ms:0.5", *SMALL)
    rows = [told(capsys, *words, "--seed", seed)["rows"][0] for seed in ("3", "3", "4")]
    figures = [{key: value for key, value in row.items() if key != "wall_seconds"} for row in rows]
    assert figures[0] == figures[1] != figures[2]


CONFIG = """
strategy = ["quorum:wait_for=1", "sgp"]
workers = "4,8"
steps = 20
imbalance = ["one-of:20ms"]
"""


def test_a_file_is_as_good_as_typing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("plan.toml").write_text(CONFIG)
    typed = ("--strategy", "quorum:wait_for=1", "--strategy", "sgp", "-n", "4,8", "--steps", "20")
    from_file = told(capsys, "--config", "plan.toml", "--dry-run")
    assert from_file == told(capsys, *typed, "--imbalance", "one-of:20ms", "--dry-run")
    assert status("--config", "plan.toml", "--print-config") == 0
    Path("again.toml").write_text(capsys.readouterr().out)
    assert told(capsys, "--config", "again.toml", "--dry-run") == from_file
    assert told(capsys, "--config", "plan.toml", "-n", "16", "--dry-run")["workers"] == [16]
    assert not Path("runs").exists()


def test_a_dry_run_says_what_would_be(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("--dry-run", "-n", "4,8", "--name", "one") == 0
    said = capsys.readouterr().out
    assert said.startswith("would simulate all-reduce and quorum with 4 and 8 workers (times alone, 100 steps")
    assert said.endswith("4 rows; in runs/one\n")


@pytest.mark.parametrize("columns", [80, 60])
def test_a_sweep_is_one_map(
    columns: int, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strategies x codecs x imbalances x networks x workers; what excludes each other is left out, and named."""
    monkeypatch.setenv("COLUMNS", str(columns))
    words = ["--strategy", "all-reduce", "--strategy", "sgp", "--codec", "none", "--codec", "half", "--coding", "none"]
    words += ["-n", "2,8", "--imbalance", "none", "--imbalance", "one-of:20ms", "--steps", "5"]
    words += ["--network", "50us:1Gbit", "--network", "50us:10Gbit", "--name", "swept", "--map", "map.svg"]
    assert status(*words) == 0
    said = capsys.readouterr()
    assert "sgp-compress=half, which exclude each other" in said.err
    assert max(map(len, said.out.splitlines())) <= columns and "map: map.svg" in said.out
    about = json.loads(Path("runs/swept/simulate.json").read_text())
    assert len(about["rows"]) == 3 * 2 * 2 * 2 and len(about["map"]["cells"]) == 2 * 2 * 2
    assert Path("map.svg").read_text().startswith("<svg")
    for wrong in (("--map", "map.pdf"), ("--map", "nowhere/map.svg"), ("--learned", "one"), ("--codec", "nothing")):
        assert status(*wrong, "--dry-run") == 2


def test_workers_with_ports_of_their_own_form_rounds_in_pieces(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ResNet-50 on 64 hosts of one worker, steps of 640 ms, 10 Gbit/s: pieces of the sum go twice through each port."""
    words = ("--strategy", "eager-solo", "-n", "64", "--parameters", "25.5M", "--compute", "constant:640ms")
    (row,) = told(capsys, *words, "--steps", "20")["rows"]
    assert 1 / row["rounds_per_second"] == pytest.approx(0.64 + 2 * 63 / 64 * 102e6 / 1.25e9, rel=0.01)


@pytest.mark.parametrize(
    "words",
    [
        ("--strategy", "all-reduce", "--strategy", "quorum:wait_for=2", "--strategy", "sgp", *SMALL),
        ("--failures", "mtbf=1d", "-n", "10,100", "--seconds", "1d"),
    ],
)
def test_times_alone_import_no_torch(folder: Path, words: tuple[str, ...]) -> None:
    program = (
        "import sys\nfrom quorate.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n"
        "    assert end.code == 0, end.code\nassert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "simulate", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("warm")
def test_real_gradients_bring_loss_and_quality(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--real", "least-squares", "-n", "2", "--epochs", "1", "--imbalance", "rank:1:30ms")
    rows = told(capsys, *words, "--strategy", "all-reduce", "--strategy", "eager-solo", "--name", "one")["rows"]
    assert [row["strategy"] for row in rows] == ["all-reduce", "eager-solo"]
    assert all(row["loss"] > 0 and row["quality"] > 0 for row in rows)
    assert rows[1]["steps_per_second"] > 1.5 * rows[0]["steps_per_second"]
    assert Path("runs/one/real-1-workers-2/all-reduce/seed-0/rank-1.jsonl").is_file()


def test_codecs_send_fewer_bytes_and_take_their_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-n", "4", "--strategy", "all-reduce", "--strategy", "all-reduce:compress=half", "--parameters", "4M"]
    dense, coded = told(capsys, *words, "--coding", "100M:400M")["rows"]
    assert coded["bytes_per_step"] == pytest.approx(dense["bytes_per_step"] / 2, rel=0.001)
    assert coded["coding_per_step"] == pytest.approx(4e6 / 100e6 + 4e6 / 400e6)
    assert dense["coding_per_step"] == 0
    found = told(capsys, *words, "--network", "50us:100Mbit")
    assert found["rows"][1]["coding_per_step"] > 0
    assert "all-reduce-compress=half is taken to encode" in found["cautions"][0]
    free = told(capsys, *words, "--network", "50us:100Mbit", "--coding", "none")
    assert free["rows"][1]["coding_per_step"] == 0 and not free["cautions"]


def test_codecs_in_rounds_write_small_what_goes_between_hosts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = ["--strategy", "quorum:wait_for=all", "--strategy", "quorum:wait_for=all,compress=sign", "--coding", "none"]
    dense, coded = told(capsys, "-n", "8", *arms, "--network", "50us:1Gbit:per-host=2")["rows"]
    assert coded["bytes_per_step"] < 0.2 * dense["bytes_per_step"]
    assert coded["step_p50"] < dense["step_p50"]
    found = told(capsys, "-n", "8", *arms, "--network", "50us:1Gbit:mesh")
    assert found["rows"][0]["bytes_per_step"] == found["rows"][1]["bytes_per_step"]
    assert any("in rounds codes travel between hosts" in one for one in found["cautions"])


def test_what_a_run_of_whole_vectors_cost_says_nothing_of_codes(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--like", "first", "--strategy", "all-reduce:compress=half", "--coding", "none"]
    assert status(*words) == 2
    assert "a recorded run has times for messages of its own size only" in capsys.readouterr().err
    assert status(*words, "--network", "50us:1Gbit") == 0
