"""The choices for one optimizer, as `train.compatibility` looks at them. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quorate.core.axes import Axes
from quorate.core.redundancy import Redundancy

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from quorate.core.strategy import Strategy
    from quorate.means.reduction import Reduction


class _Unconcerned:
    """Takes the place of a strategy, and of a `Reduction` and its settings, where none is concerned."""

    meets, replicas, compresses, buffers, on_death, redundancy = "all", "equal", "gradients", "none", "continue", None
    batch, _keeps_batch = "shrunk", True
    _sparse_gradients = "rows"
    optimizers = ()
    agrees_in_backward = acts_on_pieces = lets_join = forms_means = True
    client_terms = None
    codec = rule = error_feedback = None
    is_of_gradients = is_adaptive = codes_sums = keeps_more = keeps_few = crosses_tensors = feeds_back = False
    compress, reduce, attack, on_anomaly, error_decay = "none", "auto", "", "ignore", 1.0
    clip_codes = False
    reduce_dtype = "float32"
    parts: Any = {}  # noqa: RUF012
    arranges = autotune = False


UNCONCERNED: Any = _Unconcerned
UNCONCERNED.settings = _Unconcerned
COUNTED = "counted"
"""`Combination.weight` where the script calls `optimizer.weight()`."""
_BY_NUMBER = ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "ASGD")
"""The optimizers of torch that treat each number alike, so that their steps send nothing."""


@dataclass(frozen=True, kw_only=True)
class Combination:
    """The choices for one optimizer. A field that is left out is not concerned, and no rule refuses it."""

    label: str = ""
    """The name of the strategy or baseline."""
    strategy: Strategy = UNCONCERNED
    reduction: Reduction = UNCONCERNED
    weight: str = "equal"
    optimizer: type[Optimizer] | None = None
    inner_optimizers: Collection[str] = ()
    workers: int = 0
    """The size of the world; 0: unknown."""
    buffer: str | None = None
    sparse_table: str | None = None
    """The name of a trained table whose gradients are sparse."""
    has_sparse_momentum: bool = False
    """Whether the optimizer has momentum of such a table."""
    axes: Axes | None = None
    """The mesh of a model in pieces; None: each worker has all of it."""
    shard_by: str = "rows"
    """How the optimizer's state is divided among the workers of a replica in pieces."""
    shared: Sequence[tuple[Sequence[str], Tensor]] = ()
    """Parameters that lie in several stages, by their names there."""
    optimizers_before: int = 0
    is_baseline: bool = False
    is_virtual: bool = False
    asks_for_pieces: bool = False
    """Whether the command line has --mesh, --zero or --offload."""
    asks_to_outlive: bool = False
    divides_layers: bool = False
    """Whether workers compute layers together, and hold pieces of these beside whole layers."""
    offloads: bool = False
    delays_update: bool = False
    delays_gradients: bool = False
    """Whether the gradients of a model in stages are those of the batch before."""
    has_own_step: bool = False
    is_foreign: bool = False
    """Whether the update is that of another framework."""
    is_capturable: bool = False
    has_grad_scaler: bool = False
    has_loaders: bool = False
    has_own_batches: bool = False
    """Whether the script assigns batches to workers itself."""
    others_keep: bool = False
    """Whether another optimizer keeps its batch after a death."""
    others_repeat: bool = False
    """Whether workers compute the same batches for another optimizer."""
    syncs_norms: bool = False
    gathers_features: bool = False
    shares_batches: bool = False
    """Whether several workers of a replica have the same batch: along the tensor axis, and in stages."""
    joins: bool = False
    prunes: bool = False
    shrinks: str = ""
    """The call that makes the model smaller."""
    has_own_servers: bool = False

    @property
    def redundancy(self) -> Redundancy:
        """How the workers compute the same batches."""
        redundancy_among = self.strategy.redundancy if self.workers else None
        return Redundancy() if redundancy_among is None else redundancy_among(self.workers)

    @property
    def weighs(self) -> str:
        """How the script gives weights."""
        return "optimizer.weight()" if self.weight == COUNTED else f'weight="{self.weight}"'

    @property
    def averages_gradients(self) -> bool:
        """Whether each step uses the mean gradient of all workers."""
        chosen = self.strategy
        return chosen.meets == "all" and chosen.agrees_in_backward and chosen.replicas == "equal"

    @property
    def divides_optimizer(self) -> bool:
        """Whether each part of the optimizer's state is on some worker only."""
        return self.axes is not None or (self.strategy.meets == "servers" and self.strategy.replicas == "meet")

    @property
    def needs_closure(self) -> bool:
        """Whether `step` of the optimizer cannot be called without a closure."""
        if self.optimizer is None:
            return False
        from quorate.replica.plain_step import needs_closure

        return needs_closure(self.optimizer)

    def is_a(self, place: str) -> bool:
        """Return whether the optimizer is of the class at `place` (`module.name`), or derived from it."""
        kinds = () if self.optimizer is None else self.optimizer.__mro__
        return place in (f"{kind.__module__}.{kind.__name__}" for kind in kinds)

    @property
    def known_optimizers(self) -> str:
        """The optimizers that the strategy knows."""
        return " and ".join(place.rpartition(".")[2] for place in self.strategy.optimizers)

    @property
    def steps_numbers(self) -> bool:
        """Whether the optimizer is one of torch's that treat each number alike."""
        kind = self.optimizer
        return kind is None or (f"{kind.__module__}.".startswith("torch.optim.") and kind.__name__ in _BY_NUMBER)

    @property
    def coded_apart(self) -> tuple[str, ...]:
        """The names of a parameter that lies in several stages, each of which would compress it by itself."""
        coded = None if self.reduction.codec is None else self.reduction.is_coded
        return next((tuple(names) for names, x in self.shared if coded and any(coded(n, x) for n in names)), ())
