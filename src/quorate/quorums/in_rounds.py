"""Functions of a worker that its rounds call."""

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
    """Functions of the worker that its rounds call."""

    step: Callable[[], int]
    """Returns the number of steps that the worker has made."""
    share: Callable[[float | None], float]
    """Returns the weight of a contribution, 1 for a step of full batches; None stands for the weight of its step."""
    apply: Callable[[Mean], None]
    """Applies the mean of a round that was formed while the worker did not step."""
    copies: Copies
