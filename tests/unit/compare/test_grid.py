"""The runs of a comparison: their order, their folders, what each is told, and which learning rate wins."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from quorate.compare.grid import SCRIPT, best_factor, final_cells, request_of, set_aside, steps_of, tuning_cells
from quorate.compare.plan import Arm, Comparison, Metric, Subject
from quorate.launch.hosts.reach import Hosts
from quorate.launch.run.folder import write_outcome
from quorate.launch.run.overrides import Overrides
from quorate.launch.warm.request import RunRequest, VirtualRun
from quorate.records.records import Recorder
from quorate.records.rows import Step
from tests.support.raw_rows import RawRow

PLAN = Comparison(
    subject=Subject(kind="script", name="train.py", arguments=["--lr", "3"]),
    metric=Metric(name="top1", higher_is_better=True),
    workers=2,
    world="real",
    arms=(Arm(name="a", strategy="x"), Arm(name="b", strategy="y", settings={"k": 1}), Arm(name="c", strategy=None)),
    seeds=(4, 0, 2),
    learning_rates=(0.25, 1.0, 2.0),
)


def test_every_arm_meets_every_seed_and_none_is_always_first() -> None:
    cells = [(cell.arm.name, cell.seed) for cell in final_cells(PLAN)]
    assert cells == [("a", 4), ("b", 4), ("c", 4), ("b", 0), ("c", 0), ("a", 0), ("c", 2), ("a", 2), ("b", 2)]
    assert [str(cell.folder) for cell in final_cells(PLAN)][:2] == ["a/seed-4", "b/seed-4"]
    tuning = tuning_cells(PLAN)
    assert [(cell.arm.name, cell.factor) for cell in tuning][:4] == [("a", 0.25), ("b", 0.25), ("c", 0.25), ("b", 1.0)]
    assert {cell.seed for cell in tuning} == {1}
    assert str(tuning[0].folder) == "a/tuning/lr-0.25-seed-1"
    assert len(tuning) == 9
    assert tuning_cells(dataclasses.replace(PLAN, learning_rates=None)) == []


def test_the_run_of_an_arm_has_its_shrink() -> None:
    small = Arm(name="a", strategy="x").shrunk("prune:amount=0.9+cluster", is_baseline=False)
    plan = dataclasses.replace(PLAN, arms=(Arm(name="a", strategy="x"), small))
    assert small.name == "a-prune-amount=0.9+cluster"
    requests = [request_of(plan, cell, Path("here")) for cell in final_cells(plan)[:2]]
    assert [request.overrides.shrink for request in requests] == [None, "prune:amount=0.9+cluster"]
    assert requests[1].overrides.environment()["QUORATE_SHRINK"] == "prune:amount=0.9+cluster"


def test_each_run_is_told_what_it_is_to_do() -> None:
    plan = dataclasses.replace(
        PLAN, imbalance="one-of:1ms", pace="2ms", share="dynamic", seconds=9.0, chosen_learning_rates={"b": 2.0}
    )
    of_b = next(cell for cell in final_cells(plan) if cell.arm.name == "b")
    chosen = Overrides(
        strategy="y", settings={"k": 1}, seed=4, imbalance="one-of:1ms", pace="2ms", share="dynamic",
        learning_rate_factor=2.0,
    )  # fmt: skip
    expected = RunRequest(
        script="train.py", arguments=["--lr", "3"], overrides=chosen, size=2, folder=Path("here"), virtual=None
    )
    assert request_of(plan, of_b, Path("here")) == expected
    timed = dataclasses.replace(plan, equal="seconds", world="virtual", compute="constant:1ms", latency=0.1)
    request = request_of(timed, of_b, Path("here"))
    assert request.overrides == dataclasses.replace(chosen, seconds=9.0)
    assert request.virtual == VirtualRun(seed=4, compute="constant:1ms", latency=0.1, bandwidth=None)
    assert RunRequest.from_line(request.line()) == request
    on_hosts = request_of(dataclasses.replace(plan, hosts="a,b", ssh="s", env=("X",)), of_b, Path("here"))
    assert on_hosts.hosts == Hosts(text="a,b", ssh="s", env=("X",))
    assert RunRequest.from_line(on_hosts.line()) == dataclasses.replace(
        on_hosts, hosts=Hosts(text="a,b", ssh="s", env=["X"])
    )


def test_a_workload_is_trained_by_its_script() -> None:
    subject = Subject(kind="workload", name="digits", settings={"limit": 5})
    plan = dataclasses.replace(PLAN, subject=subject)
    cell = final_cells(plan)[0]
    request = request_of(plan, cell, Path("here"))
    assert (request.script, request.arguments) == (str(SCRIPT), ["digits", "--settings", '{"limit": 5}'])
    assert SCRIPT.is_file()
    plan = dataclasses.replace(plan, epochs=1.5, batch=8, evaluations=3, equal="seconds", seconds=1.0)
    more = ["--endless", "--epochs", "1.5", "--evaluations", "3", "--batch", "8"]
    assert list(request_of(plan, cell, Path("here")).arguments)[3:] == more


def test_an_arm_may_have_workers_and_a_batch_of_its_own() -> None:
    arms = tuple(PLAN.arms[0].scaled(count, batch=batch, is_baseline=False) for count, batch in ((1, None), (4, 2)))
    plan = dataclasses.replace(PLAN, arms=arms, workers=4, batch=8, subject=Subject(kind="workload", name="digits"))
    single, four = (request_of(plan, cell, Path("here")) for cell in final_cells(plan)[:2])
    assert [str(cell.folder) for cell in final_cells(plan)][:2] == ["a-workers=1/seed-4", "a-workers=4-batch=2/seed-4"]
    assert (single.size, four.size) == (1, 4)
    assert (list(single.arguments)[-2:], list(four.arguments)[-2:]) == (["--batch", "8"], ["--batch", "2"])


def test_what_is_unfinished_is_set_aside_and_never_lost(tmp_path: Path) -> None:
    folder = tmp_path / "seed-0"
    assert set_aside(folder) is None
    for number in (1, 2):
        folder.mkdir()
        (folder / "what").write_text(str(number))
        assert set_aside(folder) == tmp_path / f"seed-0.interrupted-{number}"
    assert [(tmp_path / f"seed-0.interrupted-{n}" / "what").read_text() for n in (1, 2)] == ["1", "2"]


def _trial(folder: Path, factor: str, quality: list[float | None], status: int = 0) -> None:
    place = folder / "a" / "tuning" / f"lr-{factor}-seed-1"
    place.mkdir(parents=True)
    recorder = Recorder(place / "rank-0.jsonl")
    for step, value in enumerate(quality, 1):
        recorder.step(Step(step=step, optimizer="1", round=step, begin=0.0, arrive=0.0, end=0.0))
        recorder.write(RawRow("log", step=step, time=0.0, values={"lr": 1} if value is None else {"top1": value}))
    recorder.close()
    write_outcome(place, status, 1.0)


@pytest.mark.parametrize(
    ("trials", "higher", "best"),
    [
        ({"0.25": [0.1, 0.5], "1": [0.9, 0.4], "2": [0.1]}, True, 0.25),
        ({"0.25": [0.1, 0.5], "1": [0.9, 0.4], "2": [0.1]}, False, 2.0),
        ({"0.25": [0.5], "1": [0.5], "2": [0.5, None]}, True, 1.0),
        ({"0.25": [math.nan], "1": [0.5], "2": [0.4]}, True, 1.0),
        ({"0.25": [None], "1": [], "2": [0.4]}, True, 2.0),
        ({"0.25": [], "1": []}, True, None),
    ],
)
def test_the_best_learning_rate_is_chosen(
    tmp_path: Path, trials: dict[str, list[float | None]], higher: bool, best: float | None
) -> None:
    for factor, quality in trials.items():
        _trial(tmp_path, factor, quality)
    plan = dataclasses.replace(PLAN, metric=Metric(name="top1", higher_is_better=higher))
    assert best_factor(plan, PLAN.arms[0], tmp_path) == best


def test_a_trial_that_failed_is_not_chosen(tmp_path: Path) -> None:
    _trial(tmp_path, "0.25", [0.9], status=1)
    _trial(tmp_path, "1", [0.1])
    assert best_factor(PLAN, PLAN.arms[0], tmp_path) == 1.0
    assert best_factor(PLAN, PLAN.arms[1], tmp_path) is None


def test_steps_are_counted(tmp_path: Path) -> None:
    _trial(tmp_path, "1", [0.1, 0.2, 0.3])
    assert steps_of(tmp_path / "a" / "tuning" / "lr-1-seed-1") == 3
    assert steps_of(tmp_path) == 0
