"""What rounds ask of the worker whose they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from quorate.core.means import Mean


class Copies(Protocol):
    """Copies of whole replicas; see `train.replica_copy.ReplicaCopy`."""

    def capture(self, *, is_whole: bool) -> tuple[dict[str, Any], Sequence[Tensor]]: ...

    def adopt(self, about: dict[str, Any], tensors: Sequence[Tensor]) -> None: ...


@dataclass(frozen=True)
class InRounds:
    """What rounds ask of the worker, and call."""

    step: Callable[[], int]
    """Steps that it has made."""
    scheduled: Callable[[], int]
    """How often its schedulers have made a step."""
    share: Callable[[float | None], float]
    """What a contribution of this weight counts, or of its step's where that is None: 1 for a step of full batches, so
    that dividing by the number of workers stays right."""
    apply: Callable[[Mean], None]
    """Takes a round that came while it did not step."""
    copies: Copies
