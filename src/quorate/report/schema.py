"""The frame of `summary.json`, which the page, the Markdown summary and the CSV files show; each topic adds its part.

Times are seconds, sizes bytes; an axis of seconds is training time, without evaluation. Unknown fields are refused.
A value that was not measured is null, never 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from quorate.core.intervals import mean_interval
from quorate.report.statistics import RELEVANT, Difference

_OF_SHARES = {"accuracy", "acc", "top", "auc", "f", "precision", "recall", "iou", "map"}
"""Words in the names of metrics that are shares, so from 0 to 1."""
FORMAT = 1
"""Rises when a field changes its meaning or is removed."""
NOT_BEGUN = "it has not begun"
"""`Outcome.why` of a run without a folder."""
STOPPED, UNDER_WAY = "it was stopped", "it is under way"
"""`Outcome.why` of a run of a comparison that has begun, and not ended."""


class Part(BaseModel):
    """The base of all parts of the schema: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Estimate(Part):
    """A figure measured once per seed: the mean, and its 95% interval where there are two seeds or more."""

    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]
    """One per seed, in the order of `ArmSummary.runs`; runs that failed are left out."""

    @classmethod
    def of(cls, values: Sequence[float], *, least: float = 0.0, most: float = math.inf) -> Estimate:
        """Return the mean of values; its interval does not reach beyond possible ones."""
        interval = mean_interval(values)
        low = None if interval.low is None else max(interval.low, least)
        high = None if interval.high is None else min(interval.high, most)
        return cls(mean=interval.mean, low=low, high=high, values=tuple(values))

    @classmethod
    def of_known(cls, values: Iterable[float | None], *, least: float = 0.0, most: float = math.inf) -> Estimate | None:
        """Return the mean of the known values; None if there are none."""
        known = [value for value in values if value is not None]
        return cls.of(known, least=least, most=most) if known else None

    @classmethod
    def of_qualities(cls, values: Iterable[float | None], metric: str | None) -> Estimate | None:
        """Return the mean of the known qualities; the interval of an accuracy ends at 0 and at 1, or 100 in percent."""
        known = [value for value in values if value is not None]
        most = math.inf
        if _OF_SHARES & set(re.split("[^a-z]+", (metric or "").lower())) and known and min(known) >= 0.0:
            most = next((limit for limit in (1.0, 100.0) if max(known) <= limit), math.inf)
        return cls.of_known(known, least=-math.inf if most == math.inf else 0.0, most=most)


class HostLoad(Part):
    """The load of the host of a run; of several hosts, of the one with the most other work for its cores.

    Numbers of cores are CPU seconds over seconds. Null stands for what the system does not count.
    """

    cores: int
    """The cores of the host."""
    used: float
    """The cores that the workers of the run used."""
    other: float | None
    """The cores that other work used; without CPU times of the host, its load average without the workers."""
    load_average: float | None
    """In the last minute of the run."""
    pressure: float | None
    """The share of the time in which some process waited for a core."""
    is_busy: bool
    """Whether other work took cores that the workers could have used."""


class Outcome(Part):
    """The end of one run."""

    seed: int
    folder: str
    """Relative to the comparison's folder."""
    status: int | None
    """The exit status; null if the run did not end (it was stopped, or is still under way)."""
    seconds: float | None
    """By the wall clock, start-up included."""
    why: str | None
    """The reason of a failure, in a sentence."""
    load: HostLoad | None = None
    """Null if a worker has not recorded it, as after its death, or in a virtual world."""


class ArmSummary(Part):
    """One side of the comparison. In the file, each topic adds its fields: see `quorate.report.summary.arm_type`."""

    name: str
    strategy: str | None
    settings: dict[str, object]
    is_baseline: bool
    learning_rate_factor: float | None
    runs: tuple[Outcome, ...]
    seeds: tuple[int, ...]
    """The seeds of the runs in figures and charts: they have ended well, every arm has had their seed, and so has the
    baseline if it has any of them."""
    quality: Estimate | None
    """The final quality."""
    time_to_target: Estimate | None
    """Seconds; over the runs that reached it."""
    target_reached: tuple[int, int] | None
    """The number of runs that reached it, and the number of runs."""
    examples_per_second: Estimate | None
    seconds: Estimate | None
    """Training time."""
    examples: Estimate | None
    speedup: Estimate | None
    """Examples per second over the baseline's, by pairs of equal seed: geometric mean; null for the baseline."""
    target_speedup: Estimate | None
    """The baseline's time to target over this one's, by pairs of equal seed that both reached it: geometric mean."""
    no_wait_share: Estimate | None
    """Examples per second over the rate if nobody ever waited and exchanges cost nothing."""
    bytes_per_step: Estimate | None
    """Bytes sent per rank."""
    peak_bytes: Estimate | None
    """Resident memory of the greatest rank."""
    differences: dict[str, Difference]
    """By the field's name: better or worse than the baseline, if the interval of the difference shows one."""
    alongside: dict[str, float]
    """By the field's name: the baseline's mean over the seeds of this arm, if that lacks some of the baseline's."""


class Trial(Part):
    """One run of the search for a learning rate."""

    arm: str
    factor: float
    """The factor of the usual learning rate."""
    seed: int
    quality: float | None
    is_chosen: bool


class Metric(Part):
    """The measure of quality."""

    name: str
    higher_is_better: bool


class Fairness(Part):
    """The equal and the different settings of arms."""

    equal: tuple[str, ...]
    """Sentences."""
    differed: dict[str, dict[str, object]]
    """By key, the value of each arm; only keys in which arms differ."""
    warm_up_steps: int
    """Steps left out of every figure about steps."""
    seeds: tuple[int, ...]


class Reproduce(Part):
    """The means to reproduce the results."""

    command: tuple[str, ...]
    started: str
    git: dict[str, object] | None
    packages: dict[str, str | None]
    machine: dict[str, object]
    settings: dict[str, object]


class Summary(Part):
    """`summary.json`."""

    format: int = FORMAT
    title: str
    world: Literal["real", "virtual"]
    workers: int
    verdict: str
    """One sentence."""
    other_work: str | None = None
    """The sentence that belongs to the verdict if other work kept a machine busy during runs."""
    warnings: tuple[str, ...]
    """Cautions: arms that failed, one seed only, work that was not equal."""
    metric: Metric | None
    target: float | None
    baseline: str | None
    relevant: float = RELEVANT
    """The smallest difference that counts, as a share of the baseline's value."""
    imbalance: str | None
    pace: str | None
    arms: tuple[ArmSummary, ...]
    tuning: tuple[Trial, ...]
    fairness: Fairness
    reproduce: Reproduce
