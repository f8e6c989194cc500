"""`quorate compare` and `quorate report` before and after the runs: what is refused, planned, shown while it runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from quorate.cli.compare import verb as comparing
from quorate.cli.compare.comparison import arms_from, factors_from, metric_from, seeds_from, subject_from
from quorate.cli.compare.progress import CompareProgress, Tail
from quorate.cli.compare.results import show
from quorate.cli.main import main
from quorate.cli.verbs import status_of
from quorate.compare.execute import Interrupt
from quorate.compare.grid import Cell
from quorate.compare.plan import Arm, Comparison, Metric, Subject
from quorate.core.errors import ConfigurationError
from quorate.launch.local.processes import Conclusion
from quorate.launch.warm.run_server import RunServer
from quorate.records.records import Recorder
from quorate.records.rows import Step
from quorate.report.summary import summarize
from tests.architecture.tree import ROOT
from tests.support.launching import LIMIT, all_shown
from tests.support.made_records import make_comparison
from tests.support.raw_rows import RawRow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    return tmp_path


def _status(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_demo_is_a_comparison_with_a_target(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (typed,) = re.findall(r"^demo: venv\n\t@\$\(BIN\)/quorate (.*)$", makefile, re.MULTILINE)
    assert _status(*shlex.split(typed), "--dry-run", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["target"] == 0.9 and len(told["seeds"]) >= 3 and told["imbalance"] is not None
    assert [arm["name"] for arm in told["arms"] if arm["is_baseline"]] == ["ddp"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name a workload (quorate list workloads) or a training script"),
        (["--hosts", "a:2,b:2", "-n", "3", "digits"], "-n is 3, and --hosts a:2,b:2 has 4 workers; leave out -n"),
        (["--hosts", "a:2", "--virtual", "2", "digits"], "--virtual cannot be given with --hosts"),
        (["--hosts", "a:0", "digits"], '--hosts "a:0": "a:0" is not a host with a number of workers from 1 to'),
        (["-n", "2", "--ssh", "x", "digits"], "--ssh can be given with --hosts only"),
        (["--hosts", "a", "--ssh", "false", "digits"], "quorate cannot be started on host a with "),
        (["-n", "2", "--virtual", "2", "digits"], "give -n (processes) or --virtual (virtual workers)"),
        (["-n", "0", "digits"], "-n 0: a run needs at least one worker"),
        (["--virtual", "0", "digits"], "--virtual 0: a run needs at least one worker"),
        (["-n", "2", "digitz"], 'unknown workload or script "digitz"; did you mean "digits"? Known: '),
        (["-n", "2", "missing.py"], 'there is no script "missing.py"'),
        (["-n", "2", "digits", "--seeds", "0"], "--seeds 0: a comparison needs at least one seed"),
        (["-n", "2", "--strategy", "al-reduce", "digits"], 'unknown strategy "al-reduce"; did you mean "all-reduce"?'),
        (["-n", "2", "--strategy", "all-reduce:x", "digits"], '--strategy "all-reduce:x": settings are written key='),
        (["-n", "2", "--strategy", "all-reduce:x=1", "digits"], 'unknown setting of all-reduce "x"'),
        (["-n", "2", "--strategy", "ddp:x=1", "digits"], "the baseline ddp has no settings; leave out x"),
        (["--virtual", "2", "--baseline", "ddp", "digits"], "the baseline ddp needs processes (-n)"),
        (["-n", "2", "--baseline", "dpd", "digits"], 'unknown baseline "dpd"; did you mean "ddp"'),
        (["-n", "2", "--strategy", "ddp", "--strategy", "ddp", "digits"], "the strategy ddp is given twice"),
        (["-n", "2", "--stop-at-target", "digits"], "--stop-at-target goes with --target"),
        (["-n", "2", "--stop-at-target", "--target", "1", "--seconds", "2", "digits"], "--seconds and --stop-at-t"),
        (["-n", "2", "--seeds", "0", "digits"], "--seeds 0: a comparison needs at least one seed"),
        (["-n", "2", "imagenet"], "imagenet needs a setting path=FOLDER with a folder of images for each class"),
        (
            ["-n", "2", "cifar10"],
            "cifar10 needs a setting folder=..., where the CIFAR-10 binary version, unpacked, lies",
        ),
        (["-n", "2", "--seeds", "a,2", "digits"], '--seeds "a,2": give how many, such as 3, or which, such as 1,2,5'),
        (["-n", "2", "--seeds", "1,1", "digits"], "the seed 1 is given twice"),
        (["-n", "2", "--epochs", "-1", "digits"], "--epochs -1: it must be a number above 0"),
        (["-n", "2", "--epochs", "1", "--seconds", "1", "digits"], "--epochs and --seconds cannot be combined"),
        (["-n", "2", "--epochs", "1", "train.py"], "--epochs can be chosen for a workload; a script has arguments of"),
        (["-n", "2", "--compute", "constant:1ms", "digits"], "--compute can be given with --virtual N only"),
        (["--virtual", "2", "--compute", "soon", "digits"], '"soon" is not a model of compute times'),
        (["--virtual", "2", "--latency", "soon", "digits"], '"soon" is not a duration'),
        (["--virtual", "2", "--bandwidth", "0B", "digits"], "the bandwidth of a link is in bytes per second, above 0"),
        (["-n", "2", "--imbalance", "some", "digits"], '"some"'),
        (["-n", "2", "--min-step-time", "some", "digits"], '"some"'),
        (["-n", "2", "--data-share", "fair", "digits"], 'unknown share "fair"'),
        (["-n", "2", "--workload-set", "x", "digits"], '--workload-set takes key=value, not "x"'),
        (["-n", "2", "--workload-set", "x=1", "digits"], 'unknown setting of digits "x"'),
        (["-n", "2", "--workload-set", "features=0", "least-squares"], "least-squares: features must be at least 1"),
        (["-n", "2", "--workload-set", "x=1", "train.py"], "--workload-set is for workloads, but train.py is a"),
        (["-n", "2", "--metric", "height", "train.py"], "say whether a higher or a lower height is better"),
        (["-n", "2", "--lower", "train.py"], "--lower needs --metric NAME"),
        (["-n", "2", "--target", "1", "train.py"], "--target needs a measure of quality; give --metric NAME"),
        (["-n", "2", "--tune-lr", "train.py"], "--tune-lr needs a measure of quality"),
        (["-n", "2", "--tune-lr=1,,2", "digits"], '--tune-lr "1,,2": give factors of the learning rate'),
        (["-n", "2", "--tune-lr=0,1", "digits"], "--tune-lr 0: factors of a learning rate are numbers above 0"),
        (["-n", "2", "--timeout", "0", "digits"], "--timeout 0: it must be a number above 0"),
        (["-n", "2", "--name", "../x", "digits"], '"../x" is not a name for a run'),
        (["--continue", "nobody"], 'there is no run "nobody"'),
        (["--continue", "."], "there is no comparison in .: it has no compare.json"),
        (["--continue", ".", "-n", "2", "digits"], "--continue takes everything from the comparison it goes on with; "),
        (["-n", "two", "digits"], "-n takes a whole number"),
    ],
)
def test_wrong_input_is_one_sentence_and_starts_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert _status("compare", *arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"quorate: {sentence}")
    assert told.err.count("\n") == 1
    assert not (folder / "runs").exists()


def test_a_report_of_nothing_is_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _status("report", ".") == 2
    assert capsys.readouterr().err == (
        "quorate: there is no run and no comparison in .; its folder has a run.json or compare.json\n"
    )


def test_a_dry_run_tells_every_run_and_imports_nothing_heavy(folder: Path) -> None:
    code = """
import sys
from quorate.cli.main import main
from quorate.cli.verbs import status_of
try:
    main(sys.argv[1:])
except SystemExit as end:
    print(end.code, [name for name in ('torch', 'numpy') if name in sys.modules], file=sys.stderr)
"""
    arguments = ["compare", "-n", "2", "--baseline", "ddp", "--seeds", "2", "--name", "x", "--tune-lr", "--dry-run"]
    told = subprocess.run(
        [sys.executable, "-c", code, *arguments, "least-squares"],
        capture_output=True, text=True, timeout=LIMIT, check=True,
    )  # fmt: skip
    assert told.stderr == "0 []\n"
    lines = told.stdout.splitlines()
    words = "ddp (baseline) and all-reduce on least-squares, 2 workers, seeds 0 and 1: 14 runs in runs/x"
    assert lines[0] == f"would compare {words}"
    assert len(lines) == 15
    assert lines[1] == "  ddp, learning rate x0.25"
    assert lines[-2:] == ["  all-reduce, seed 1", "  ddp, seed 1"]
    assert not (folder / "runs").exists()


def test_a_dry_run_on_hosts_says_where_and_how(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--hosts", "a:2,me@b", "--ssh", "ssh -p 2222", "--silence", "3s", "--seeds", "1", "--dry-run"]
    assert _status(*words, "digits") == 0
    told, *rest = capsys.readouterr().out.splitlines()
    assert told.startswith(
        "would compare ddp (baseline) and eager-solo on digits, 3 workers on a (2), me@b (1), seed 0: "
    )
    assert [line.split(" -- ")[0].split()[:3] for line in rest[-2:]] == [["ssh", "-p", "2222"]] * 2
    assert [line.split(" -- ")[1].partition(" ")[0] for line in rest[-2:]] == ["a", "me@b"]
    assert _status(*words, "--json", "digits") == 0
    plan = json.loads(capsys.readouterr().out)
    expected = {"workers": 3, "hosts": "a:2,me@b", "ssh": "ssh -p 2222", "env": ["QUORATE_SILENCE=3s"]}
    assert {key: plan[key] for key in expected} == expected and list(plan["commands"]) == ["a", "me@b"]
    assert not (folder / "runs").exists()


def test_workers_that_are_typed_take_the_place_of_hosts_in_a_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "c.toml").write_text('subject = "digits"\nhosts = "a:2,b"\nssh = "s"\nenv = ["X=1"]\nsilence = "3s"\n')
    for typed, workers, hosts in (([], 3, "a:2,b"), (["-n", "2"], 2, None), (["--virtual", "4"], 4, None)):
        assert _status("compare", "--config", "c.toml", *typed, "--dry-run", "--json") == 0
        plan = json.loads(capsys.readouterr().out)
        assert (plan["workers"], plan.get("hosts")) == (workers, hosts)


def test_a_dry_run_as_json_says_all(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = ["--virtual", "3", "--bandwidth", "1MB"]
    options = ["--strategy", "all-reduce", "--seeds", "7,", "--metric", "loss", "--lower", "--seconds", "2"]
    rest = ["--name", "x", "--dry-run", "--json", "train.py", "--lr", "-n"]
    assert _status("compare", *world, *options, *rest) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["subject"] == {"kind": "script", "name": "train.py", "arguments": ["--lr", "-n"], "settings": {}}
    assert told["runs"] == ["runs/x/all-reduce/seed-7"]
    expected = {"world": "virtual", "workers": 3, "equal": "seconds", "seconds": 2.0, "bandwidth": 1e6, "seeds": [7]}
    assert {key: told[key] for key in expected} == expected
    assert told["metric"] == {"name": "loss", "higher_is_better": False}


@pytest.mark.parametrize(
    ("strategies", "baseline", "arms"),
    [
        ([], None, ["all-reduce"]),
        ([], "ddp", ["ddp*", "all-reduce"]),
        (["all-reduce"], None, ["all-reduce"]),
        (["all-reduce", "ddp"], None, ["all-reduce*", "ddp"]),
        (["all-reduce", "ddp"], "ddp", ["all-reduce", "ddp*"]),
        (["ddp"], "all-reduce", ["all-reduce*", "ddp"]),
        (["all-reduce:a=1,b=[1, 2],c=x y"], "all-reduce", ["all-reduce*", "all-reduce-a=1-b=-1-2-c=x-y"]),
        (["all-reduce:a=1", "ddp"], "all-reduce:a=1", ["all-reduce-a=1*", "ddp"]),
    ],
)
def test_arms_and_their_baseline(strategies: list[str], baseline: str | None, arms: list[str]) -> None:
    found = arms_from(strategies, baseline)
    assert [arm.name + "*" * arm.is_baseline for arm in found] == arms
    assert found[-1].settings in ({}, {"a": 1, "b": [1, 2], "c": "x y"})


def test_lists_of_numbers() -> None:
    assert [seeds_from(text) for text in ("3", "1,2,5", "7,")] == [(0, 1, 2), (1, 2, 5), (7,)]
    assert factors_from("2,0.5,1e0,2") == (0.5, 1.0, 2.0)


def test_a_workload_brings_its_metric_and_a_script_none(folder: Path) -> None:
    workload, script = subject_from("least-squares", [], ["features=3"]), subject_from("train.py", ["a"], [])
    assert workload == Subject(kind="workload", name="least-squares", settings={"features": 3})
    assert script == Subject(kind="script", name="train.py", arguments=["a"])
    assert metric_from(workload, None, None) == Metric(name="squared_error", higher_is_better=False)
    assert metric_from(workload, "x", True) == Metric(name="x", higher_is_better=True)
    assert metric_from(script, None, None) is None


def test_a_workload_goes_before_a_script_of_its_name(folder: Path) -> None:
    (folder / "digits").write_text("")
    assert subject_from("digits", [], []).kind == "workload"
    assert subject_from("./digits", [], []).kind == "script"
    with pytest.raises(ConfigurationError, match='there is no script "./digitz"'):
        subject_from("./digitz", [], [])


def _step(number: int, **values: float) -> Step:
    return Step(step=number, optimizer="1", round=number, begin=0.0, arrive=0.0, end=number / 4, examples=8, **values)  # type: ignore[arg-type]


def test_the_run_under_way_is_read_as_it_grows(tmp_path: Path) -> None:
    tail = Tail(tmp_path, workers=3)
    tail.look()
    assert (tail.in_words, tail.steps, tail.quality("top1")) == ("starting", 0, None)
    recorder = Recorder(tmp_path / "rank-0.jsonl")
    recorder.step(_step(1))
    recorder.flush()
    tail.look()
    assert tail.in_words == "step 1"
    recorder.step(_step(2, loss=0.5))
    recorder.write(RawRow("log", step=2, time=1.0, values={"top1": 0.25}))
    recorder.close()
    whole = (tmp_path / "rank-0.jsonl").read_text()
    (tmp_path / "rank-0.jsonl").write_text(whole + '{"kind":"step","ste')
    tail.look()
    assert (tail.in_words, tail.quality("top1")) == ("step 2, loss 0.500, 96.0 examples/s", 0.25)
    with open(tmp_path / "rank-0.jsonl", "a") as file:
        file.write('p":9,"end":2.25,"loss":null,"examples":8}\nnonsense\n')
    tail.look()
    assert tail.in_words == "step 9, 24.0 examples/s"


def test_of_learners_the_newest_merge_and_outer_step_are_told(tmp_path: Path) -> None:
    tail, recorder = Tail(tmp_path, workers=3), Recorder(tmp_path / "rank-0.jsonl")
    told = {str(rank): [{"weights": [1.0], "speed": 4.0}] for rank in range(2)}
    recorder.write(RawRow("start", size=3))
    recorder.step(_step(8))
    taken = {"0": [[0, 1]], "1": [[1, 1]]}
    recorder.write(RawRow("round", number=4, time=2.0, weight=4.0, contributors=taken, told=told, window=0.12))
    recorder.write(RawRow("outer", rho=0.3125, gain=2.5))
    tail.look()
    assert tail.in_words == "step 8, 2 of 3 merged, 0.5 rounds old, after 120 ms, rho 0.31, gain 2.50"
    recorder.write(RawRow("gone", left=2))
    recorder.close()
    tail.look()
    assert tail.in_words.startswith("step 8, goodput 8.3%, 2 of 3 merged")


def test_lines_where_there_is_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = (Arm.of("a", {}), Arm.of("b", {}))
    plan = Comparison(
        subject=Subject(kind="script", name="x"),
        metric=Metric(name="top1", higher_is_better=True),
        workers=1,
        world="real",
        arms=arms,
        seeds=[4],
        learning_rates=(0.5, 1.0, 2.0),
    )
    cells = [Cell(arm=arms[0], seed=4, factor=None), Cell(arm=arms[1], seed=0, factor=2.0, is_tuning=True)]
    recorder = Recorder(tmp_path / "rank-0.jsonl")
    recorder.write(RawRow("log", step=2, time=1.0, values={"top1": 0.25}))
    recorder.close()
    interrupt, failed = Interrupt(), Conclusion(1, "rank 0 raised\n  | once")
    with CompareProgress(plan, interrupt, RunServer(is_forking=False)) as progress:
        progress.plans(cells)
        progress.begins(cells[0], tmp_path)
        progress.ends(cells[0], tmp_path, Conclusion(0), 2.0)
        for arm, factor in (("a", 1.0), ("b", 2.0), ("c", None)):
            progress.chooses(arm, factor)
        progress.begins(cells[1], tmp_path)
        interrupt.ask()
        progress.looks(cells[1], tmp_path)
        progress.looks(cells[1], tmp_path)
        progress.ends(cells[1], tmp_path, failed, 1.0)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "quorate: [1/2] a, seed 4: begins",
        "quorate: [1/2] a, seed 4: 2.00 s, top1 0.250",
        "quorate: a: learning rate x1 is best",
        "quorate: b: learning rate x2 is best, at the edge of what was tried: a wider --tune-lr may find a better one",
        "quorate: c: no trial of a learning rate ended well, so it goes on with the script's own",
        "quorate: [2/2] b, learning rate x2: begins",
        "quorate: ending the run under way (within some 10 seconds; once more ends it at once)",
        "quorate: [2/2] b, learning rate x2: failed with status 1: rank 0 raised",
        "quorate:   | once",
    ]


def test_a_terminal_has_a_bar_and_keeps_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        arm = Arm.of("a", {})
        plan = Comparison(
            subject=Subject(kind="script", name="x"), metric=None, workers=1, world="real", arms=[arm], seeds=[4, 5]
        )
        cells = [Cell(arm=arm, seed=seed, factor=None) for seed in (4, 5)]
        recorder = Recorder(tmp_path / "rank-0.jsonl")
        recorder.step(_step(1))
        recorder.close()
        with CompareProgress(plan, Interrupt(), RunServer(is_forking=False)) as progress:
            progress.plans(cells)
            progress.begins(cells[0], tmp_path)
            progress.looks(cells[0], tmp_path)
            progress.ends(cells[0], tmp_path, Conclusion(0), 2.0)
            progress.begins(cells[1], tmp_path)
            progress.looks(cells[1], tmp_path)
        monkeypatch.undo()
    shown = all_shown(ours)
    os.close(ours)
    assert "run 1 of 2" in shown
    assert "a, seed 4: step 1" in shown
    assert "[1/2] a, seed 4: 2.00 s\r\n" in shown
    assert "run 2 of 2, about 1 s left" in shown


def test_without_a_metric_the_end_says_how_to_name_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, metric in (("none", None), ("named", "keep")):
        folder = make_comparison(tmp_path / name, seeds=(0,), fails=False, steps=20)
        if metric is None:
            plan = json.loads((folder / "compare.json").read_text())
            (folder / "compare.json").write_text(json.dumps({**plan, "metric": None}))
        (folder / "summary.json").write_text(summarize(folder).model_dump_json())
        show(folder, folder / "index.html", as_json=False)
        assert ("and name that value with --metric accuracy" in capsys.readouterr().out) == (metric is None)


def test_the_terminal_says_that_the_machine_was_busy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = summarize(make_comparison(tmp_path, seeds=(0,), fails=False, steps=20))
    for said, lines in ((None, 0), ("the machine was busy with other work (1.6 of 2 cores) in 1 of 3 runs", 1)):
        text = summary.model_copy(update={"other_work": said}).model_dump_json()
        (tmp_path / "summary.json").write_text(text)
        show(tmp_path, tmp_path / "index.html", as_json=False)
        after_the_verdict = capsys.readouterr().out.partition("\n\n")[0].splitlines()[-1]
        sentence = "The machine was busy with other work (1.6 of 2 cores) in 1 of 3 runs."
        assert (after_the_verdict == sentence) == bool(lines)


def test_the_smallest_relevant_difference_is_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_comparison(tmp_path / "a", fails=False, steps=20)

    def said(*options: str) -> tuple[float, str]:
        assert _status("report", str(folder), "--json", *options) == 0
        summary = json.loads(capsys.readouterr().out)
        return summary["relevant"], summary["arms"][2]["differences"]["examples_per_second"]

    assert said() == (0.01, "better")
    assert said("--relevant", "900%") == (9.0, "no significant difference")
    plan = json.loads((folder / "compare.json").read_text())
    (folder / "compare.json").write_text(json.dumps({**plan, "relevant": 9.0}))
    assert said() == (9.0, "no significant difference")
    assert said("--relevant", "1%") == (0.01, "better")
    assert _status("report", str(folder), "--relevant", "1") == 2
    assert '"1" is not a share such as 1% or 0.5%' in capsys.readouterr().err
    told = ("compare", "digits", "-n", "2", "--relevant", "2%", "--dry-run", "--json")
    assert _status(*told) == 0 and json.loads(capsys.readouterr().out)["relevant"] == pytest.approx(0.02)


@pytest.mark.parametrize(("cores", "workers"), [(1, 2), (4, 4), (64, 8)])
def test_a_workload_alone_is_compared_with_what_there_is(
    cores: int, workers: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(comparing, "usable_cores", lambda: cores)
    assert status_of(["compare", "digits", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        f"would compare ddp (baseline) and eager-solo on digits, {workers} workers, seeds 0, 1 and 2"
    )
    assert status_of(["compare", "digits", "--dry-run", "--virtual", "3"]) == 0
    assert capsys.readouterr().out.startswith(
        "would compare all-reduce (baseline) and eager-solo on digits, 3 virtual "
    )
    assert status_of(["compare", "digits", "--dry-run", "--strategy", "quorum"]) == 0
    assert capsys.readouterr().out.startswith(f"would compare quorum on digits, {workers} workers")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--tune-lr", "abc", "digits"], 2),
        (["--tune-lr", "0.5,1", "digits"], 2),
        (["digits", "--tune-lr", "2"], 2),
        (["--tune-lr", "digits"], 0),
        (["digits", "--tune-lr"], 0),
        (["--tune-lr=0.5,1", "digits"], 0),
    ],
)
def test_an_option_with_an_optional_value_eats_no_word(
    words: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["compare", "--dry-run", *words]) == status
    said = capsys.readouterr().err
    assert said.startswith(
        'quorate: --tune-lr takes its factors after "=", such as --tune-lr=0.25,0.5,1,2,4, not "'
    ) == (status == 2)
