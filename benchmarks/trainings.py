"""Runs of a benchmark: asked of one server that has imported torch once, and read from the records they leave.

All runs here train a workload in the script that `quorate compare` uses, so that what a benchmark measures is what a
user gets; a benchmark may also give a script of its own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from quorate.compare.grid import SCRIPT
from quorate.launch.run.overrides import Overrides
from quorate.launch.warm.request import RunRequest, VirtualRun
from quorate.launch.warm.run_server import IMPORTED, Run, RunServer
from quorate.report.reading.run import RunRecords, read_run

LOOK_EVERY = 0.05
"""Seconds between two looks at a run."""
POINTS = {"hyperplane": 32_768, "digits": 1_442}
"""Training examples of a workload, unless its settings say."""
LIMIT = 900.0
"""Seconds that a run may take, unless told."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All of a run but its strategy and its seed."""

    workers: int
    steps: int
    """Of every worker, where all take equally many: the work is so many batches of each."""
    batch: int = 256
    name: str = "hyperplane"
    """Of the workload."""
    workload: Mapping[str, object] = field(default_factory=dict)
    """Its settings."""
    pace: str | None = None
    imbalance: str | None = None
    share: str | None = None
    learning_rate_factor: float | None = None
    is_virtual: bool = False
    compute: str = "constant:0"
    """Virtual seconds of a step, beside the pace."""
    latency: float | None = None
    """Virtual seconds of a message, however small."""

    @property
    def arguments(self) -> list[str]:
        """Of the script."""
        examples = self.steps * self.batch * self.workers
        points = self.workload.get("points", POINTS[self.name])
        assert isinstance(points, int)
        settings = [self.name, "--settings", json.dumps(dict(self.workload)), "--batch", str(self.batch)]
        return [*settings, "--epochs", repr(examples / points), "--evaluations", "1"]


@dataclass(frozen=True, kw_only=True)
class Side:
    """What is measured against what."""

    name: str
    strategy: str
    settings: Mapping[str, object] = field(default_factory=dict)


DDP = Side(name="ddp", strategy="ddp")
ALL_REDUCE = Side(name="all-reduce", strategy="all-reduce")
SOLO = Side(name="eager-solo", strategy="eager-solo")
MAJORITY = Side(name="eager-majority", strategy="eager-majority")
QUORUM = Side(name="quorum", strategy="quorum")
"""Of any majority: its default."""


class Runs:
    """A context in which runs are made, one at a time; their folders are gone at its end. Progress goes to stderr.

    `total` is how many there will be. Raises `SystemExit` where one fails.
    """

    def __init__(self, total: int, limit: float = LIMIT) -> None:
        self._total, self._done, self._limit = total, 0, limit
        self._folder = tempfile.TemporaryDirectory(prefix="quorate-benchmark-")
        modules = ("quorate.compare.train_workload", "quorate.workloads.hyperplane")
        self._server = RunServer(imported=(*IMPORTED, *modules))

    def __enter__(self) -> Runs:
        self._server.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.__exit__(kind, error, at)
        self._folder.cleanup()

    def train(self, side: Side, setting: Setting, seed: int = 0) -> RunRecords:
        """The workload, trained."""
        virtual = None
        if setting.is_virtual:
            virtual = VirtualRun(seed=seed, compute=setting.compute, latency=setting.latency)
        return self.script(str(SCRIPT), setting.arguments, side, setting, seed, virtual=virtual)

    def script(
        self,
        script: str,
        arguments: Sequence[str],
        side: Side,
        setting: Setting,
        seed: int = 0,
        *,
        virtual: VirtualRun | None = None,
        attend: Callable[[Path], None] | None = None,
    ) -> RunRecords:
        """A script, run to its end; `attend` is called with its folder every `LOOK_EVERY` seconds."""
        self._done += 1
        folder = Path(self._folder.name, str(self._done))
        folder.mkdir()
        request = RunRequest(
            script=script,
            arguments=arguments,
            overrides=Overrides(
                strategy=side.strategy,
                settings=dict(side.settings),
                seed=seed,
                imbalance=setting.imbalance,
                pace=setting.pace,
                share=setting.share,
                learning_rate_factor=setting.learning_rate_factor,
            ),
            size=setting.workers,
            folder=folder,
            virtual=virtual,
        )
        world = "virtual" if virtual is not None else "real"
        late = f", {setting.imbalance}" if setting.imbalance else ""
        rate = f", learning rate x{setting.learning_rate_factor:g}" if setting.learning_rate_factor else ""
        sys.stderr.write(f"{self._done}/{self._total}  {side.name}, {setting.workers} {world} workers{late}{rate}\n")
        self._wait(self._server.start(request), folder, attend)
        return read_run(folder)

    def _wait(self, run: Run, folder: Path, attend: Callable[[Path], None] | None) -> None:
        looks = 0
        while (ended := run.wait(LOOK_EVERY)) is None:
            looks += 1
            if attend is not None:
                attend(folder)
            if looks * LOOK_EVERY > self._limit:
                raise SystemExit(f"a run had not ended after {self._limit:g} s")
        if ended.status != 0:
            raise SystemExit(f"a run failed: {ended.why}")


def in_milliseconds(seconds: float) -> str:
    """As imbalance and pace are written: 0.28 is `280ms`."""
    return f"{seconds * 1e3:g}ms"
