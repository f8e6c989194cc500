"""`quorate plan` as it is typed: what is refused, told and shown."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from quorate.cli.main import main
from quorate.cli.planner import trials
from quorate.cli.planner.table import how_to_run
from quorate.launch.warm.run_server import RunServer
from quorate.planning.gpt import transformer_from
from quorate.planning.layouts import Layout
from quorate.planning.model import Model
from quorate.planning.tries import STEPS
from tests.support.launching import LIMIT, is_running, until
from tests.support.planned_scripts import DIVIDED, SCRIPT
from tests.support.programs import DEVNULL, QUORATE, Program
from tests.support.programs import quorate as run_quorate

SIZES = "gpt:hidden=512,layers=8,heads=8,sequence=128,vocabulary=1000"
OPTIONS = ("-n", "4", "--memory", "8GB", "--bandwidth", "10Gbit")
OF_SIZES = (*OPTIONS, "--flops", "1T", "--batch", "16")
BLOCK = 64 * 256 + 256 + 256 * 64 + 64


def status(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([SIZES], "quorate plan needs -n 8 (the number of workers), --memory 24GB (of a worker) and --bandwidth"),
        ([*OPTIONS, SIZES], "gpt: needs --flops, operations a second of a worker (312T), and --batch"),
        ([*OF_SIZES, "gpt:layers=3"], 'does not say hidden, heads, sequence, vocabulary; write gpt:hidden=H,'),
        ([*OF_SIZES, SIZES, "more"], 'gpt: is not a script, and takes no "more"'),
        ([*OF_SIZES, "-n", "0", SIZES], "--workers 0: from 1 to 65,536 workers are planned for"),
        ([*OF_SIZES, "--batch", "0", SIZES], "--batch 0: a step needs at least one example"),
        ([*OF_SIZES, "--flops", "fast", SIZES], '"fast" is not a number such as 64, 1.5M or 312T'),
        ([*OF_SIZES, "--flops", "0T", SIZES], "--flops: the operations per second must be above 0"),
        ([*OF_SIZES, "--efficiency", "2", SIZES], "--efficiency 2: it must be a share above 0 and at most 1"),
        ([*OF_SIZES, "--per-host", "2", SIZES], "--per-host and --host-network must be given together"),
        ([*OF_SIZES, "--per-host", "2", "--host-network", "300GB", SIZES], "--host-network 5us:300GB: at least"),
        ([*OF_SIZES, "--axis-network", "rows=1us:1GB", SIZES], "write AXIS=LATENCY:BANDWIDTH, such as tensor=30us"),
        ([*OF_SIZES, "--axis-network", "tensor=1us", SIZES], "write AXIS=LATENCY:BANDWIDTH, such as tensor=30us"),
        ([*OF_SIZES, "--per-host", "3", "--host-network", "1us:1GB", SIZES], "4 workers are not on hosts of 3"),
        ([*OF_SIZES, "--cores", "0", SIZES], "--cores 0: a host needs at least one core"),
        ([*OF_SIZES, "--strategy", "gossip", SIZES], 'unknown strategy "gossip"'),
        ([*OF_SIZES, "--objective", "speed", SIZES], "--objective speed: it is time, cost or energy"),
        ([*OF_SIZES, "--objective", "cost", SIZES], "--objective cost needs prices; give --price or --buy"),
        ([*OF_SIZES, "--objective", "energy", "--power", "1kW", SIZES], "--power: say with --examples or --tokens"),
        ([*OF_SIZES, "--imbalance", "one-of:1s", "--like", "a", SIZES], "both say who is late; leave one of them out"),
        ([*OF_SIZES, "--learned", "nowhere", SIZES], "--learned nowhere: there is no finished comparison of this name"),
        ([*OF_SIZES, "--critical-batch", "0", SIZES], "--critical-batch must be above 0"),
        ([*OF_SIZES, "--max-axis", "rows=2", SIZES], '--max-axis "rows=2": write AXIS=N, where AXIS is one of'),
        ([*OF_SIZES, "--memory", "1MB", SIZES], "nothing fits: the smallest, "),
        ([*OPTIONS, "--flops", "1T", "train.py"], "--flops can be given with gpt: only"),
        ([*OPTIONS, "--attention", "window", "train.py"], "--attention can be given with gpt: only"),
        ([*OF_SIZES, "--attention", "windy", SIZES], 'unknown attention pattern "windy"'),
        ([*OPTIONS, "--try", "0", "train.py"], "--try 0: at least one layout is tried"),
        ([*OF_SIZES, "--try", "2", SIZES], "--try runs a script, and gpt: is none; leave --try out"),
        ([*OPTIONS, "--per-host", "2", "--host-network", "1us:1GB", "--try", "2", "a.py"], "and --per-host plans for"),
        ([*OPTIONS, "--cores", "4097", "--try", "2", "train.py"], ", and the plan is for --cores 4097"),
        ([*OPTIONS, "-n", "4096", "--try", "2", "train.py"], "--try: 4096 workers do not fit on this machine's "),
        ([*OPTIONS, "-n", "1", "--memory", "4096GB", "--try", "2", "train.py"], "need more memory than this machine's"),
        ([*OF_SIZES, "--price", "2", SIZES], '"2" is not an amount for each h, such as 2.5/h'),
        ([*OF_SIZES, "--price", "2/h", SIZES], "--price: say with --examples or --tokens how long the training is"),
        ([*OPTIONS, "--buy", "9", "--power", "1kW", "a.py"], "--buy and --power: say with --examples how long the"),
        ([*OF_SIZES, "--examples", "1M", "--tokens", "1G", SIZES], "both say how long the training is; leave one"),
        ([*OPTIONS, "--tokens", "1G", "train.py"], "--tokens can be given with gpt: only; say --examples for a script"),
        ([*OF_SIZES, "--tokens", "0", SIZES], "--examples and --tokens must be above 0"),
        ([*OF_SIZES, "--occupancy", "60%", SIZES], "--occupancy can be given with --buy only"),
        ([*OF_SIZES, "--energy", "1/kWh", "--carbon", "1g/kWh", SIZES], "--energy and --carbon can be given with --p"),
        ([*OF_SIZES, "--buy", "9", "--occupancy", "0%", "--tokens", "1", SIZES], "--occupancy must be above 0% and at"),
        ([*OF_SIZES, "--buy", "9", "--years", "0", "--tokens", "1", SIZES], "--years must be above 0"),
        ([*OPTIONS, "nowhere.py"], 'there is no script "nowhere.py"'),
    ],
)  # fmt: skip
def test_what_is_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert status(*words) == 2
    assert sentence in capsys.readouterr().err


def test_the_best_five_and_why_others_lose(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    assert status(*OF_SIZES, SIZES) == 0
    out = capsys.readouterr().out
    words = " ".join(out.split())
    assert "over 4 workers of 8.00 GB; " in words and "16 examples a step" in words
    assert [line[0] for line in out.splitlines() if line[:1].isdigit()] == ["1", "2", "3", "4", "5"]
    assert "lost: tensor=4: at best " in words and " times as long; sums over the tensor axis take " in words
    assert "Steps are predicted, not measured." in out


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(*OF_SIZES, "--json", "--strategy", "AllReduce", "--max-axis", "stages=1", SIZES) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["batch"], told["cluster"]["workers"], told["cluster"]["bandwidth"]) == (16, 4, 1.25e9)
    assert len(told["best"]) == 5
    for one in told["best"]:
        assert one["replicas"] * one["stages"] * one["shards"] * one["tensor"] == 4
        assert one["stages"] == 1 and one["strategy"] in ("all-reduce", None)
        assert one["memory"] <= 8e9 and one["seconds"] > 0
    assert {"what", "why", "layouts"} == set(told["lost"][0])


COSTS = (
    *("--price", "32.7726/h", "--buy", "140000", "--upkeep", "20534/y", "--occupancy", "60%", "--tokens", "300M"),
    *("--power", "6.5kW", "--carbon", "400g/kWh"),
)
ON_HOSTS = (*OF_SIZES, "--per-host", "2", "--host-network", "1us:1GB", "--strategy", "all-reduce")


@pytest.mark.parametrize("columns", [140, 80, 60])
def test_what_the_training_costs(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert status(*ON_HOSTS, *COSTS, SIZES) == 0
    out = capsys.readouterr().out
    words = " ".join(out.split())
    assert "Costs of 2,343,750 examples on 2 hosts; each is a host of 2 workers." in words
    assert "Rented: 32.7726 for an hour of a host, only while it is used." in words
    assert "Bought: 140,000 for a host, over 4 years, and 20,534 a year; it computes 60% of all hours." in words
    assert "Buying is cheaper from an occupancy of 19.3% on; at 60%, buy." in words
    assert max(map(len, out.splitlines())) <= columns
    assert words.count(" kWh") == words.count(" kg") == 5


def test_costs_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(*ON_HOSTS, *COSTS, "--json", SIZES) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["pricing"]["hosts"], plan["pricing"]["workers"]) == (2, 2)
    assert plan["pricing"]["even_occupancy"] == pytest.approx(0.193, abs=5e-4)
    for layout in plan["best"]:
        hours = layout["seconds"] * 300e6 / 128 / 16 / 3600
        cost = layout["cost"]
        assert cost["seconds"] == pytest.approx(3600 * hours) and cost["kwh"] == pytest.approx(2 * 6.5 * hours)
        assert cost["rented"] == pytest.approx(2 * 32.7726 * hours)
        assert cost["bought"] == pytest.approx(2 * hours * 55_534 / 8760 / 0.6)
        assert cost["petaflop"] == pytest.approx(transformer_from(SIZES).flops * 300e6 / 128 / 1e15)


def test_strategies_are_ranked_by_the_time_to_the_target(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of which a comparison has measured the passes; others are apart, with the passes that they may need."""
    monkeypatch.chdir(tmp_path)
    arms = [
        {
            "name": name,
            "is_baseline": name == "all-reduce",
            "time_to_target": {"mean": examples},
            "examples_per_second": {"mean": 1.0},
            "target_reached": [1, 1],
        }
        for name, examples in (("all-reduce", 100.0), ("local-sgd", 300.0))
    ]
    Path("one").mkdir()
    Path("one", "summary.json").write_text(json.dumps({"target": 0.9, "arms": arms}))
    words = (*OF_SIZES, "--max-axis", "stages=1", "--max-axis", "tensor=1", "--max-axis", "shards=1")
    three = ("--strategy", "all-reduce", "--strategy", "local-sgd", "--strategy", "diloco")
    assert status(*words, *three, "--learned", "one", "--critical-batch", "32", "--tokens", "1G", "--json", SIZES) == 0
    plan = json.loads(capsys.readouterr().out)
    measured = {choice["strategy"]: choice for choice in plan["best"]}
    assert set(measured) == {"all-reduce", "local-sgd"}
    assert measured["local-sgd"]["passes"] == 3 and measured["local-sgd"]["learning"] == "measured"
    for choice in measured.values():
        assert choice["noise"] == 1.5
        steps = 1e9 / 128 / 16 * 1.5 * choice["passes"]
        assert choice["to_target"] == pytest.approx(steps * choice["seconds"])
    (other,) = plan["unmeasured"]
    first = plan["best"][0]
    assert other["strategy"] == "diloco" and other["learning"] == "not measured"
    assert other["may_need"] == pytest.approx(first["seconds"] * first["passes"] / other["seconds"])


@pytest.mark.parametrize("columns", [80, 60])
def test_the_cheapest_number_of_workers(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers exchange less than four, and cost less; failures take a share of all steps."""
    monkeypatch.setenv("COLUMNS", str(columns))
    words = (
        *OF_SIZES,
        "-n",
        "2,4",
        "--objective",
        "cost",
        "--price",
        "2/h",
        "--tokens",
        "1G",
        "--strategy",
        "all-reduce",
    )
    assert status(*words, "--failures", "mtbf=10d,restart=10min", SIZES) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    said = " ".join(out.split())
    assert "over 2 and 4 workers of 8.00 GB" in said and "goodput" in said and "to the target" in said
    assert status(*words, "--json", SIZES) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    costs = [float(f"{choice['cost']['rented']:.3g}") for choice in best]
    assert costs == sorted(costs)


def test_a_worker_is_a_host_of_its_own_without_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(*OF_SIZES, "--examples", "1M", "--price", "2.5/h", SIZES) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Costs of 1,000,000 examples on 4 hosts; each is a host of 1 worker." in out
    assert "Buying" not in out and "Bought" not in out and "energy" not in out


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py"


def test_a_script_is_timed(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert status(*OPTIONS, "--json", script, "10") == 0
    said = capfd.readouterr()
    told: dict[str, Any] = json.loads(said.out)
    numbers = 8 * 64 + 64 + 4 * BLOCK + 64 * 3 + 3
    assert (told["model"], told["numbers"], told["batch"]) == ("Net", numbers, 40)
    assert all(one["parts"]["computing"] > 0 for one in told["best"])
    assert said.err.count("stepped") == 10, "a script that makes few steps is timed to its end"
    assert "was not timed" not in said.err, "what divides the model is distribute, as under --mesh"
    assert "Warning" not in said.err


@pytest.mark.slow
def test_how_the_first_choice_is_started(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The line that is printed is one that can be typed."""
    only = ("--max-axis", "replicas=1", "--max-axis", "shards=1", "--max-axis", "tensor=1")
    assert status("-n", "2", *OPTIONS[2:], *only, script, "10") == 0
    _, _, told = capfd.readouterr().out.partition("\nThe first choice: ")
    command, call, *_ = told.splitlines()
    assert command == "quorate run -n 2 --mesh stages=2 train.py 10"
    assert re.fullmatch(
        r'with quorate\.parallelize\(model, schedule="[a-z0-9-]+", microbatches=\d+, stages=\[("blocks\.\d"(, )?)+\]\)',
        call,
    ), call
    arguments = call.removeprefix("with quorate.parallelize(model").removesuffix(")")
    Path(script).write_text(DIVIDED.replace("quorate.parallelize(Net())", f"quorate.parallelize(Net(){arguments})"))
    assert run_quorate(Path.cwd(), *shlex.split(command)[1:]).returncode == 0


def test_commands_of_layouts() -> None:
    model, script = Model(name="Net", blocks=[], batch=8), ["a b.py", "--fast"]
    assert how_to_run(Layout(), model, script) == "quorate run -n 1 'a b.py' --fast"
    one = Layout(replicas=2, shards=2, zero=2, strategy="d-psgd")
    assert how_to_run(one, model, script) == (
        "quorate run -n 4 --mesh replicas=2,shards=2 --zero 2 --strategy d-psgd 'a b.py' --fast"
    )


def test_a_script_with_too_few_steps(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert status(*OPTIONS, script, "3") == 2
    assert (
        "train.py has ended before its optimizer.step() number 6, so there is nothing to measure"
        in capfd.readouterr().err
    )


@pytest.mark.slow
def test_layouts_are_tried(
    script: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / script).write_text(SCRIPT.replace("quorate.join()", FAILS_IN_TWO))
    monkeypatch.setattr(trials, "TURNS", 1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    here = ("-n", "2", "--memory", "100MB", "--bandwidth", "10Gbit", "--cores", str(cores), "--strategy", "all-reduce")
    assert status(*here, "--max-axis", "stages=1", "--try", "9", "--json", script, "10") == 0
    said = capfd.readouterr()
    told: dict[str, Any] = json.loads(said.out)
    by_kind = {
        ("shards" if one["shards"] > 1 else "tensor" if one["tensor"] > 1 else "replicas"): one for one in told["tried"]
    }
    measured = [one["measured"] for one in told["tried"] if one["measured"] is not None]
    assert measured == sorted(measured) and measured[0] > 0
    assert by_kind["replicas"]["steps"] == STEPS and by_kind["replicas"]["failed"] is None
    assert by_kind["tensor"]["measured"] is None
    assert "no tensor axis here" in by_kind["tensor"]["failed"] and "quorate: failed: " in said.err
    assert by_kind["shards"]["failed"] is None


@pytest.mark.slow
def test_replicas_are_tried_as_replicas(script: str, tmp_path: Path, server: RunServer) -> None:
    """Without a mesh, `parallelize` divides a model over all workers."""
    looks = "\nassert all(type(p) is nn.Parameter for p in model.parameters())\noptimizer ="
    (tmp_path / script).write_text(DIVIDED.replace("\noptimizer =", looks))
    found = trials.steps_of(server, script, ["10"], Layout(replicas=2, strategy="all-reduce"))
    assert not isinstance(found, str) and len(found) == STEPS
    assert "AssertionError" in trials.steps_of(server, script, ["10"], Layout(shards=2, zero=3))


@pytest.mark.slow
def test_several_stages_on_a_worker_are_tried(script: str, tmp_path: Path, server: RunServer) -> None:
    """They begin where the plan says."""
    (tmp_path / script).write_text(DIVIDED)
    layout = Layout(stages=2, schedule="interleaved-1f1b", chunks=2, microbatches=2)
    found = trials.steps_of(server, script, ["10"], layout, ["blocks.1", "blocks.2", "blocks.3"])
    assert not isinstance(found, str) and len(found) == STEPS
    assert "nowhere" in trials.steps_of(server, script, ["10"], layout, ["blocks.1", "blocks.2", "nowhere"])


@pytest.mark.slow
def test_an_interrupt_ends_what_is_tried(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace('print("stepped")', SAYS_WHO))
    words = ("plan", "-n", "1", "--memory", "100MB", "--bandwidth", "10Gbit", "--try", "1", "train.py", "1000000")
    program = Program([*QUORATE, *words], cwd=tmp_path, stdout=DEVNULL)
    assert program.stderr is not None
    while "trying, turn 1" not in program.stderr.readline():
        assert program.poll() is None
    (tmp_path / "worker").unlink()  # of the runs in which blocks were timed
    until(lambda: (tmp_path / "worker").exists() or program.poll() is not None, "the worker")
    worker = int((tmp_path / "worker").read_text())
    program.send_signal(signal.SIGINT)
    assert program.wait(LIMIT) == 130
    program.stderr.close()
    until(lambda: not is_running(worker), "the worker's end")


FAILS_IN_TWO = """
import os
if any("tensor=2" in value for value in os.environ.values()):
    raise ValueError("no tensor axis here")
quorate.join()
"""
SAYS_WHO = """
    import os
    if not os.path.exists("worker"):
        with open("worker.part", "w") as file:
            file.write(str(os.getpid()))
        os.rename("worker.part", "worker")
    import time
    time.sleep(0.2)
"""
