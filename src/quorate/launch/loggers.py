"""Loggers of a run's numbers beside its records: MLflow, TensorBoard and Weights & Biases, each in one small class."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from quorate.core.errors import ConfigurationError, unknown
from quorate.core.installed import missing_extra
from quorate.records.live_figures import LiveFigures

NONE = "none"
KNOWN = ("mlflow", "tensorboard", "wandb")
"""The loggers; each has the name of the package that it needs, and of the extra."""

LEAVES = 30.0
"""Seconds for all loggers together to write their held numbers at the end."""
_MOST_HELD = 10_000
"""The most numbers that are held for slow loggers; more are left out, which is reported."""

BETWEEN_SECONDS = 0.25
"""Between two scalars of a name that are written, at least."""
OURS = "quorate/"
"""Prefix of names that are not the script's own."""

_LONGEST = 500
"""Letters of a parameter that the oldest stores take."""

_STEP = "step"
"""The axis of our curves: a run that is shared with the script counts steps of its own."""


class Logger(Protocol):
    """One place for numbers. All methods are called by one thread, which is not the training's."""

    def add(self, name: str, value: float, step: int) -> None:
        """Keep one number: of `step`, which never falls for one name."""

    def close(self, *, is_well: bool) -> None:
        """There will be no more; `is_well` says whether the run ended well."""


def known_names(text: str) -> list[str]:
    """Return the names in `wandb,mlflow`. Raises `ConfigurationError` for an unknown name."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if NONE in names:
        if len(names) > 1:
            raise ConfigurationError(f'"{text}": {NONE} means no logger, and goes with no other name')
        return []
    for name in names:
        if name not in KNOWN:
            raise unknown("logger", name, (*KNOWN, NONE))
    return names


def names_from(text: str | None) -> list[str]:
    """Return the names as `known_names`; for None the default: TensorBoard's files where it is installed.

    Raises `MissingExtra` as well, for a name whose package is not installed.
    """
    if text is None:
        return ["tensorboard"] if importlib.util.find_spec("tensorboard") is not None else []
    names = known_names(text)
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise missing_extra(f"the logger {name} needs {name}", extra=name, package=name)
    return names


def opened(name: str, folder: Path, about: Mapping[str, Any]) -> Logger:
    """The logger of this name for the run in `folder`, of which `about` says what was chosen."""
    kinds: dict[str, Callable[[Path, Mapping[str, Any]], Logger]]
    kinds = {"mlflow": MlflowRun, "tensorboard": EventFiles, "wandb": WandbRun}
    return kinds[name](folder, about)


Opens = Callable[[], Logger]


class Writing:
    """Opens the loggers and calls them, in order, in a thread of its own, which begins with the first number.

    A logger that raises, whatever it is, is left out from then on, and `say` is given a sentence: a training is worth
    more than its curves.
    """

    def __init__(self, opens: Mapping[str, Opens], say: Callable[[str], None]) -> None:
        self._opens, self._say = dict(opens), say
        self._open: dict[str, Logger] = {}
        self._held: queue.Queue[tuple[str, float, int] | None] = queue.Queue(_MOST_HELD)
        self._thread: threading.Thread | None = None
        self._is_full = False
        self.is_well = True
        """Whether the run has ended well; to be set before `close`."""

    def add(self, name: str, value: float, step: int) -> None:
        """Write this number, some time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="quorate loggers", daemon=True)
            self._thread.start()
        try:
            self._held.put_nowait((name, value, step))
        except queue.Full:
            if not self._is_full:
                self._say("the loggers are too slow and miss some values; the records have all of them")
            self._is_full = True

    def close(self) -> None:
        """Write the held numbers; those not written after `LEAVES` seconds are left out."""
        if self._thread is None:
            return
        try:
            self._held.put(None, timeout=LEAVES)
        except queue.Full:
            pass  # it is stuck, as the next line finds
        self._thread.join(LEAVES)
        if self._thread.is_alive():
            self._say(
                f"loggers have not written everything within {LEAVES:g} s ({', '.join(self._open)}); leaving them"
            )
        self._thread = None

    def _write(self) -> None:
        for name, opens in self._opens.items():
            self._guarded(name, partial(self._begin, name, opens))
        while (number := self._held.get()) is not None:
            for name, logger in list(self._open.items()):
                self._guarded(name, partial(logger.add, *number))
        for name, logger in list(self._open.items()):
            self._guarded(name, partial(logger.close, is_well=self.is_well))

    def _begin(self, name: str, opens: Opens) -> None:
        self._open[name] = opens()

    def _guarded(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._open.pop(name, None)
            self._say(f"the logger {name} has stopped working ({type(error).__name__}: {error}); the training goes on")


def writing_to(
    names: Sequence[str], folder: Path, about: Mapping[str, Any], say: Callable[[str], None]
) -> Writing | None:
    """The thread for these loggers; None where there are none."""
    return Writing({name: partial(opened, name, folder, about) for name in names}, say) if names else None


class Numbers(Protocol):
    """A receiver of numbers."""

    def add(self, name: str, value: float, step: int) -> None:
        """Take one."""

    def close(self) -> None:
        """Take no more."""


class Scalars:
    """A copy of rank 0's losses, of what it logs, and of `records.live_figures`, as named numbers by step.

    They are `loss`, the names given to `log`, and `quorate/goodput`, `quorate/rho` and so on; the goodput once a worker
    has died, or where there are rounds. Of losses, merges and outer steps at most four a second, and the last one, are
    written.
    """

    def __init__(self, writing: Numbers) -> None:
        self._writing = writing
        self._figures = LiveFigures()
        self._step = 0
        self._written_at: dict[str, float] = {}
        self._left_out: dict[str, tuple[dict[str, float], int]] = {}
        """By the kind of row."""

    def row(self, values: Mapping[str, Any]) -> None:
        """One row of the records, as it is written."""
        kind, figures = values["kind"], {OURS + name: value for name, value in self._figures.row(values).items()}
        if kind == "step" and values["optimizer"] == "1":
            self._step = values["step"]
            loss = {} if values["loss"] is None else {"loss": values["loss"]}
            self._now_and_then(kind, loss, values["end"])
        elif kind == "log":
            for name, value in values["values"].items():
                if isinstance(value, int | float):
                    self._add(name, value, values["step"])
        elif figures:
            self._now_and_then(kind, figures, values["time"])

    def _now_and_then(self, kind: str, figures: dict[str, float], at: float) -> None:
        if at - self._written_at.get(kind, -BETWEEN_SECONDS) < BETWEEN_SECONDS:
            self._left_out[kind] = figures, self._step
            return
        self._written_at[kind] = at
        self._left_out.pop(kind, None)
        self._write(kind, figures, self._step)

    def _write(self, kind: str, figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            self._add(name, value, step)
        if kind == "step" and (self._figures.has_failed or self._figures.has_rounds):
            goodput = self._figures.goodput
            if goodput is not None:
                self._add(OURS + "goodput", goodput, step)

    def _add(self, name: str, value: float, step: int) -> None:
        self._writing.add(name, value, step)

    def close(self) -> None:
        """Write the held numbers."""
        for kind, (figures, step) in self._left_out.items():
            self._write(kind, figures, step)
        self._left_out.clear()
        self._writing.close()


class MlflowRun:
    """A run of the experiment that `MLFLOW_EXPERIMENT_NAME` names, at the place of `MLFLOW_TRACKING_URI`.

    A run that the script has begun is shared, and left open for it.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        import mlflow

        self._client = mlflow.MlflowClient()
        begun = mlflow.active_run()
        self._is_ours = begun is None
        if begun is not None:
            self._id: str = begun.info.run_id
            return
        # What `start_run` begins is the process's own run, which the script may want to begin itself.
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        run = self._client.create_run(experiment, run_name=folder.name, tags={"quorate.folder": str(folder)})
        self._id = run.info.run_id
        for key, value in about.items():
            self._client.log_param(self._id, key, json.dumps(value)[:_LONGEST])

    def add(self, name: str, value: float, step: int) -> None:
        self._client.log_metric(self._id, name, value, step=step)

    def close(self, *, is_well: bool) -> None:
        if self._is_ours:
            self._client.set_terminated(self._id, "FINISHED" if is_well else "FAILED")


class EventFiles:
    """TensorBoard's event files, in the run's folder: `tensorboard --logdir runs` shows them. Text is not kept."""

    def __init__(self, folder: Path, _: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def add(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def close(self, *, is_well: bool) -> None:
        self._writer.close()


class WandbRun:
    """A run of Weights & Biases: the one that the script has begun, or a new one of the project `WANDB_PROJECT`.

    The script's own run is left open for it. `WANDB_MODE=offline` writes into the run's folder alone, and needs no
    account.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        import wandb

        self._is_ours = wandb.run is None
        self._run: Any = wandb.run or wandb.init(name=folder.name, dir=str(folder), config=dict(about))
        self._run.define_metric(_STEP)
        self._named: set[str] = set()

    def add(self, name: str, value: float, step: int) -> None:
        if name not in self._named:
            self._named.add(name)
            self._run.define_metric(name, step_metric=_STEP)
        self._run.log({name: value, _STEP: step})

    def close(self, *, is_well: bool) -> None:
        if self._is_ours:
            self._run.finish(exit_code=0 if is_well else 1)
