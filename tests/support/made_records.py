"""Folders of runs and comparisons as training would leave them, made without training: the same bytes every time.

`make_comparison` writes three arms: `ddp` (the baseline) and `all-reduce` wait for everybody in every step; `quorum`
waits for nobody, its slow rank takes fewer steps, and it has rounds (`made_rounds`). Rank 3 is slow in all of them
unless told otherwise. One run of `all-reduce` has failed: a rank was killed in the middle of a line.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quorate.launch.run.folder import SIMULATED
from quorate.records.records import Recorder, records_of
from quorate.records.rows import Step
from quorate.report.figures.run import MeasuredRun
from quorate.report.reading.run import RunRecords
from tests.support.made_rounds import Rows, put_rounds
from tests.support.raw_rows import RawRow

WALL = 1_790_000_000.0
"""The time of day when the clocks of `Run.clocks` began, in seconds since 1970."""
KILLED = "rank 1 was killed by SIGKILL"
MACHINE: dict[str, Any] = {
    "started": "2026-09-21T14:13:20.000+00:00",
    "host": "tower",
    "cores": 8,
    "system": "Linux-6.12-x86_64-with-glibc2.41",
    "python": "3.12.4",
    "versions": {"quorate": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6"},
    "interpreter": "/usr/bin/python3",
    "folder": "/home/ada/project",
    "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False},
}
"""As in `run.json`."""


@dataclass(kw_only=True)
class Run:
    """One run to make. Times are seconds."""

    strategy: str | None = "all-reduce"
    ranks: int = 4
    steps: int = 60
    """Of each rank; where nobody waits, of a rank on average."""
    seed: int = 0
    waits: bool = True
    """Whether a step ends for all at once, when the last rank has arrived and bytes have moved."""
    compute: float = 0.020
    slow_rank: int | None = 3
    slow: float = 0.015
    """Delay in every step of the slow rank."""
    one_of: float = 0.0
    """A delay that one rank, drawn anew in every step, has."""
    jitter: float = 0.002
    communication: float = 0.003
    batch: int = 8
    step_bytes: int = 40_000
    """Sent per rank and step."""
    quality: float = 0.70
    """What top1 rises towards."""
    evaluate_every: int = 10
    """Steps; 0 for never."""
    evaluation: float = 0.050
    clocks: Sequence[tuple[str, float]] = (("tower", 1000.0),)
    """Hosts and what their clocks show at the start of the run; ranks take turns on them."""
    is_virtual: bool = False
    counts_examples: bool = True
    fails_at: int | None = None
    """Rank 1 is killed while it writes this step."""
    about: dict[str, Any] = field(default_factory=dict)
    """More for `run.json`."""


def make_run(folder: Path, run: Run | None = None, **changes: Any) -> Path:
    """Write the folder of one run; `changes` are fields of `Run`. Returns the folder."""
    made = replace(run or Run(), **changes)
    folder.mkdir(parents=True, exist_ok=True)
    _Made(folder, made).write()
    return folder


def make_comparison(folder: Path, *, seeds: Sequence[int] = (0, 1, 2), fails: bool = True, **changes: Any) -> Path:
    """Write the folder of a comparison, its `compare.json` and 3 arms of a run per seed, and of the search for a
    learning rate; `changes` are fields of `Run` for all runs. Returns the folder."""
    base = Run(**changes)
    arms: dict[str, Run] = {
        "ddp": replace(base, strategy="ddp"),
        "all-reduce": replace(base, strategy="all-reduce", communication=base.communication * 1.02),
        "quorum": replace(base, strategy="quorum", waits=False, quality=base.quality - 0.02),
    }
    factors = (0.5, 1.0, 2.0)
    tuning_seed = next(seed for seed in range(len(seeds) + 1) if seed not in seeds)
    chosen = {"ddp": 1.0, "all-reduce": 1.0, "quorum": 0.5}
    for name, run in arms.items():
        for seed in seeds:
            is_failed = fails and name == "all-reduce" and seed == seeds[-1]
            about = {"learning_rate_factor": chosen[name]}
            last = replace(run, seed=seed, fails_at=run.steps // 3 if is_failed else None, about=about)
            make_run(folder / name / f"seed-{seed}", last)
        for factor in factors:
            trial = folder / name / "tuning" / f"lr-{factor:g}-seed-{tuning_seed}"
            worse = 0.05 * abs(math.log2(factor / chosen[name]))
            about = {"learning_rate_factor": factor}
            make_run(trial, run, steps=20, seed=tuning_seed, quality=run.quality - worse, about=about)
    settings: dict[str, dict[str, Any]] = {"quorum": {"wait_for": 2}}
    plan = {
        "format": 1,
        "command": ["quorate", "compare", "-n", str(base.ranks), "--workload", "stdlib-functions", "--tune-lr"],
        "subject": {"kind": "workload", "name": "stdlib-functions", "arguments": [], "settings": {"classes": 20}},
        "metric": {"name": "top1", "higher_is_better": True},
        "workers": base.ranks,
        "world": "virtual" if base.is_virtual else "real",
        "arms": [
            {"name": name, "strategy": run.strategy, "settings": settings.get(name, {}), "is_baseline": name == "ddp"}
            for name, run in arms.items()
        ],
        "seeds": list(seeds),
        "equal": "examples",
        "epochs": 1.5,
        "seconds": None,
        "target": 0.62,
        "imbalance": None if base.slow_rank is None else f"rank:{base.slow_rank}:{base.slow * 1000:g}ms",
        "pace": None,
        "share": None,
        "learning_rates": list(factors),
        "chosen_learning_rates": chosen,
        "warm_up_steps": 5,
        "compute": None,
        "latency": None,
        "bandwidth": None,
        **MACHINE,
    }
    (folder / "compare.json").write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")
    return folder


def make_scaled_comparison(folder: Path) -> Path:
    """Write a comparison of two strategies with 1, 2 and 4 workers, and 8 simulated for one. Returns the folder."""
    arms: list[dict[str, Any]] = []
    for strategy in ("all-reduce", "sgp"):
        for workers in (1, 2, 4):
            name = f"{strategy}-workers={workers}"
            arms.append({"name": name, "strategy": strategy, "workers": workers, "is_baseline": not arms})
            about = {"scale": [1, 2, 4], "price": 3600.0, "metric": {"name": "top1", "higher_is_better": True}}
            make_run(folder / name / "seed-0", strategy=strategy, ranks=workers, slow_rank=None, about=about)
    row = {"workers": 8, "steps_per_second": 200.0, "waiting_share": 0.2, "communication_share": 0.1}
    damaged = [1, {"workers": 9}, {**row, "workers": 4}, {**row, "steps_per_second": 0}]
    (folder / arms[2]["name"] / "seed-0" / SIMULATED).write_text(json.dumps({"simulated": [row, *damaged]}))
    (folder / arms[5]["name"] / "seed-0" / SIMULATED).write_text(json.dumps({"simulated": 3, "why": "too short"}))
    arms[5]["batch"] = 8
    plan = {
        "format": 1,
        "subject": {"kind": "workload", "name": "digits"},
        "metric": {"name": "top1", "higher_is_better": True},
        "workers": 4,
        "world": "real",
        "arms": [{"settings": {}, **arm} for arm in arms],
        "seeds": [0],
        "warm_up_steps": 2,
        **MACHINE,
    }
    (folder / "compare.json").write_text(json.dumps(plan))
    return folder


class _Made:
    """One run being made: what each rank has reached, and its rows."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder, self.run = folder, run
        self.random = random.Random(f"{run.strategy} {run.seed}")
        self.now = [0.0] * run.ranks
        """Seconds since the run began, by rank."""
        self.taken = [0] * run.ranks
        self.rows: Rows = [[] for _ in range(run.ranks)]
        self.round = 0

    def write(self) -> None:
        if self.run.waits:
            self._together()
        else:
            self._each_for_itself()
        self._write_about()
        for rank in range(self.run.ranks):
            self._write_rank(rank)

    def _together(self) -> None:
        run = self.run
        for step in range(1, run.steps + 1):
            late = self.random.randrange(run.ranks) if run.one_of else -1
            began = list(self.now)
            spent = [self._busy(rank, run.one_of if rank == late else 0.0) for rank in range(run.ranks)]
            arrived = [t + sum(own) for t, own in zip(began, spent, strict=True)]
            moved = max(arrived) + run.communication * self.random.uniform(0.9, 1.1)
            self.round += 1
            for rank in range(run.ranks):
                self._step(rank, began[rank], spent[rank], wait=moved - arrived[rank] - 0.0002, contributors=run.ranks)
            if run.evaluate_every and step % run.evaluate_every == 0:
                self._evaluate()

    def _each_for_itself(self) -> None:
        run, evaluated = self.run, 0
        while sum(self.taken) < run.ranks * run.steps:
            rank = min(range(run.ranks), key=lambda one: self.now[one])
            self._step(rank, self.now[rank], self._busy(rank, 0.0), wait=0.001, contributors=1)
            if run.evaluate_every and sum(self.taken) // (run.evaluate_every * run.ranks) > evaluated:
                evaluated += 1
                self._evaluate()
        caller = min(rank for rank in range(run.ranks) if rank != run.slow_rank or run.ranks == 1)
        put_rounds(self.rows, caller, [self._start(rank) for rank in range(run.ranks)])

    def _busy(self, rank: int, delay: float) -> tuple[float, float, float]:
        """Seconds of data, delay and compute of a step."""
        run = self.run
        slow = run.slow if rank == run.slow_rank else 0.0
        return 0.0005, slow + delay, run.compute + abs(self.random.gauss(0.0, run.jitter))

    def _step(
        self,
        rank: int,
        begin: float,
        spent: tuple[float, float, float],
        *,
        wait: float,
        contributors: int,
    ) -> None:
        run = self.run
        data, delay, compute = spent
        arrive = begin + data + delay + compute
        encode, decode, update, rest = 0.0002, 0.0001, 0.0010, 0.0001
        end = arrive + encode + wait + decode + update + rest
        self.taken[rank] += 1
        start = self._start(rank)
        row = Step(
            step=self.taken[rank],
            optimizer="1",
            round=self.round,
            begin=start + begin,
            arrive=start + arrive,
            end=start + end,
            data=data,
            delay=delay,
            compute=compute,
            encode=encode,
            wait=wait,
            decode=decode,
            update=update,
            loss=3.0 * math.exp(-self._progress() * 3.0) + self.random.gauss(0.0, 0.05),
            examples=run.batch if run.counts_examples else None,
            bytes_out=run.step_bytes,
            bytes_in=run.step_bytes,
            contributors=contributors,
        )
        self.rows[rank].append(row)
        self.now[rank] = end

    def _evaluate(self) -> None:
        """All ranks meet and evaluate, and rank 0 logs what came out."""
        began = max(self.now)
        for rank in range(self.run.ranks):
            start = self._start(rank)
            self.now[rank] = began + self.run.evaluation
            span = {"step": self.taken[rank], "begin": start + began, "end": start + self.now[rank]}
            self.rows[rank].append(("evaluate", span))
        quality = self.run.quality * (1.0 - math.exp(-self._progress() * 4.0)) + self.random.gauss(0.0, 0.003)
        values = {"top1": round(quality, 4), "cross_entropy": round(3.0 - 3.0 * quality, 4), "examples": 4096}
        self.rows[0].append(
            ("log", {"step": self.taken[0], "time": self._start(0) + self.now[0] + 1e-4, "values": values})
        )

    def _progress(self) -> float:
        """The share of the run's work that is done."""
        return sum(self.taken) / (self.run.ranks * self.run.steps)

    def _host(self, rank: int) -> tuple[str, float]:
        return self.run.clocks[rank % len(self.run.clocks)]

    def _start(self, rank: int) -> float:
        """What the clock of `rank` shows when training begins, a second after the process began."""
        return self._host(rank)[1] + 1.0

    def _write_about(self) -> None:
        run = self.run
        command = ["quorate", "run", "-n", str(run.ranks), "--strategy", str(run.strategy), "train.py"]
        about = {
            "command": command,
            "script": "train.py",
            "arguments": [],
            "is_module": False,
            "workers": run.ranks,
            "world": "virtual" if run.is_virtual else "real",
            "strategy": run.strategy,
            "settings": {},
            "seed": run.seed,
            "imbalance": None,
            "pace": None,
            "share": None,
            "seconds_limit": None,
            "learning_rate_factor": None,
            "omp_threads": "1",
            **MACHINE,
            **run.about,
        }
        (self.folder / "run.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        failed = run.fails_at is not None
        outcome = {
            "status": 1 if failed else 0,
            "seconds": round(max(self.now) + 2.5, 3),
            "why": KILLED if failed else None,
            "ended": "2026-09-21T14:14:00.000+00:00",
        }
        (self.folder / "outcome.json").write_text(json.dumps(outcome) + "\n", encoding="utf-8")

    def _write_rank(self, rank: int) -> None:
        run = self.run
        path = records_of(self.folder, rank)
        path.unlink(missing_ok=True)
        host, clock = self._host(rank)
        recorder = Recorder(path, held=1000)
        recorder.write(
            RawRow(
                "start",
                rank=rank,
                size=run.ranks,
                host=host,
                pid=4000 + rank,
                clock="virtual" if run.is_virtual else "monotonic",
                now=clock + 0.5,
                wall=None if run.is_virtual else WALL + 0.5,
                device="cpu",
                seed=run.seed,
            )
        )
        recorder.write(
            RawRow(
                "distribute",
                optimizer="1",
                algorithm="SGD",
                strategy=run.strategy or "all-reduce",
                settings={},
                parameters=10_000,
                learning_rates=[0.05],
            )
        )
        for row in self.rows[rank]:
            if run.fails_at is not None and isinstance(row, Step) and row.step >= run.fails_at:
                break
            if isinstance(row, Step):
                recorder.step(row)
            else:
                kind, values = row
                recorder.write(RawRow(kind, **values))
        if run.fails_at is None:
            peak = None if run.is_virtual else 300_000_000 + 1_000_000 * rank
            recorder.write(
                RawRow("end", time=self._start(rank) + self.now[rank], steps=self.taken[rank], peak_bytes=peak)
            )
        recorder.close()
        if run.fails_at is not None and rank == 1:
            with open(path, "a", encoding="utf-8") as file:
                file.write('{"kind":"step","step":' + str(run.fails_at) + ',"optimizer":"1","rou')


def measured(run: RunRecords, *, warm_up: int = 0, seed: int = 0) -> MeasuredRun:
    """The run as topics of the report measure it."""
    return MeasuredRun(run, warm_up, merged=run.merged(), seed=seed)
