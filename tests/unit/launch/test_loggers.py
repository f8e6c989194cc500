"""The numbers of loggers: all that the script logs, and at intervals those of every step."""

from __future__ import annotations

import queue
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import ConfigurationError, MissingExtra
from quorate.launch import loggers
from quorate.launch.loggers import writing as writings
from quorate.launch.loggers.writing import Scalars, Writing, writing_to
from tests.unit.records.test_live_figures import taken
from tests.unit.report.test_goodput import GONE, start, steps


class Kept:
    """In the place of loggers."""

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[int, float]]] = {}

    def add(self, name: str, value: float, step: int) -> None:
        self.found.setdefault(name, []).append((step, value))

    def close(self) -> None:
        """Nothing is open."""


def written(folder: Path, *rows: dict[str, Any], **settings: Any) -> dict[str, list[tuple[int, float]]]:
    scalars = Kept()
    files = Scalars(scalars)
    for row in (*start(0, settings, apart=bool(settings)), *rows):
        files.row(row)
    files.close()
    return scalars.found


def often(count: int) -> list[dict[str, Any]]:
    """Ten steps a second."""
    return [{**row, "loss": 1.0} for row in steps(*((n / 10, n / 10 + 0.1) for n in range(count)))]


def test_losses_come_four_times_a_second_and_the_last_one(tmp_path: Path) -> None:
    assert written(tmp_path, *often(8)) == {"loss": [(1, 1.0), (4, 1.0), (7, 1.0), (8, 1.0)]}


def test_merges_and_outer_steps_are_written_with_the_step(tmp_path: Path) -> None:
    outer = {"kind": "outer", "time": 2.1, "rho": 0.5, "gain": 3.0}
    series = written(tmp_path, *often(3), taken(1, window=0.25), outer, fragments=2)
    assert {name: series[f"quorate/{name}"] for name in ("merge age", "merged", "window", "rho", "gain")} == {
        "merge age": [(3, 0.0)],
        "merged": [(3, 2.0)],
        "window": [(3, 0.25)],
        "rho": [(3, 0.5)],
        "gain": [(3, 3.0)],
    }
    assert series["quorate/share of rank 1"] == [(3, 0.75)]


def test_the_goodput_is_written_once_a_worker_has_died(tmp_path: Path) -> None:
    assert "quorate/goodput" not in written(tmp_path, *often(8))
    series = written(tmp_path, *often(4), GONE, *often(8)[4:])
    ((_, first), *_, (step, last)) = series["quorate/goodput"]
    assert step == 8 and last < first < 1.0


NUMBERS = [("loss", 0.5, 1), ("top1", float("nan"), 1), ("loss", 0.25, 2)]


def sent(folder: Path, *names: str, is_well: bool = True) -> list[str]:
    """Return the messages while `NUMBERS` were sent to these loggers."""
    said: list[str] = []
    writing = writing_to(names, folder, {"workers": 2, "strategy": None}, said.append)
    assert writing is not None
    writing.is_well = is_well
    for number in NUMBERS:
        writing.add(*number)
    writing.close()
    return said


def test_tensorboard_reads_its_files(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert sent(tmp_path, "tensorboard") == []
    accumulator = event_accumulator.EventAccumulator(str(tmp_path))
    accumulator.Reload()
    assert [(event.step, event.value) for event in accumulator.Scalars("loss")] == [(1, 0.5), (2, 0.25)]


class Wandb(ModuleType):
    """The part of wandb that we use."""

    def __init__(self, run: Any = None) -> None:
        super().__init__("wandb")
        self.run, self.told = run, []

    def init(self, **about: Any) -> Wandb:
        self.told.append(("init", about["name"], about["config"]["workers"]))
        return self

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.told.append(("axis", name, step_metric))

    def log(self, values: dict[str, float]) -> None:
        self.told.append(("log", values))

    def finish(self, exit_code: int) -> None:
        self.told.append(("finish", exit_code))


@pytest.mark.parametrize("is_well", [True, False])
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_well: bool) -> None:
    monkeypatch.setitem(sys.modules, "wandb", fake := Wandb())
    assert sent(tmp_path, "wandb", is_well=is_well) == []
    assert fake.told[:3] == [("init", tmp_path.name, 2), ("axis", "step", None), ("axis", "loss", "step")]
    assert ("log", {"loss": 0.25, "step": 2}) in fake.told and fake.told[-1] == ("finish", 0 if is_well else 1)


class Mlflow(ModuleType):
    """The part of mlflow that we use; its client is itself."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.begun: Any = None
        self.told: list[tuple[Any, ...]] = []

    def MlflowClient(self) -> Mlflow:
        return self

    def active_run(self) -> Any:
        return self.begun

    def get_experiment_by_name(self, name: str) -> None:
        self.told.append(("experiment", name))

    def create_experiment(self, name: str) -> str:
        return "7"

    def create_run(self, experiment: str, *, run_name: str, tags: dict[str, str]) -> Any:
        self.told.append(("run", experiment, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def log_param(self, run: str, key: str, value: str) -> None:
        self.told.append(("param", run, key, value))

    def log_metric(self, run: str, key: str, value: float, *, step: int) -> None:
        self.told.append(("metric", run, key, value, step))

    def set_terminated(self, run: str, status: str) -> None:
        self.told.append(("ended", run, status))


@pytest.mark.parametrize("is_well", [True, False])
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_well: bool) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", fake := Mlflow())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    assert sent(tmp_path, "mlflow", is_well=is_well) == []
    assert fake.told[:3] == [("experiment", "mine"), ("run", "7", tmp_path.name), ("param", "r", "workers", "2")]
    assert ("metric", "r", "loss", 0.25, 2) in fake.told
    assert fake.told[-1] == ("ended", "r", "FINISHED" if is_well else "FAILED")


def test_a_run_that_the_script_has_begun_at_mlflow_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", fake := Mlflow())
    fake.begun = SimpleNamespace(info=SimpleNamespace(run_id="theirs"))
    assert sent(tmp_path, "mlflow") == []
    assert {(call[0], call[1]) for call in fake.told} == {("metric", "theirs")}


def test_a_run_that_the_script_has_begun_at_wandb_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", fake := Wandb())
    fake.run = fake
    assert sent(tmp_path, "wandb") == []
    assert {call[0] for call in fake.told} == {"axis", "log"}


def test_a_logger_that_fails_is_left_out_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Wandb):
        def log(self, values: dict[str, float]) -> None:
            raise ConnectionError("no network")

    monkeypatch.setitem(sys.modules, "wandb", Broken())
    monkeypatch.setitem(sys.modules, "mlflow", healthy := Mlflow())
    said = sent(tmp_path, "wandb", "mlflow")
    assert said == ["the logger wandb has stopped working (ConnectionError: no network); the training goes on"]
    assert len([call for call in healthy.told if call[0] == "metric"]) == len(NUMBERS)


def test_a_logger_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()

    class Stuck:
        def add(self, name: str, value: float, step: int) -> None:
            free.wait(20)

        def close(self, *, is_well: bool) -> None:
            """Nothing."""

    monkeypatch.setattr(writings, "LEAVES", 0.05)
    said: list[str] = []
    stuck = Writing({"stuck": Stuck}, said.append)
    stuck._held = queue.Queue(2)
    for _ in range(5):
        stuck.add("x", 1.0, 1)
    stuck.close()
    free.set()
    assert said[0].startswith("the loggers are too slow") and said[1].startswith("loggers have not written everything")
    assert len(said) == 2


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("wanbd", ConfigurationError, 'unknown logger "wanbd"; did you mean "wandb"'),
        ("none,wandb", ConfigurationError, "none means no logger"),
        ("wandb,not-there", ConfigurationError, "Known: mlflow, none, tensorboard, wandb"),
        ("mlflow", MissingExtra, "needs mlflow; install it with: pip install"),
    ],
)
def test_names_that_are_refused(text: str, error: type[Exception], match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(error, match=match):
        loggers.names_from(text)
    assert loggers.names_from(None) == [] == loggers.names_from("none")
    assert loggers.known_names("wandb, mlflow,wandb") == ["wandb", "mlflow"]


def test_a_script_and_the_launcher_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts, launchers = Wandb(), Mlflow()
    for module in (scripts, launchers):
        module.__spec__ = SimpleNamespace(name=module.__name__)  # type: ignore[assignment]
        monkeypatch.setitem(sys.modules, module.__name__, module)

    def train() -> None:
        quorate.join(log="wandb")
        model = torch.nn.Linear(2, 1)
        optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
        model(torch.ones(2, 2)).square().mean().backward()
        optimizer.step()
        quorate.log(top1=0.5, text="left out")

    monkeypatch.chdir(tmp_path)
    quorate.launch(train, virtual=2, progress=False)
    logged = [values for kind, values in (call[:2] for call in scripts.told) if kind == "log"]
    assert [sorted(values) for values in logged] == [["loss", "step"], ["step", "top1"]]
    scripts.told.clear()
    quorate.launch(train, virtual=2, log="mlflow", progress=False)
    assert not scripts.told and [call for call in launchers.told if call[0] == "metric"]
    launchers.told.clear()
    quorate.launch(train, virtual=2, log="none", progress=False)
    assert not scripts.told and not launchers.told
