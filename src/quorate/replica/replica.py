"""One worker's replica as a vector: parameters, what the optimizer keeps of them, and numbers that travel with them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from quorate.buckets.flat import layout_of, pack
from quorate.core.contracts import Clock
from quorate.core.errors import ConfigurationError
from quorate.core.own_replica import OwnReplica
from quorate.core.vectors import Flat, Layout
from quorate.data.consumption import consumed
from quorate.observe.distance import note_distance
from quorate.reducers.outliving import Outliving
from quorate.replica.plain_step import step_unseen

if TYPE_CHECKING:
    from quorate.agreement.means import Agreement
    from quorate.train.worker import OptimizerWorker
    from quorate.wire.current import Place

_NUMBERS = "numbers"


class Own:
    """Implements `core.own_replica.OwnReplica`."""

    def __init__(self, worker: OptimizerWorker, plain: type[Optimizer], place: Place) -> None:
        self._worker, self._plain, self._place = worker, plain, place
        self._keys: list[str] | None = None
        self._layouts: dict[tuple[object, ...], Layout] = {}

    @property
    def clock(self) -> Clock:
        everyone = self._worker.everyone()
        if len(everyone) > 1:
            raise ConfigurationError(
                f"sync_every is a time, and {len(everyone)} optimizers are distributed: workers would come to their "
                "means in different orders; it is a number of steps here"
            )
        return self._worker.clock

    @property
    def examples(self) -> int:
        found = consumed(self._place).examples
        if found is None:
            raise ConfigurationError("examples are counted by quorate.shard's loader only; count steps or seconds")
        return found

    @property
    def step_began(self) -> float:
        return self._worker.timer.begin

    @property
    def learning_rates(self) -> tuple[float, ...]:
        return tuple(float(group["lr"]) for group in self._worker.optimizer.param_groups)

    def read(self, *, moments: bool = False, numbers: Sequence[float] = (), only: Sequence[int] | None = None) -> Flat:
        chosen: list[Tensor | None] = list(self._chosen(only))
        behind = [torch.tensor(numbers, dtype=self._wide)] if numbers else []
        vector = Flat.zeros(self._layout(moments, len(numbers), only))
        pack([*chosen, *(self._moments(only) if moments else []), *behind], vector)
        return vector

    def write(self, mean: Flat, *, moments: bool = False, only: Sequence[int] | None = None) -> None:
        places = mean.segments()
        chosen = self._chosen(only)
        with torch.no_grad():
            for p, numbers in zip(chosen, places, strict=False):
                p.copy_(numbers)
            if moments:
                kept = self._moments(only)
                for x, numbers in zip(kept, places[len(chosen) : len(chosen) + len(kept)], strict=True):
                    if x is not None:
                        x.copy_(numbers)

    def measure_distance(self, mean: Flat, *, only: Sequence[int] | None = None) -> None:
        if self._worker.timer.recorder is not None:
            chosen = self._chosen(only)
            note_distance(self._worker, list(chosen), mean.segments()[: len(chosen)])

    def take_edits(self, shown: Flat, into: Flat, scale: float = 1.0) -> bool:
        found = False
        with torch.no_grad():
            for p, was, there in zip(self._worker.trained, shown.segments(), into.segments(), strict=False):
                before = was.to(p.dtype)
                if not torch.equal(p, before):
                    there.add_(p - before, alpha=scale)
                    found = True
        return found

    def parameters_of(self, mean: Flat, *, only: Sequence[int] | None = None) -> Flat:
        found = Flat.zeros(self._worker.peers.layout)
        there = found.segments()
        for place, numbers in zip(range(len(there)) if only is None else only, mean.segments(), strict=False):
            there[place].copy_(numbers)
        return found

    def numbers_of(self, mean: Flat) -> tuple[float, ...]:
        last = mean.layout.segments[-1]
        return tuple(mean.segment(-1).tolist()) if last.name == _NUMBERS else ()

    def forget_moments(self, *, only: Sequence[int] | None = None) -> None:
        for p in self._chosen(only):
            self._worker.optimizer.state.pop(p, None)

    def step_alone(self, is_alone: bool) -> None:
        self._worker.peers.ready.is_alone = is_alone

    def vote(self) -> None:
        self._worker.peers.votes = True

    @property
    def has_voted(self) -> bool:
        return self._worker.peers.has_voted

    def by_group(self, vector: Flat, factors: Sequence[float]) -> Flat:
        group_of = {
            id(p): place for place, group in enumerate(self._worker.optimizer.param_groups) for p in group["params"]
        }
        found = vector.clone()
        for p, numbers in zip(self._worker.trained, found.segments(), strict=True):
            numbers.mul_(factors[group_of[id(p)]])
        return found

    @property
    def _wide(self) -> torch.dtype:
        """Of numbers that travel with the parameters: float64 where a parameter has as much precision."""
        double = (torch.float64, torch.complex128)
        return torch.float64 if any(p.dtype in double for p in self._worker.trained) else torch.float32

    def shift(self, way: Flat) -> None:
        with torch.no_grad():
            for p, numbers in zip(self._worker.trained, way.segments(), strict=False):
                p.add_(numbers)

    def _chosen(self, only: Sequence[int] | None) -> Sequence[Parameter]:
        trained = self._worker.trained
        return trained if only is None else [trained[place] for place in only]

    def _layout(self, moments: bool, numbers: int, only: Sequence[int] | None) -> Layout:
        own = self._worker.peers.layout
        if not moments and not numbers and only is None:
            return own
        key = own.digest, moments, numbers, None if only is None else tuple(only)
        if key not in self._layouts:
            names = [own.segments[place].name for place in (range(len(own.segments)) if only is None else only)]
            named = list(zip(names, self._chosen(only), strict=True))
            tensors: list[tuple[str, Tensor]] = list(named)
            for kept in self._kept_keys() if moments else []:
                tensors += [(f"{name}/{kept}", p) for name, p in named]
            if numbers:
                tensors.append((_NUMBERS, torch.zeros(numbers, dtype=self._wide)))
            self._layouts[key] = layout_of(tensors, header=own.header)
        return self._layouts[key]

    def _moments(self, only: Sequence[int] | None = None) -> list[Tensor | None]:
        state = self._worker.optimizer.state
        return [state.get(p, {}).get(key) for key in self._kept_keys() for p in self._chosen(only)]

    def _kept_keys(self) -> list[str]:
        """What the optimizer keeps in the shape of a parameter: seen from one step of its class on a number alone."""
        if self._keys is None:
            optimizer = self._worker.optimizer
            takes = inspect.signature(self._plain).parameters
            options = {k: v for k, v in optimizer.param_groups[0].items() if k in takes and k != "params"}
            tried = Parameter(torch.zeros(3))
            tried.grad = torch.ones(3)
            try:
                alone: Any = self._plain([tried], **options)
                step_unseen(alone)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ConfigurationError(
                    f"what {self._plain.__name__} keeps cannot be averaged, as it cannot be tried on a tensor: {error}"
                ) from None
            kept = alone.state[tried]
            self._keys = sorted(k for k, x in kept.items() if isinstance(x, Tensor) and x.shape == tried.shape)
        return self._keys


def go_on_from(before: Agreement, now: Agreement) -> None:
    """Other parameters are trained `now`: what all have learnt stays, and whether this worker steps alone."""
    now.has_vectors, now.votes, now.has_voted = before.has_vectors, before.votes, before.has_voted
    now.ready.is_alone = before.ready.is_alone
    now.admission.members = before.admission.members
    if isinstance(now.reducer, Outliving) and isinstance(before.reducer, Outliving):
        now.reducer.follows(before.reducer)


_: type[OwnReplica] = Own
