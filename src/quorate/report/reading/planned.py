"""The plan of a comparison, from `compare.json`; a single run is read as a comparison of one arm."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from quorate.core.errors import ConfigurationError
from quorate.launch.run.folder import COMPARISON, COMPARISON_FORMAT, is_held
from quorate.records.records import ranks_in
from quorate.records.run_files import RunFile
from quorate.report.reading.run import RunRecords, read_run
from quorate.report.reading.sound import is_count, is_number, read_json, sound_parts
from quorate.report.schema import Metric
from quorate.report.statistics import RELEVANT
from quorate.report.wording import counted, listed
from quorate.workloads import workloads

OWN = "the script's own"
"""The name of an arm whose strategy nobody named."""
TRAINS_WORKLOADS = "train_workload.py"
"""The script of the comparisons of workloads."""
_MACHINE = ("host", "cores", "system", "python", "interpreter", "folder")
_APART = frozenset((*_MACHINE, "format", "command", "started", "versions", "git", "arms", "chosen_learning_rates"))


@dataclass(frozen=True, kw_only=True)
class PlannedArm:
    """One side: its name, and the places of its runs."""

    name: str
    strategy: str | None
    settings: dict[str, object]
    is_baseline: bool
    learning_rate_factor: float | None
    batch: object = None
    """Its own examples per worker and step; None is the number of all arms."""
    runs: dict[int, Path]
    """The folder by seed; it need not exist yet."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The settings of a comparison, and its machine."""

    folder: Path
    title: str
    is_single: bool
    """Whether it is one run, not a comparison: it is reported however it ended."""
    world: Literal["real", "virtual"]
    workers: int
    arms: tuple[PlannedArm, ...]
    seeds: tuple[int, ...]
    metric: Metric | None
    target: float | None
    equal: str | None
    """The equal quantity by plan: "examples", "seconds", or None."""
    warm_up_steps: int
    relevant: float = RELEVANT
    """The smallest difference that counts, as a share of the baseline's value."""
    is_under_way: bool = False
    """Whether a launcher is running it."""
    about: dict[str, Any]
    """All of the file."""
    records: RunRecords | None = None
    """The records of a single run, which are read once."""

    @property
    def baseline(self) -> PlannedArm | None:
        """The arm to which the others are compared; None if there is none."""
        return next((arm for arm in self.arms if arm.is_baseline), None)

    @property
    def hosts(self) -> str | None:
        """`a:2,b:2`; None if all workers were on the launcher's machine, or nothing is recorded."""
        return self.text("hosts")

    @property
    def machine(self) -> dict[str, object]:
        """The recorded facts about the machine."""
        return {key: self.about[key] for key in _MACHINE if key in self.about}

    @property
    def settings(self) -> dict[str, object]:
        """All settings, by name."""
        return {key: value for key, value in self.about.items() if key not in _APART}

    def text(self, key: str) -> str | None:
        """Return a value as text; None if it is not set."""
        value = self.about.get(key)
        return None if value is None else str(value)


def planned_in(folder: Path) -> Planned:
    """Return the plan of the comparison or run in `folder`. Raises `ConfigurationError` for anything else."""
    path = folder / COMPARISON
    if path.is_file():
        about = read_json(path)
        if about is None or not about.get("arms"):
            raise ConfigurationError(f"{path} cannot be read as the plan of a comparison; it should be a JSON object")
        if about.get("format") != COMPARISON_FORMAT:
            raise ConfigurationError(
                f"{path} has format {about.get('format')}, and this version of Quorate reads format {COMPARISON_FORMAT}"
            )
        return _comparison(folder, _checked(path, about))
    if (folder / "run.json").is_file() or ranks_in(folder):
        return _run(folder)
    raise ConfigurationError(
        f"there is no run and no comparison in {folder}; its folder has a run.json or compare.json"
    )


def _checked(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Return `about` without values of wrong types. Raises `ConfigurationError` if the grid of runs is not known."""
    arms, seeds = about["arms"], about.get("seeds")
    is_whole = (
        isinstance(arms, list)
        and all(isinstance(arm, dict) and _is_inside(arm.get("name")) for arm in arms)
        and all(isinstance(arm.get("strategy"), str | None) for arm in arms)
        and len({arm["name"] for arm in arms}) == len(arms)
    )
    if not is_whole:
        raise ConfigurationError(f'{path} is damaged: "arms" should be a list of objects, each with a name of its own')
    if not isinstance(seeds, list) or not seeds or not all(map(is_count, seeds)) or len(set(seeds)) < len(seeds):
        raise ConfigurationError(f'{path} is damaged: "seeds" should be a list of different whole numbers from 0 on')
    about = sound_parts(about, RunFile)
    if about.get("workers") is None:
        raise ConfigurationError(f'{path} is damaged: "workers" should be a whole number')
    chosen = about.get("chosen_learning_rates")
    factors = {name: factor for name, factor in chosen.items() if is_number(factor)} if isinstance(chosen, dict) else {}
    plain = [{**arm, "settings": arm["settings"] if isinstance(arm.get("settings"), dict) else {}} for arm in arms]
    return {**about, "arms": plain, "chosen_learning_rates": factors}


def _is_inside(name: object) -> bool:
    """Return whether it names a folder right in the comparison's: records must not lead elsewhere."""
    return isinstance(name, str) and 0 < len(name) < 256 and name not in (".", "..") and not set(name) & set("/\\\0")


def _comparison(folder: Path, about: dict[str, Any]) -> Planned:
    seeds = tuple(int(seed) for seed in about.get("seeds", ()))
    chosen = about.get("chosen_learning_rates") or {}
    arms = tuple(
        PlannedArm(
            name=str(arm["name"]),
            strategy=arm.get("strategy"),
            settings=dict(arm.get("settings") or {}),
            is_baseline=bool(arm.get("is_baseline")),
            learning_rate_factor=chosen.get(arm["name"]),
            batch=arm.get("batch"),
            runs={seed: folder / str(arm["name"]) / f"seed-{seed}" for seed in seeds},
        )
        for arm in about["arms"]
    )
    subject = about.get("subject") or {}
    workers = int(about.get("workers", 1))
    numbers = sorted({arm["workers"] for arm in about["arms"] if is_count(arm.get("workers"))})
    return Planned(
        folder=folder,
        title=f"{subject.get('name') or folder.name} on "
        + listed([*map(str, numbers[:-1]), _workers_in_words(workers, about)]),
        is_single=False,
        world=_world(about),
        workers=workers,
        arms=arms,
        seeds=seeds,
        metric=metric_in(about),
        target=about.get("target"),
        equal=about.get("equal"),
        relevant=RELEVANT if about.get("relevant") is None else about["relevant"],
        is_under_way=is_held(folder),
        warm_up_steps=int(about.get("warm_up_steps") or 0),
        about=about,
    )


def _run(folder: Path) -> Planned:
    run = read_run(folder)
    about, seed = {**_of_workload(run.about), **run.about}, _seed(run)
    name = (about.get("subject") or {}).get("name") or Path(str(about.get("script") or folder.resolve().name)).name
    distributed = next((rank.distributed for rank in run.ranks if rank.distributed), {})
    strategy = about.get("strategy") or distributed.get("strategy")
    if str(strategy).endswith(".py"):  # a file: workers record the name that it registers
        strategy = distributed.get("strategy") or Path(str(strategy)).name
    arm = PlannedArm(
        name=strategy or OWN,
        strategy=strategy if isinstance(strategy, str) else None,
        settings=dict(about.get("settings") or distributed.get("settings") or {}),
        is_baseline=False,
        learning_rate_factor=about.get("learning_rate_factor"),
        runs={seed: folder},
    )
    return Planned(
        folder=folder,
        title=f"{name} on {_workers_in_words(run.size, about)}",
        is_single=True,
        world=_world(about, run),
        workers=run.size,
        arms=(arm,),
        seeds=(seed,),
        metric=metric_in(about),
        target=about.get("target"),
        equal=None,
        warm_up_steps=run.usual_warm_up,
        about=about,
        records=run,
    )


def _of_workload(about: Mapping[str, Any]) -> dict[str, Any]:
    name = next(iter(about.get("arguments") or ()), None)
    if Path(str(about.get("script"))).name != TRAINS_WORKLOADS or not isinstance(name, str) or name not in workloads:
        return {}
    source = workloads.source(name)
    facts = {} if source is None else dict(source.facts)
    try:
        metric = {"name": ast.literal_eval(facts["headline"]),
                  "higher_is_better": ast.literal_eval(facts["higher_is_better"])}  # fmt: skip
    except (KeyError, ValueError):
        return {"subject": {"name": name}}
    return {"subject": {"name": name}, "metric": metric}


def _workers_in_words(count: int, about: Mapping[str, Any]) -> str:
    hosts = about.get("hosts")
    where = f" of {counted(hosts.count(',') + 1, 'host')}" if isinstance(hosts, str) else ""
    return f"{counted(count, 'worker')}{where}"


def _seed(run: RunRecords) -> int:
    seeds = [run.about.get("seed"), *(rank.start.get("seed") for rank in run.ranks)]
    return next((seed for seed in seeds if type(seed) is int), 0)


def metric_in(about: Mapping[str, Any]) -> Metric | None:
    """Return the measure of quality; None if there is none, or it is damaged."""
    try:
        return Metric.model_validate(about["metric"], strict=True)
    except (KeyError, ValueError):
        return None


def _world(about: Mapping[str, Any], run: RunRecords | None = None) -> Literal["real", "virtual"]:
    world = about.get("world")
    if world not in ("real", "virtual"):
        world = "virtual" if run is not None and run.is_virtual else "real"
    return cast(Literal["real", "virtual"], world)
