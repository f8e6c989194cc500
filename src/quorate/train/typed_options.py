"""What `distribute` takes beside a strategy object, as a type: editors complete it, and type checkers check it."""

from __future__ import annotations

from typing import Literal, TypedDict

from quorate.observe.finite import OnNonfinite
from quorate.replica.by_tensors import ShardBy
from quorate.train.step_weight import Weight


class OptionsBesideAStrategy(TypedDict, total=False):
    """Options of `distribute`, and how means are formed; settings of a codec stand in its text."""

    with_one_worker: Literal["bypass", "algorithm"]
    on_nonfinite: OnNonfinite
    compare_every: int
    weight: Weight
    shard_by: ShardBy | None
    compress: str
    reduce: str
    error_feedback: bool | None
    error_decay: float
    dense: tuple[str, ...] | list[str]
    dense_below: int
    attack: str
    on_anomaly: Literal["ignore", "warn", "skip"]
