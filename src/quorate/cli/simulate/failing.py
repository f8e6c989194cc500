"""`quorate simulate --failures`: its plan, checked, and its execution, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quorate.cli.choices import check_seed
from quorate.cli.compare.comparison import arms_from
from quorate.cli.options import flags_given
from quorate.cli.simulate.plan import SimulateOptions, check_twice, numbers_from, parameters_from
from quorate.cli.simulate.results import NOTHING, Columns, Shown, begin, keep, show, tell_kept
from quorate.core.durations import Constant
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import limit_from
from quorate.inject.failures import failures_from
from quorate.report.wording import counted, listed, seconds_in_words, share_in_words
from quorate.simulation.failing.grid import FailingArm, FailingGrid, FailingRow, rows_of
from quorate.simulation.failing.picture import picture
from quorate.simulation.failing.recovery import Recovery, recovery_from
from quorate.simulation.failing.ways import way_of
from quorate.simulation.links import links_from
from quorate.wire.virtual import parse_compute

MOST = 10_000_000
_USUAL = ("all-reduce", "all-reduce:on_death=continue", "decoupled-diloco")
_LEARNERS = 8
_NOT_HERE = (
    "steps", "codecs", "map", "learned", "pace", "imbalances", "batch", "like", "check", "real", "epochs",
    "workload_settings",
)  # fmt: skip
_MONTH, _LONGEST = 30 * 86_400.0, 100 * 365.25 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class FailingPlan:
    """A checked simulation of failures."""

    grid: FailingGrid

    @property
    def title(self) -> str:
        """Strategies and number of workers, in words."""
        grid = self.grid
        workers = listed([f"{count:,}" for count in grid.workers])
        arms = listed([arm.text for arm in grid.arms])
        return f"{arms} with {workers} worker{'' if grid.workers == (1,) else 's'} that fail"

    @property
    def heading(self) -> str:
        """The heading of the picture."""
        return f"What failures leave of {listed([f'{count:,}' for count in self.grid.workers])} workers"

    @property
    def about(self) -> str:
        """The choices besides strategies and workers."""
        grid = self.grid
        recovery = f", recovery: {grid.recovery.text}" if grid.recovery.text else ""
        network = f", network: {listed([links.text for links in grid.networks])}" if grid.networks else ""
        return (
            f"failures: {grid.failures.text}{recovery}, learners: {listed([str(count) for count in grid.learners])}, "
            f"{_time(grid.seconds)} of steps of {seconds_in_words(grid.step)}{network}"
        )

    @property
    def in_words(self) -> str:
        """The plan in one line."""
        return f"{self.title} ({self.about}): {counted(len(list(self.grid.cases())), 'row')}"

    @property
    def as_json(self) -> dict[str, Any]:
        grid = self.grid
        return {
            "strategies": [arm.text for arm in grid.arms],
            "workers": list(grid.workers),
            "learners": list(grid.learners),
            "failures": grid.failures.text,
            "recovery": grid.recovery.text or None,
            "seconds": grid.seconds,
            "step": grid.step,
            "networks": [links.text for links in grid.networks],
            "parameters": grid.parameters,
            "seed": grid.seed,
            "rows": len(list(grid.cases())),
        }


def planned_failing(asked: SimulateOptions) -> FailingPlan:
    """Return the plan. Raises `ConfigurationError` for the first fault."""
    others = flags_given(asked, *_NOT_HERE)
    if others:
        raise ConfigurationError(
            f"--failures and {listed(others)} cannot be combined: all steps are alike, apart from failures"
        )
    check_seed("--seed", asked.seed)
    if asked.parameters is not None and not asked.networks:
        raise ConfigurationError("with --failures, --parameters needs --network as well")
    grid = FailingGrid(
        failures=failures_from(asked.failures or ""),
        recovery=Recovery() if asked.recovery is None else recovery_from(asked.recovery),
        arms=tuple(
            FailingArm(text=arm.name, way=way_of(arm.strategy or "", arm.settings))
            for arm in arms_from(asked.strategies or _USUAL, None)
        ),
        workers=(1000,)
        if asked.sizes is None
        else numbers_from("--workers", asked.sizes, MOST, "workers are simulated"),
        learners=(),
        networks=tuple(map(links_from, asked.networks)),
        seconds=_seconds(asked.seconds),
        step=_step(asked.compute),
        parameters=parameters_from(asked.parameters) or 10**6,
        seed=asked.seed or 0,
    )
    grid = _with_learners(asked, grid)
    check_twice(
        {
            "number of workers": grid.workers,
            "number of learners": grid.learners,
            "network": [links.text for links in grid.networks],
            "strategy": [arm.text for arm in grid.arms],
        }
    )
    grid.check()
    return FailingPlan(grid=grid)


def _with_learners(asked: SimulateOptions, grid: FailingGrid) -> FailingGrid:
    least = min(grid.workers)
    if asked.learners is None:
        return replace(grid, learners=(min(_LEARNERS, least),))
    if all(arm.way.meets == "one learner" for arm in grid.arms):
        raise ConfigurationError(
            f"under {listed([arm.text for arm in grid.arms])} all workers form one learner; leave out --learners"
        )
    return replace(grid, learners=numbers_from("--learners", asked.learners, MOST, "learners are simulated"))


def _seconds(text: str | None) -> float:
    if text is None:
        return _MONTH
    seconds = limit_from(text)
    if not 0 < seconds <= _LONGEST:
        raise ConfigurationError(f"--seconds {text}: it must be above 0 and at most 100 years")
    return seconds


def _step(text: str | None) -> float:
    compute = parse_compute(text or "constant:1s", seed=0)
    if not isinstance(compute, Constant) or not compute.seconds > 0:
        raise ConfigurationError(
            f'--compute "{text}": with --failures all steps take the same time, above 0; write constant:1s'
        )
    return compute.seconds


def _time(seconds: float) -> str:
    days = seconds / 86_400
    return f"{days:.3g} days" if days >= 1 else seconds_in_words(seconds)


def tell_failing(plan: FailingPlan, folder: Path, also: Path | None, *, as_json: bool) -> int:
    """Simulate the plan, write and show the results; return the exit status."""
    begin(folder, plan.as_json)
    with Shown() as shown:
        rows = list(rows_of(plan.grid, shown.begins_with))
    results = {"rows": [row.as_json() for row in rows]}
    about = keep(folder, also, results, lambda: picture(rows, plan.heading, plan.about))
    tell_kept(about, folder, lambda: show(rows, _columns(rows)), _counts(rows), as_json=as_json)
    return 0


def _columns(rows: Sequence[FailingRow]) -> Columns[FailingRow]:
    several = len({row.network for row in rows}) > 1
    return [
        ("strategy", lambda row: row.strategy),
        ("workers", lambda row: f"{row.workers:,}"),
        ("learners", lambda row: f"{row.learners:,}"),
        ("network", lambda row: (row.network or NOTHING) if several else NOTHING),
        ("goodput", lambda row: share_in_words(row.goodput.goodput)),
        ("uptime", lambda row: f"{row.goodput.uptime:.1%}"),
        ("lost", lambda row: _or_nothing(row.goodput.lost)),
        ("down", lambda row: _or_nothing(row.goodput.down)),
        ("stopped", lambda row: _or_nothing(row.goodput.stopped)),
        ("waiting", lambda row: _or_nothing(row.goodput.waiting)),
        ("moving", lambda row: _or_nothing(row.goodput.moving)),
        ("saving", lambda row: _or_nothing(row.goodput.saving)),
        (
            "checkpoint",
            lambda row: NOTHING if row.goodput.checkpoint is None else seconds_in_words(row.goodput.checkpoint),
        ),
    ]


def _or_nothing(share: float) -> str:
    return NOTHING if share < 1e-9 else share_in_words(share)


def _counts(rows: Sequence[FailingRow]) -> Iterator[str]:
    """Yield `1,200,000 workers: 98,412 deaths, 0 stops, 0 slow times; 312 struck several at once`."""
    for workers, tally in {row.workers: row.goodput.failures for row in rows}.items():
        more = f"; {tally.bursts:,} struck several at once, {tally.workers:,} workers in all" if tally.bursts else ""
        yield f"{workers:,} workers: {tally.deaths:,} deaths, {tally.stops:,} stops, {tally.slows:,} slow times{more}"
