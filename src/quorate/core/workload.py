"""The interface of workloads: data, model, loss and quality under one name, equal on every worker by its seed.

Torch is needed for the types only, and is not imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from torch import Tensor, device, nn
    from torch.optim import Optimizer
    from torch.utils.data import Dataset


class Batch(Protocol):
    """The result of `collate`; in practice a NamedTuple of tensors (which DataLoader can pin).

    A batch whose work grows with more than its number of examples may have a property `tokens`. It is the cost in
    words, frames or similar units: an int, padding included where the model computes it. A pace per token
    (`50us/token`) uses it; batches without it have no tokens.
    """

    def to(self, device: str | device) -> Self:
        """Return the same batch on `device`."""


B = TypeVar("B", bound=Batch)

Imbalance = Literal["natural", "injected"]
"""Whether batches differ in work by themselves, or workers are late only on purpose."""

Counts = Mapping[str, float]
"""Quantities summed over examples, and their number under "examples"; counts of batches and ranks add up."""


class Workload(ABC, Generic[B]):
    """A model to train and its data. Implementations are frozen keyword-only dataclasses: the fields are the settings.

    Two objects with equal settings give equal data and, for equal seeds, equal models, in any process on the same
    machine. No method touches a global random generator.
    """

    name: ClassVar[str]
    """Its registered name."""
    batch_size: ClassVar[int]
    """The usual number of examples per worker and step."""
    learning_rate: ClassVar[float]
    """The usual learning rate for `batch_size` and `optimizer`, on one worker."""
    epochs: ClassVar[int]
    """The usual number of epochs."""
    headline: ClassVar[str]
    """The key of `quality` that decides comparisons."""
    higher_is_better: ClassVar[bool]
    """Whether a greater `headline` is better."""
    baseline: ClassVar[str] = ""
    """The `headline` of a model that ignores its inputs: a number, and what it predicts."""
    cost: ClassVar[str] = ""
    """Time of a step of the usual batch on one core of a 2-core x86 machine, and the number of parameters."""
    imbalance: ClassVar[Imbalance] = "injected"
    """Whether the work of batches differs by itself."""

    @abstractmethod
    def dataset(self, *, train: bool) -> Dataset[Any]:
        """Return the training or the test examples: map-style, with a length, for `collate`."""

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> B:
        """Return examples of `dataset` as one batch; a DataLoader's `collate_fn`."""

    @abstractmethod
    def model(self, seed: int = 0) -> nn.Module:
        """Return a new model with parameters drawn from `seed`, on the CPU."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: B) -> Tensor:
        """Return the mean loss over the batch, a scalar for `backward`. Model and batch are on one device."""

    @abstractmethod
    def quality(self, model: nn.Module, batch: B) -> dict[str, float]:
        """Return the quality of the model on the batch, as `Counts`. Needs no gradient; keeps the model's mode."""

    @abstractmethod
    def optimizer(self, model: nn.Module, learning_rate: float | None = None) -> Optimizer:
        """Return the usual optimizer of the model's parameters; `learning_rate` None is the usual one."""

    def rate(self, step: int) -> float:
        """Return the factor of the learning rate in a step of the optimizer, from 1; usually it is constant."""
        return 1.0

    @property
    def loader_workers(self) -> int:
        """The number of loader processes of each worker; usually 0."""
        return 0

    @abstractmethod
    def describe(self) -> list[str]:
        """Return lines of text that describe the data and its distribution."""

    @property
    def summary(self) -> str:
        """The first line of the class's documentation, as in `Registry.summary`."""
        return (type(self).__doc__ or "").strip().partition("\n")[0].rstrip()


def total(counts: Iterable[Counts]) -> dict[str, float]:
    """Return the sum, key by key, of the counts of several batches or ranks; all have the same keys."""
    totals: dict[str, float] = {}
    for each in counts:
        for key, amount in each.items():
            totals[key] = totals.get(key, 0.0) + amount
    return totals


def per_example(counts: Counts) -> dict[str, float]:
    """Return the mean of every summed quantity: 12 hits at "top1" in 64 examples are 0.1875. Without examples, NaN."""
    examples = counts["examples"]
    return {key: amount / examples if examples else float("nan") for key, amount in counts.items() if key != "examples"}
