"""What a comparison is: which make no sense, and that `compare.json` says all of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from quorate.compare.plan import Arm, Comparison, Metric, Subject, read_plan
from quorate.core.errors import ConfigurationError

PLAN = Comparison(
    subject=Subject(kind="workload", name="digits", settings={"limit": 5}),
    metric=Metric(name="top1", higher_is_better=True),
    workers=3,
    world="real",
    arms=(Arm.of("ddp", {}, is_baseline=True), Arm.of("quorum", {"wait_for": 1}).scaled(2, batch=8, is_baseline=False)),
    seeds=(1, 2, 5),
    equal="seconds",
    epochs=1.5,
    seconds=2.0,
    target=0.9,
    relevant=0.02,
    metric_pattern=r"top1=([0-9.]+)",
    imbalance="one-of:20ms",
    pace="5ms",
    share="dynamic",
    learning_rates=(0.5, 1.0),
    chosen_learning_rates={"ddp": 0.5},
    warm_up_steps=3,
    compute="constant:1ms",
    latency=1e-3,
    bandwidth=1e6,
    batch=4,
    evaluations=2,
    hosts="a:2,b",
    ssh="ssh -p 2222",
    env=("X=1",),
    omp_threads="2",
    timeout=7.0,
    simulated=(64,),
    price=0.5,
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(Comparison)}
    assert not [name for name, default in defaults.items() if getattr(PLAN, name) == default], "each is tried"
    PLAN.write(tmp_path / "made", ["quorate", "compare"])
    about = json.loads((tmp_path / "made" / "compare.json").read_text())
    assert about["command"] == ["quorate", "compare"]
    assert {"started", "host", "cores", "git", "versions"} <= about.keys()
    read = read_plan(tmp_path / "made")
    assert json.dumps(read.as_json()) == json.dumps(PLAN.as_json())
    changed = dataclasses.replace(read, chosen_learning_rates={"ddp": 1.0})
    changed.rewrite(tmp_path / "made")
    assert read_plan(tmp_path / "made") == changed
    assert json.loads((tmp_path / "made" / "compare.json").read_text())["started"] == about["started"]
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["compare.json"]


def test_of_one_machine_no_hosts_are_written() -> None:
    alone = dataclasses.replace(PLAN, hosts=None)
    assert alone.reached is None and PLAN.as_json().keys() - alone.as_json().keys() == {"hosts", "ssh", "env"}


def test_of_one_number_of_workers_none_of_others_is_written() -> None:
    of_strategies = dataclasses.replace(PLAN, arms=PLAN.arms[:1])
    assert (PLAN.scale, of_strategies.scale) == ((2,), ())
    assert PLAN.as_json().keys() - of_strategies.as_json().keys() == {"simulated", "price"}
    first, second = PLAN.as_json()["arms"]
    assert first.keys() == {"name", "strategy", "settings", "is_baseline"}
    assert (second["name"], second["workers"], second["batch"]) == ("quorum-wait_for=1-workers=2-batch=8", 2, 8)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"arms": ()}, "at least one strategy"),
        ({"arms": (Arm.of("ddp", {}), Arm.of("ddp", {}))}, "the strategy ddp is given twice"),
        ({"seeds": (1, 2, 1)}, "the seed 1 is given twice"),
        ({"seeds": ()}, "seeds are whole numbers from 0 to "),
        ({"seeds": (1, -2)}, "seeds are whole numbers from 0 to 9223372036854775807, at least one"),
        ({"workers": 0}, "at least one worker, not 0"),
        ({"arms": (Arm.of("ddp", {}).scaled(0, batch=None, is_baseline=True),)}, "at least one worker, not 0"),
        ({"price": 0.0}, "--price 0: the price of one worker for one hour must be above 0"),
        ({"workers": 4}, "4 workers are not as many as --hosts a:2,b has"),
        ({"world": "virtual"}, "virtual workers are in one process, and not on several hosts"),
        ({"hosts": "a:2,a"}, '--hosts "a:2,a" names a twice'),
        ({"ssh": "'x"}, "--ssh .* is not a command"),
        (
            {"arms": (Arm.of("ddp", {}, is_baseline=True), Arm.of("gossip", {}, is_baseline=True))},
            "at most one baseline",
        ),
        ({"epochs": 0.0}, "--epochs 0: it must be a number above 0"),
        ({"seconds": -1.0}, "--seconds -1: it must be a number above 0"),
        ({"timeout": float("inf")}, "--timeout inf: it must be a number above 0"),
        ({"batch": 0}, "--batch 0"),
        ({"evaluations": -1}, "--evaluations -1"),
        ({"learning_rates": (1.0, 0.0)}, "--tune-lr 0: factors"),
        ({"metric": None}, "--target needs a measure of quality; give --metric NAME"),
        ({"metric": None, "target": None}, "--tune-lr needs a measure of quality"),
        ({"seconds": None}, "equal seconds need a number of seconds"),
    ],
)
def test_what_makes_no_sense_is_refused(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        dataclasses.replace(PLAN, **changed)


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (None, "there is no comparison in .*: it has no compare.json"),
        ("{", "compare.json cannot be read: "),
        ("[]", "is not of the format 1"),
        ('{"format": 2}', "is not of the format 1"),
        ('{"format": 1}', "compare.json is damaged: subject: Field required"),
        ('{"format": 1, "metric": null, "subject": {"kind": "script", "nam": "x"}}', "is damaged: .*nam"),
    ],
)
def test_what_is_damaged_is_refused(tmp_path: Path, written: str | None, sentence: str) -> None:
    if written is not None:
        (tmp_path / "compare.json").write_text(written)
    with pytest.raises(ConfigurationError, match=sentence):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    ("strategy", "settings", "name"),
    [
        ("gossip", {}, "gossip"),
        ("quorum", {"wait_for": 0.5, "late": "add"}, "quorum-wait_for=0.5-late=add"),
        ("quorum", {"members": ["a/b", "..", 1]}, "quorum-members=-a-b-..-1"),
    ],
)
def test_arms_have_names_that_folders_can_have(strategy: str, settings: dict[str, object], name: str) -> None:
    assert Arm.of(strategy, settings).name == name


def test_the_arm_of_a_file_has_the_name_that_the_file_registers(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text('@strategies.register("calm")\n@dataclass(frozen=True)\nclass Calm(Strategy): ...\n')
    assert Arm.of(str(path), {"period": 7}).name == "calm-period=7"
    assert Arm.of(str(tmp_path / "other.py"), {}).name == "other"


def test_the_search_for_learning_rates_has_a_seed_of_its_own() -> None:
    assert PLAN.tuning_seed == 0
    assert dataclasses.replace(PLAN, seeds=(0, 1, 3)).tuning_seed == 2
