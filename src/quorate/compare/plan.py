"""`Comparison`: the plan of a comparison, which is written to `compare.json`, and read back from there."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from quorate.core.errors import ConfigurationError
from quorate.launch.hosts.reach import Hosts
from quorate.launch.run.folder import COMPARISON, COMPARISON_FORMAT, write_run
from quorate.launch.run.overrides import MOST_SEED, Overrides
from quorate.launch.warm.request import VirtualRun
from quorate.shrink.choices import NONE

TIMEOUT = 3600.0
"""Default limit of a run, in seconds."""
WARM_UP_STEPS = 10
"""First steps of every run that figures about steps leave out, unless runs are short."""
LEARNING_RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The default factors in a search for a learning rate."""
_MOST = {"epochs": 1e6, "seconds": math.inf, "batch": 2**31, "evaluations": 1e6, "timeout": math.inf}

_OF_HOSTS, _OF_SCALE = ("hosts", "ssh", "env"), ("simulated", "price")
_NAME = re.compile(r"[A-Za-z0-9_=+][A-Za-z0-9._=+-]{0,199}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._=+]+")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One side of a comparison. Its name is also that of its folder."""

    name: str
    strategy: str | None
    """Name of a strategy or a baseline; None is the script's own."""
    settings: Mapping[str, object] = field(default_factory=dict)
    is_baseline: bool = False
    workers: int | None = None
    """Its own number of workers; None is that of the comparison."""
    batch: int | None = None
    """Its own examples per worker and step of a workload; None is the number of the comparison."""
    shrink: str | None = None
    """The steps that make its model smaller; None in comparisons without --shrink."""

    @staticmethod
    def of(strategy: str, settings: Mapping[str, object], *, is_baseline: bool = False) -> Arm:
        """Return an arm named after its strategy (of a file: the registered name) and settings: `quorum-wait_for=1`."""
        called = strategy
        if strategy.endswith(".py"):
            called = _registered_in(Path(strategy)) or Path(strategy).stem
        parts = [called, *(f"{key}={value}" for key, value in settings.items())]
        name = "-".join(_NOT_IN_NAMES.sub("-", part).strip("-.") for part in parts)
        return Arm(name=name, strategy=strategy, settings=dict(settings), is_baseline=is_baseline)

    def shrunk(self, text: str, *, is_baseline: bool) -> Arm:
        """Return this arm with a model that becomes smaller: `all-reduce-prune-amount=0.9`; its own name for `none`."""
        parts = [] if text == NONE else [_NOT_IN_NAMES.sub("-", text).strip("-.")]
        return replace(self, name="-".join([self.name, *parts]), shrink=text, is_baseline=is_baseline)

    def scaled(self, workers: int, *, batch: int | None, is_baseline: bool) -> Arm:
        """Return this arm with numbers of its own: `all-reduce-workers=4`, `all-reduce-workers=4-batch=8`."""
        name = f"{self.name}-workers={workers}" + ("" if batch is None else f"-batch={batch}")
        return replace(self, name=name, workers=workers, batch=batch, is_baseline=is_baseline)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The subject of a training: a workload by its name, or a script by its path, with its arguments."""

    kind: Literal["workload", "script"]
    name: str
    arguments: Sequence[str] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of the workload."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The metric that decides: the name under which a training logs its quality."""

    name: str
    higher_is_better: bool


def _check_pattern(pattern: str | None) -> None:
    """Raise `ConfigurationError` for a pattern of a printed metric that has no group for the number."""
    if pattern is None:
        return
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ConfigurationError(f"--metric-pattern {pattern!r} is no regular expression: {error}") from None
    if groups < 1:
        raise ConfigurationError(
            f"--metric-pattern {pattern!r} has no group for the number; write one, such as val_acc=([0-9.]+)"
        )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A grid of runs: every arm with every seed, all else equal. Raises `ConfigurationError` for an invalid one."""

    subject: Subject
    metric: Metric | None
    metric_pattern: str | None = None
    """The pattern of a line in which the script prints the metric."""
    workers: int
    """The number of workers; of arms with numbers of their own, the greatest."""
    world: Literal["real", "virtual"]
    arms: Sequence[Arm]
    seeds: Sequence[int]
    equal: Literal["examples", "seconds", "target"] = "examples"
    """The quantity that is equal in all runs; "target": a run ends when its quality is as good as the target."""
    epochs: float | None = None
    """Epochs of a workload, over all workers together; None is the workload's own number."""
    seconds: float | None = None
    """Seconds of training, where these are equal."""
    target: float | None = None
    relevant: float | None = None
    """The smallest difference that counts, as a share; None is the report's default."""
    imbalance: str | None = None
    pace: str | None = None
    share: str | None = None
    learning_rates: Sequence[float] | None = None
    """The factors among which the best is searched for every arm; None: every arm has the script's own rate."""
    chosen_learning_rates: Mapping[str, float] = field(default_factory=dict)
    """The chosen factors by the names of the arms."""
    warm_up_steps: int = WARM_UP_STEPS
    compute: str | None = None
    """The virtual time of a step, in the form of `quorate run --compute`."""
    latency: float | None = None
    """Latency of the virtual network, in seconds."""
    bandwidth: float | None = None
    """Bandwidth of the virtual network, in bytes per second."""
    batch: int | None = None
    """Examples per worker and step of a workload; None is the workload's own number."""
    evaluations: int | None = None
    """Number of evaluations of a workload, evenly over the work."""
    hosts: str | None = None
    """The hosts of the workers, `a:2,b:2`; None: this machine."""
    ssh: str | None = None
    """The command that reaches the hosts."""
    env: Sequence[str] = ()
    """Variables for the workers there: `NAME`, or `NAME=value`."""
    omp_threads: str = "1"
    """OMP_NUM_THREADS of every worker that is a process."""
    timeout: float = TIMEOUT
    """Seconds by the wall clock after which a run is ended, and has failed."""
    simulated: Sequence[int] = ()
    """Further numbers of workers, which are simulated from the runs of the most."""
    price: float | None = None
    """The price of a worker for an hour."""

    def __post_init__(self) -> None:
        if not self.arms:
            raise ConfigurationError("a comparison has at least one strategy")
        names, seeds = [arm.name for arm in self.arms], [str(seed) for seed in self.seeds]
        for noun, values in (("strategy", names), ("seed", seeds)):
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise ConfigurationError(f"the {noun} {twice} is given twice; each is compared once")
        if not self.seeds or min(self.seeds) < 0 or max(self.seeds) > MOST_SEED:
            raise ConfigurationError(f"seeds are whole numbers from 0 to {MOST_SEED}, at least one")
        least = min(self.workers, *(self.scale or (self.workers,)))
        if least < 1:
            raise ConfigurationError(f"a comparison has at least one worker, not {least}")
        if self.price is not None and not 0 < self.price < math.inf:
            raise ConfigurationError(f"--price {self.price:g}: the price of one worker for one hour must be above 0")
        reached = self.reached
        if reached is not None and reached.layout.size != self.workers:
            raise ConfigurationError(f"{self.workers} workers are not as many as --hosts {self.hosts} has")
        if reached is not None and self.world == "virtual":
            raise ConfigurationError("virtual workers are in one process, and not on several hosts")
        if sum(arm.is_baseline for arm in self.arms) > 1:
            raise ConfigurationError("a comparison has at most one baseline")
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and not 0 < value < most:
                below = "" if not value > 0 or most == math.inf else f" and below {most:g}"
                raise ConfigurationError(f"--{name} {value:g}: it must be a number above 0{below}")
        for factor in self.learning_rates or ():
            if not 0 < factor < math.inf:
                raise ConfigurationError(f"--tune-lr {factor:g}: factors of a learning rate are numbers above 0")
        if self.metric is None and (self.target is not None or self.learning_rates is not None):
            option = "--target" if self.target is not None else "--tune-lr"
            raise ConfigurationError(f"{option} needs a measure of quality; give --metric NAME as the script logs it")
        _check_pattern(self.metric_pattern)
        if self.equal == "target" and self.target is None:
            raise ConfigurationError("--stop-at-target goes with --target")
        if self.equal == "target" and self.subject.kind == "script":
            raise ConfigurationError("--stop-at-target is for workloads; a script says itself when it ends")
        if self.equal == "seconds" and self.seconds is None:
            raise ConfigurationError("equal seconds need a number of seconds; give --seconds")

    @property
    def scale(self) -> tuple[int, ...]:
        """The numbers of workers, in order, of arms that have their own; without such arms, none."""
        return tuple(sorted({arm.workers for arm in self.arms if arm.workers is not None}))

    @property
    def reached(self) -> Hosts | None:
        """The hosts of the workers, and how they are reached; None: this machine."""
        return None if self.hosts is None else Hosts(text=self.hosts, ssh=self.ssh or "ssh", env=self.env)

    @property
    def tuning_seed(self) -> int:
        """The seed of the search for learning rates: the first number that is no seed of the comparison."""
        return next(seed for seed in range(len(self.seeds) + 1) if seed not in self.seeds)

    def overrides(self, **of_cell: Any) -> Overrides:
        """Return the overrides of a run's script: `of_cell`, and those that are equal for all runs."""
        seconds = self.seconds if self.equal == "seconds" else None
        printed = None
        if self.metric is not None and self.metric_pattern is not None:
            printed = f"{self.metric.name}={self.metric_pattern}"
        equal: dict[str, Any] = {"imbalance": self.imbalance, "pace": self.pace, "share": self.share}
        equal["printed_metric"] = printed
        return Overrides(**equal, seconds=seconds, **of_cell)

    def virtual(self, seed: int) -> VirtualRun | None:
        """Return the virtual world of a run with this seed; None where workers are processes."""
        if self.world == "real":
            return None
        return VirtualRun(seed=seed, compute=self.compute, latency=self.latency, bandwidth=self.bandwidth)

    def as_json(self) -> dict[str, Any]:
        """Return the content of `compare.json`, but for the command and the machine."""
        content = {"format": COMPARISON_FORMAT, **asdict(self)}
        content["arms"] = [
            {key: value for key, value in arm.items() if value is not None or key not in ("workers", "batch", "shrink")}
            for arm in content["arms"]
        ]
        unused = (*(() if self.hosts else _OF_HOSTS), *(() if self.scale else _OF_SCALE))
        return {key: value for key, value in content.items() if key not in unused}

    def write(self, folder: Path, command: Sequence[str]) -> None:
        """Begin the comparison's folder, with its `compare.json`."""
        script = Path(self.subject.name) if self.subject.kind == "script" else None
        write_run(folder, script, {"command": list(command), **self.as_json()})
        (folder / "run.json").replace(folder / COMPARISON)

    def rewrite(self, folder: Path) -> None:
        """Write the changes into `compare.json`."""
        about = {**json.loads((folder / COMPARISON).read_text(encoding="utf-8")), **self.as_json()}
        new = folder / f"{COMPARISON}.new"
        new.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        new.replace(folder / COMPARISON)


def read_plan(folder: Path) -> Comparison:
    """Read the comparison in `folder`. Raises `ConfigurationError` where there is none, or it is damaged."""
    path = folder / COMPARISON
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"there is no comparison in {folder}: it has no {COMPARISON}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    if not isinstance(about, dict) or about.get("format") != COMPARISON_FORMAT:
        raise ConfigurationError(
            f"{path} is not of the format {COMPARISON_FORMAT}, which this version of quorate reads"
        )
    from pydantic import TypeAdapter, ValidationError

    known = {entry.name: about[entry.name] for entry in fields(Comparison) if entry.name in about}
    try:
        plan = TypeAdapter(Comparison).validate_json(json.dumps(known), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        why = first["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"{path} is damaged: {f'{place}: ' if place else ''}{why}") from None
    wrong = next((arm.name for arm in plan.arms if not _NAME.fullmatch(arm.name)), None)
    if wrong is not None:
        raise ConfigurationError(f"{path} is damaged: {wrong!r} is not a name of an arm")
    return plan


def _registered_in(path: Path) -> str | None:
    """Return the name under which a file registers something, `@strategies.register("name")`, without running it.

    None if the file cannot be read, or registers nothing by a plain name.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None
    definitions = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    for call in (decorator for node in definitions for decorator in node.decorator_list):
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] == "register":
            name = call.args[0] if call.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                return name.value
    return None
