"""The arguments of `distribute` beside the strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.means.reduction import Reduction
from quorate.observe.finite import OnNonfinite, check_policy
from quorate.replica.by_tensors import ShardBy, check_shard_by
from quorate.sharding.host_step import HostStep
from quorate.sharding.mesh import Coordinates
from quorate.train.step_weight import Weight, check_weight

COMPARE_EVERY = 1000


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The arguments of `distribute` beside the strategy, the same on every worker."""

    on_nonfinite: OnNonfinite = "warn"
    compare_every: int = COMPARE_EVERY
    """Rounds between two comparisons of the replicas, which are also compared at the end; 0: never."""
    weight: Weight = "equal"
    """The weight of a worker in means of all."""
    strategy: str = "(unnamed)"
    """The name of the strategy in sentences."""
    reduction: Reduction = field(default_factory=Reduction)
    """How means of gradients are formed."""
    shard_by: ShardBy | None = None
    """How the optimizer's state is divided among the workers of a replica; None: as its class needs it."""
    coordinates: Coordinates | None = None
    """The place of this worker in its replica; None where it holds all of it."""
    host: HostStep | None = None
    """How steps are made on the host; None where they are made on the device."""

    def __post_init__(self) -> None:
        check_policy(self.on_nonfinite)
        check_weight(self.weight)
        check_shard_by(self.shard_by)
        every: object = self.compare_every
        if isinstance(every, bool) or not isinstance(every, int) or every < 0:
            raise ConfigurationError(f"compare_every is {every!r}; it must be a number of rounds, or 0 for never")

    @property
    def replicas(self) -> Sequence[Sequence[int]] | None:
        """The workers of each replica, where one is spread over several."""
        return None if self.coordinates is None else self.coordinates.workers

    @property
    def choices(self) -> dict[str, Any]:
        """The arguments by name."""
        plain: dict[str, Any] = {"on_nonfinite": self.on_nonfinite, "compare_every": self.compare_every}
        plain |= {"weight": self.weight, "shard_by": self.shard_by}
        return plain | {name: str(value) for name, value in self.reduction.said.items()}
