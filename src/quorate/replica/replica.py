"""The replica of one worker as numbers: parameters, the optimizer's state of them, and steps of the optimizer.

Vectors have the parameters of an optimizer in an order that is the same on all workers. Tables of embeddings lie apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.nn import Embedding, EmbeddingBag, Module, Parameter
from torch.optim import Optimizer

from quorate.buckets.flat import BY_SIZE, Fusion, layout_of, words_of_tables
from quorate.buckets.rows import sparse_weights
from quorate.core.device_copies import waiting_once
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.core.moments import AgreedMomentum
from quorate.core.own_replica import OwnReplica
from quorate.core.vectors import (
    Flat,
    Layout,
    digest_of,
    full_segments,
    mask_of,
    other_shape,
    pack,
    unpack,
    with_tables,
)
from quorate.optim.delay_correction import delay_corrected
from quorate.replica import worker_momentum
from quorate.replica.masks import masks_of
from quorate.replica.moments import MomentsOfReplica
from quorate.replica.optimizer_state import keys_like_parameters, note_attributes
from quorate.replica.options_in_force import OptionsInForce
from quorate.replica.plain_step import (
    NO_ARGUMENTS,
    ClearedGradients,
    Elsewhere,
    StepArguments,
    plain_step,
    standing_at,
    with_gradient,
    with_rows,
)
from quorate.replica.shared_step import SharedOptions, shared_step, without_momentum
from quorate.replica.weight_switch import WeightSwitch
from quorate.sharding.host_step import HostStep
from quorate.sharding.optimizer_steps import OnPieces, WholeTensors

_NUMBERS = "numbers"


class Replica:
    """The user's model and optimizer; implements `core.own_replica.OwnReplica`. It knows no other worker.

    `plain` is the optimizer's own class. `header` returns the length of a header, from the number of tensors and of
    parts. `is_coded` says which parameters are compressed; `host` makes steps on the host. `narrow` is a
    small float that is summed as it is. With `exchanges_rows`, or `exchanges_changes` of
    rows, tables whose gradients are sparse are in no vector.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        plain: type[Optimizer],
        model: Module,
        header: Callable[[int, int], int],
        is_coded: Callable[[str, Tensor], bool] | None = None,
        host: HostStep | None = None,
        narrow: torch.dtype | None = None,
        *,
        fusion: Fusion = BY_SIZE,
        exchanges_rows: bool = False,
        exchanges_changes: bool = False,
    ) -> None:
        self.exchanges_rows, self.exchanges_changes = exchanges_rows, exchanges_changes
        self.optimizer, self.plain, self.model, self._header = optimizer, plain, model, header
        self.host, self.is_coded, self._narrow = host, is_coded, narrow
        self.spread: WholeTensors | OnPieces | None = None
        """Makes steps of a model in pieces."""
        self.moments = MomentsOfReplica(optimizer, plain, lambda: self.trained, lambda: Flat.zeros(self.layout))
        note_attributes(optimizer)
        self.options = OptionsInForce(optimizer)
        """The options of steps that all workers make, and those that these steps write."""
        can_switch = all(callable(getattr(plain, name, None)) for name in ("train", "eval"))
        self.switch = WeightSwitch(optimizer, plain) if can_switch else None
        """The switch of an optimizer that has other weights for evaluation."""
        self.is_stepping = False
        """Whether a step of the optimizer's own class is being made."""
        self.cleared = ClearedGradients()
        self.momentum: worker_momentum.WorkerMomentum | None = None
        """The momentum of this worker's own gradients, where the shared optimizer has none."""
        self.corrects_delay = False
        """Whether steps are corrected as steps of gradients that are one step old."""
        self.fusion = fusion
        """How parameters share parts when they are laid out."""
        self._keys: list[str] | None = None
        self._layouts: dict[tuple[object, ...], Layout] = {}
        self.lay_out()

    def lay_out(self) -> None:
        """Lay out the parameters that are trained now, in the same order on every worker."""
        self.every = self._parameters_now()
        """All of the optimizer's parameters, in its order."""
        self.is_trained, self.dtypes = [p.requires_grad for p in self.every], [p.dtype for p in self.every]
        named = trained_in_order(self.every, self.model)
        is_exchanged = self.exchanges_rows or self.exchanges_changes
        sparse = sparse_tables_in(self.model, named) if is_exchanged else {}
        self.sparse_tables = list(sparse.values())
        """The trained tables of embeddings whose gradients are sparse, where their rows are exchanged."""
        if sparse:
            named = [(name, p) for name, p in named if name not in sparse]
        self.trained = [p for _, p in named]
        """The parameters in vectors, in their order."""
        self.all_trained = [*self.trained, *self.sparse_tables] if sparse else self.trained
        """The parameters in vectors, and the sparse tables."""
        self.all_names = [*(name for name, _ in named), *sparse]
        self._tables = words_of_tables(list(sparse.items()))
        self._names = [name for name, _ in named]
        self.layout = self.laid_out_by(self.fusion)
        self.row_gradients: list[Tensor | None] = [None] * len(sparse)
        """The gradients of `sparse_tables` in the newest round."""
        self.used = [False] * len(named)
        """For each of them, whether any worker had a gradient in the newest mean of gradients."""

    def laid_out_by(self, fusion: Fusion) -> Layout:
        """Return the layout of the parameters in vectors, with parts as `fusion` says."""
        tensors: list[tuple[str, Tensor]] = list(zip(self._names, self.trained, strict=True))
        how: dict[str, Any] = {"coded": self.is_coded, "narrow": self._narrow}
        how |= {"masks": masks_of(self.optimizer).by_tensor, **fusion.arguments(self._names)}
        parts = len(layout_of(tensors, **how).parts)
        layout = layout_of(tensors, header=self._header(len(tensors), parts), **how)
        return with_tables(layout, self._tables) if self._tables else layout

    @property
    def is_laid_out(self) -> bool:
        """Whether the same parameters are trained as when they were laid out, in the same dtypes."""
        now = self._parameters_now()
        is_same = len(now) == len(self.every) and all(map(is_, now, self.every))
        return is_same and [p.requires_grad for p in now] == self.is_trained and [p.dtype for p in now] == self.dtypes

    def check_shapes(self) -> None:
        """Raise `ConfigurationError` if a parameter has another shape than when it was laid out."""
        for segment, p in zip(self.layout.segments, self.trained, strict=False):
            now, mask = local(p), mask_of(segment)
            shape = segment.shape if mask is None else mask.shape
            if now.shape != shape:
                raise other_shape(segment.name, now, shape)

    @property
    def trains_any(self) -> bool:
        """Whether any parameter is trained now."""
        return any(p.requires_grad for p in self._parameters_now())

    def _parameters_now(self) -> list[Parameter]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    @property
    def names(self) -> list[str]:
        """The names of the trained parameters."""
        return self._names

    @property
    def names_now(self) -> list[str]:
        """The names of the parameters whose `requires_grad` is set now."""
        return [name for name, _ in trained_in_order(self._parameters_now(), self.model)]

    @property
    def tables(self) -> frozenset[int]:
        return tables_in(self.model, self.trained)

    @property
    def gradients(self) -> list[Tensor | None]:
        """The `.grad` of each trained parameter."""
        return [p.grad for p in self.trained]

    @property
    def all_gradients(self) -> list[Tensor | None]:
        """The `.grad` of each of `all_trained`."""
        return [p.grad for p in self.all_trained]

    @property
    def is_scaled(self) -> bool:
        """Whether the current step is called by a GradScaler."""
        return "found_inf" in self.optimizer.__dict__

    @property
    def parameters(self) -> Flat:
        return self._packed(self.trained)

    @parameters.setter
    def parameters(self, value: Flat) -> None:
        unpack(value, self.trained)

    @property
    def gradient(self) -> Flat:
        """A copy of the gradient in `.grad`; zeros where there is none."""
        return self._packed(self.gradients)

    def _packed(self, tensors: Sequence[Tensor | None]) -> Flat:
        pack(tensors, copy := Flat.zeros(self.layout))
        return copy

    def update(
        self,
        gradient: Flat | None = None,
        *,
        at: Flat | None = None,
        options: Any = None,
        is_seen: bool = True,
        arguments: StepArguments = NO_ARGUMENTS,
        momentum: AgreedMomentum | None = None,
    ) -> Any:
        """Make one step of the optimizer's own class, and return its return value.

        Args:
            gradient: The gradient of this step, while `.grad` stays; None: the gradient in `.grad`.
            at: The numbers to be updated, in place, while the model stays; None: those of the model.
            options: The options of a round, which leaves out unused parameters; None: the optimizer's own.
            is_seen: Whether hooks see the step.
            momentum: The momentum of the step, instead of a gradient.
        """
        is_of_round = options is not None
        around: AbstractContextManager[None] = nullcontext()
        in_force: AbstractContextManager[None] = nullcontext()
        if isinstance(options, SharedOptions):
            assert self.momentum is not None
            assert gradient is not None
            if self.momentum.kind != "sgd":
                around = shared_step(self.momentum, self.trained, gradient, options)
            complete = self.options.complete(options.options)
            changed = without_momentum(self.momentum, replace(options, options=complete))
            in_force = self.options.in_force(complete, changed)
        elif is_of_round:
            in_force = self.options.in_force(self.options.complete(options))
        chosen: dict[str, Any] = {"elsewhere": self._elsewhere, "arguments": arguments}
        step = partial(plain_step, self.optimizer, self.plain, arguments.closure, **chosen)
        if self.corrects_delay and chosen["elsewhere"] is None:
            around = delay_corrected(self.optimizer)
        self.is_stepping = True
        self.cleared.update_begins(is_of_mean=gradient is not None or momentum is not None)
        try:
            with in_force, nullcontext() if at is None else standing_at(self.trained, at):
                if momentum is not None:
                    zeros, used = Flat.zeros(self.layout), self.moments.has_state()
                    with with_gradient(self.trained, zeros, used, self.cleared), self.moments.agreed(momentum):
                        return step(is_scaled=False)
                if gradient is None:
                    return step(is_seen=is_seen)
                has_rows = is_of_round and self.sparse_tables
                rows = with_rows(self.sparse_tables, self.row_gradients, self.cleared) if has_rows else nullcontext()
                is_used = self.used if is_of_round else None
                with with_gradient(self.trained, gradient, is_used, self.cleared), rows, around:
                    return step(is_scaled=not is_of_round)
        finally:
            self.is_stepping = False

    @contextmanager
    def in_training(self) -> Iterator[None]:
        """Show the trained weights inside, where the optimizer has others for evaluation. Raises as `check_shapes`."""
        with nullcontext() if self.switch is None else self.switch.in_training():
            try:
                yield
            except RuntimeError:  # torch's, which names no parameter
                self.check_shapes()
                raise

    @property
    def steps_elsewhere(self) -> bool:
        """Whether steps are made on pieces, on full tensors or on the host, and not on the parameters."""
        return self._elsewhere is not None

    @property
    def _elsewhere(self) -> Elsewhere | None:
        if self.host is not None:
            elsewhere: Elsewhere = self.host.step
        elif self.spread is not None:
            elsewhere = partial(self.spread.step, self.optimizer)
        else:
            return None
        return partial(_corrected, elsewhere) if self.corrects_delay else elsewhere

    def keep_momentum(
        self, choice: worker_momentum.MomentumChoice, size: int, sums: worker_momentum.Sums = list
    ) -> str | None:
        """Let this worker, one of `size`, keep its momentum, if chosen and known; return a notice or None."""
        groups, name = self.optimizer.param_groups, self.plain.__name__
        kind = None if choice == "common" else worker_momentum.kind_of(self.plain, groups, self._keys_or_none())
        if kind is not None:
            self.momentum = worker_momentum.WorkerMomentum(self.optimizer, self.plain, kind, size, sums=sums)
            worker_momentum.follow_plain(self.momentum)
            return worker_momentum.in_words(kind, name)
        if choice == "worker" or (choice == "auto" and worker_momentum.has_moments(self.plain, groups)):
            return (
                f"how workers would keep the momentum of their own gradients in {name} is not known, or it has none; "
                'the shared optimizer keeps it (momentum="common")'
            )
        return None

    @property
    def shares_momentum(self) -> tuple[bool, bool]:
        """Whether the shared optimizer remembers gradients, and whether workers could do so in its place."""
        is_shared, groups = self.momentum is None and self.has_moments, self.optimizer.param_groups
        return is_shared, is_shared and worker_momentum.kind_of(self.plain, groups, self._keys_or_none()) is not None

    def _keys_or_none(self) -> list[str]:
        try:
            return self._kept_keys()
        except ConfigurationError:
            return []

    # -- core.own_replica.OwnReplica

    @property
    def learning_rates(self) -> tuple[float, ...]:
        return tuple(float(group["lr"]) for group in self.optimizer.param_groups)

    @property
    def has_moments(self) -> bool:
        return worker_momentum.has_moments(self.plain, self.optimizer.param_groups)

    def read(self, *, moments: bool = False, numbers: Sequence[float] = (), only: Sequence[int] | None = None) -> Flat:
        chosen: list[Tensor | None] = list(self.chosen(only))
        behind = [torch.tensor(numbers, dtype=self._wide)] if numbers else []
        vector = Flat.zeros(self.layout_with(moments=moments, numbers=len(numbers), only=only))
        pack([*chosen, *(self._moments(only) if moments else []), *behind], vector)
        return vector

    def write(self, mean: Flat, *, moments: bool = False, only: Sequence[int] | None = None) -> None:
        places, chosen = full_segments(mean), self.chosen(only)
        with torch.no_grad():
            for p, numbers in zip(chosen, places, strict=False):
                local(p).copy_(numbers)
            if moments:
                kept = self._moments(only)
                for x, numbers in zip(kept, places[len(chosen) : len(chosen) + len(kept)], strict=True):
                    if x is not None:
                        local(x).copy_(numbers)

    def take_edits(self, shown: Flat, into: Flat, scale: float = 1.0) -> bool:
        is_edited, flags = False, list[Tensor]()
        with torch.no_grad(), waiting_once() as move:
            device = local(self.trained[0]).device if self.trained else torch.device("cpu")
            if device.type != "cpu":
                shown = Flat([move(part, device) for part in shown.parts], shown.layout)
        with torch.no_grad():
            columns = zip(shown.layout.segments, self.trained, shown.segments(), into.segments(), strict=False)
            for segment, parameter, was, target in columns:
                p = local(parameter) if (mask := mask_of(segment)) is None else mask.gather(local(parameter))
                before = was.to(p.dtype)
                if p.device.type != "cpu" and target.device == p.device:
                    flags.append((p != before).any())
                    target.add_((p - before).to(target.dtype), alpha=scale)
                elif not torch.equal(p, before):
                    target.add_(p - before, alpha=scale)
                    is_edited = True
        return is_edited or (bool(flags) and bool(torch.stack(flags).any()))

    def parameters_of(self, mean: Flat, *, only: Sequence[int] | None = None) -> Flat:
        parameters = Flat.zeros(self.layout)
        segments = parameters.segments()
        for place, numbers in zip(range(len(segments)) if only is None else only, mean.segments(), strict=False):
            segments[place].copy_(numbers)
        return parameters

    def numbers_of(self, mean: Flat) -> tuple[float, ...]:
        last = mean.layout.segments[-1]
        return tuple(mean.segment(-1).tolist()) if last.name == _NUMBERS else ()

    def forget_moments(self, *, only: Sequence[int] | None = None) -> None:
        for p in self.all_trained if only is None else self.chosen(only):
            self.optimizer.state.pop(p, None)

    def by_group(self, vector: Flat, factors: Sequence[float]) -> Flat:
        group_of = {id(p): place for place, group in enumerate(self.optimizer.param_groups) for p in group["params"]}
        scaled = vector.clone()
        for p, numbers in zip(self.trained, scaled.segments(), strict=True):
            numbers.mul_(factors[group_of[id(p)]])
        return scaled

    def shift(self, delta: Flat) -> None:
        with torch.no_grad():
            for p, numbers in zip(map(local, self.trained), full_segments(delta), strict=False):
                p.add_(numbers)

    # -- inside

    @property
    def _wide(self) -> torch.dtype:
        """The dtype of numbers beside parameters: float64 where a parameter has as much precision."""
        return torch.float64 if {torch.float64, torch.complex128} & {p.dtype for p in self.trained} else torch.float32

    def chosen(self, only: Sequence[int] | None = None) -> Sequence[Parameter]:
        """Return the trained parameters, or those at the places `only`."""
        return self.trained if only is None else [self.trained[place] for place in only]

    def layout_with(self, *, moments: bool = False, numbers: int = 0, only: Sequence[int] | None = None) -> Layout:
        """Return the layout of the vector that `read` returns."""
        own = self.layout
        if not moments and not numbers and only is None:
            return own
        key = digest_of(own), moments, numbers, None if only is None else tuple(only)
        if key not in self._layouts:
            names = [own.segments[place].name for place in (range(len(own.segments)) if only is None else only)]
            named = list(zip(names, self.chosen(only), strict=True))
            tensors: list[tuple[str, Tensor]] = list(named)
            masks = masks_of(self.optimizer).by_tensor
            for kept in self._kept_keys() if moments else []:
                tensors += [(f"{name}/{kept}", p) for name, p in named]
            if numbers:
                tensors.append((_NUMBERS, torch.zeros(numbers, dtype=self._wide)))
            how: dict[str, Any] = {"coded": self._coded_among(names), "narrow": self._narrow, "masks": masks}
            self._layouts[key] = layout_of(tensors, header=own.header, **how)
        return self._layouts[key]

    def _coded_among(self, names: Sequence[str]) -> Callable[[str, Tensor], bool] | None:
        is_coded, own = self.is_coded, frozenset(names)
        return None if is_coded is None else lambda name, x: name in own and is_coded(name, x)

    def _moments(self, only: Sequence[int] | None = None) -> list[Tensor | None]:
        return [self.optimizer.state.get(p, {}).get(key) for key in self._kept_keys() for p in self.chosen(only)]

    def check_moments(self) -> None:
        """Raise `ConfigurationError` where the optimizer's state of a parameter is unknown."""
        self._kept_keys()

    def _kept_keys(self) -> list[str]:
        if self._keys is None:
            keys = (keys_like_parameters(self.plain, group) for group in self.optimizer.param_groups)
            self._keys = sorted(set().union(*keys))  # groups of one class may keep different state
        return self._keys


_: type[OwnReplica] = Replica


def _corrected(elsewhere: Elsewhere, make: Callable[[Optimizer], None]) -> None:
    """Make a step `elsewhere`, with the correction of its delay there."""

    def corrected(like: Optimizer) -> None:
        with delay_corrected(like):
            make(like)

    elsewhere(corrected)


def trained_in_order(every: Sequence[Parameter], model: Module) -> list[tuple[str, Parameter]]:
    """Return the trained parameters of an optimizer by name, in the order of the model.

    Those that are not in the model come last, in the order of the optimizer.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    order = {key: place for place, key in enumerate(names)}
    chosen = sorted((p for p in every if p.requires_grad), key=lambda p: order.get(id(p), len(order)))
    return [(names.get(id(p), f"parameter {place}"), p) for place, p in enumerate(chosen)]


def tables_in(model: Module, trained: Sequence[Parameter]) -> frozenset[int]:
    """Return the places in `trained` of the weights of `Embedding` and `EmbeddingBag`, also shared ones."""
    weights = {id(module.weight) for module in model.modules() if isinstance(module, Embedding | EmbeddingBag)}
    return frozenset(place for place, p in enumerate(trained) if id(p) in weights)


def sparse_tables_in(model: Module, named: Sequence[tuple[str, Parameter]]) -> dict[str, Parameter]:
    """Return the tables of `Embedding(sparse=True)` and the like among `named` parameters, by name.

    A table that another module has as well, as an output layer that is tied to it, has dense gradients: it is left out.
    """
    weights = sparse_weights(model)
    return {name: p for name, p in named if id(p) in weights}
