"""The work around the passes of a step: sums of the gradients of shared parameters, their hooks, and clipping."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.utils import clip_grad

from quorate.core.axes import Zero
from quorate.core.contracts import Wire, Work
from quorate.core.device_copies import widest
from quorate.core.local_tensor import is_sharded, local
from quorate.sharding.mesh import Coordinates
from quorate.sharding.plain_piece import plain_piece
from quorate.sharding.stages.cut import Stages

_lock = threading.Lock()
_models: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""The thread of each ending, in which it is trained."""
_SMALL = 1e-6
"""Added to a norm in clipping: the same constant as in torch."""


class Ending:
    """The end of each step, for one worker's part of a model in stages."""

    def __init__(
        self,
        model: Module,
        stages: Stages,
        coordinates: Coordinates,
        wire: Wire,
        tied: list[tuple[list[tuple[int, str]], list[int]]],
    ) -> None:
        """`wire` has the workers of the pipeline; `tied` has the names and the workers of each tied parameter."""
        self.model, self._stages, self._coordinates, self._wire = model, stages, coordinates, wire
        worker = coordinates.stage
        self._tied: list[tuple[str, Wire]] = [
            (dict(names)[worker], self._wire.group(workers)) for names, workers in tied if worker in workers
        ]
        self._counted_elsewhere = {dict(names)[worker] for names, workers in tied if worker in workers[1:]}
        self._direct = [name for name, stage in stages.direct.items() if stage in stages.layout.stages_of(worker)]
        self._summed = {name for name, _ in self._tied} | set(self._direct if coordinates.beside.size > 1 else ())
        self.shared = [(sorted({name for _, name in names}), _of(stages, names[0][1])) for names, _ in tied]
        """Each tied parameter: its names on the workers, and a tensor of its shape."""
        self._before: dict[str, Tensor] = {}
        self._sharded: list[Any] = []
        self._syncs = True

    def shards(self, modules: list[Any], *, zero: Zero) -> None:
        """Take the modules that FSDP2 has sharded. With ZeRO 1, `optimizer.accumulate()` does not reduce gradients."""
        self._sharded, is_accumulated = modules, zero == 1
        if is_accumulated:
            self._coordinates.traffic.syncs.append(self._reduces)

    def _reduces(self, syncs: bool) -> None:
        self._syncs = syncs

    def direct_of(self, stage: int) -> list[str]:
        """Return the parameters of a stage that are here, and lie outside of its modules."""
        return [name for name in self._direct if self._stages.direct[name] == stage]

    @property
    def owners(self) -> list[Module]:
        """The modules that have parameters of this worker outside of the modules of stages."""
        return [self.model.get_submodule(name.rpartition(".")[0]) for name in self._direct]

    @contextmanager
    def plain_here(self) -> Iterator[None]:
        """Inside, parameters outside of modules are plain tensors, if they are pieces along the tensor axis."""
        kept: list[tuple[Module, str, Any]] = []
        for name in self._direct:
            module, _, key = name.rpartition(".")
            owner = self.model.get_submodule(module)
            p: Any = owner._parameters[key]
            if hasattr(p, "to_local"):
                kept.append((owner, key, p))
                own: Any = plain_piece(p)
                owner._parameters[key] = own
        try:
            yield
        finally:
            for owner, key, p in kept:
                owner._parameters[key] = p

    def begins(self) -> None:
        """Begin passes that only add to gradients, which are reduced over shards when all passes have ended."""
        for module in self._sharded:
            module.set_is_last_backward(False)
            module.set_reshard_after_backward(False)
            module.set_requires_gradient_sync(False)

    def backward_begins(self) -> None:
        """Begin new gradients of tied parameters, as those of earlier backward passes have been summed already."""
        self._before = {}
        for name in self._summed:
            p = self.model.get_parameter(name)
            if p.grad is not None:
                self._before[name], p.grad = p.grad, None

    def ended(self) -> None:
        """Reduce gradients when all passes of a step have ended."""
        with self._coordinates.traffic.pausing():
            if self._syncs:
                for module in self._sharded:
                    _reduce(module)
            self._mean_over_shards()
            self._sums_of_tied()
            for name, before in self._before.items():
                p = self.model.get_parameter(name)
                p.grad = before if p.grad is None else before.add_(p.grad)
            self._before = {}
            self._share_bad_news()
        for p in self.trained():
            hooks: Any = getattr(p, "_post_accumulate_grad_hooks", None)
            if p.grad is not None and hooks:
                for hook in list(hooks.values()):
                    hook(p)

    @property
    def cut(self) -> list[list[str]]:
        """The modules and parameters of each worker of the pipeline, by name."""
        return self._stages.cut

    @property
    def elsewhere(self) -> frozenset[str]:
        """The names in the full model's state dictionary that other workers hold."""
        here = self.model.state_dict().keys()
        others = {name for worker, names in enumerate(self.cut) if worker != self._coordinates.stage for name in names}
        hollow = {
            key for key in here if key.endswith("_extra_state") and any(key.startswith(f"{name}.") for name in others)
        }
        return frozenset(self._stages.shapes.model.state_dict().keys() - here | hollow)

    def trained(self) -> Iterator[Parameter]:
        """Yield this worker's trained parameters, each once."""
        return (p for p in self.model.parameters() if p.requires_grad)

    def counted(self) -> Iterator[Parameter]:
        """Yield the parameters that no worker of an earlier stage has."""
        return (p for name, p in self.model.named_parameters() if name not in self._counted_elsewhere)

    def holders(self, p: Tensor) -> int:
        """Return how many workers of the pipeline have this parameter."""
        return next((group.size for name, group in self._tied if self.model.get_parameter(name) is p), 1)

    def _mean_over_shards(self) -> None:
        """Average gradients of parameters outside of sharded modules, which all shards hold in full."""
        beside = self._coordinates.beside
        if beside.size == 1:
            return
        for name in self._direct:
            p = self.model.get_parameter(name)
            if p.grad is not None:
                x = local(p.grad)
                x.copy_(self._coordinates.traffic.wait(beside.all_reduce(x.contiguous()), beside.clock) / beside.size)

    def _sums_of_tied(self) -> None:
        for name, group in self._tied:
            p = self.model.get_parameter(name)
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            x = local(p.grad)
            x.copy_(self._coordinates.traffic.wait_along(group.all_reduce(x.contiguous()), group.clock))

    def _share_bad_news(self) -> None:
        """Make a gradient not finite in all stages if it is in one, so that all stages skip the step, or none."""
        gradients = [x for p in self.trained() if p.grad is not None and (x := local(p.grad)).numel()]
        device = next((x.device for x in gradients), next(self.model.parameters()).device)
        is_not_finite = torch.zeros((), dtype=torch.bool, device=device)
        if gradients:
            is_not_finite = torch.stack([x.sum().isfinite() for x in gradients]).all().logical_not()
        first = gradients[0][(0,) * gradients[0].dim()] if gradients else is_not_finite.float()
        if self._wire.carries(is_not_finite):  # the flag stays on the GPUs, which are not waited for
            flags: Work[Any] = self._wire.all_reduce(is_not_finite.float())
            count = self._coordinates.traffic.wait_along(flags, self._wire.clock)
            first.copy_(torch.where((count > 0) & ~is_not_finite, torch.nan, first))
            return
        is_bad = bool(is_not_finite)
        flags = self._wire.tell_all("whether gradients are finite", is_bad)
        if any(self._coordinates.traffic.wait_along(flags, self._wire.clock)) and not is_bad:
            first.fill_(float("nan"))

    def over_stages(self, norm: Tensor, norm_type: float) -> Tensor:
        """Return the norm of all stages' gradients."""
        stage_norm = norm.detach().to(widest(norm.device)).reshape(1)
        if self._wire.carries(stage_norm):  # the norm stays on the GPUs, which are not waited for
            gathered: Work[list[Tensor]] = self._wire.all_gather(_power(stage_norm, norm_type))
            powers = torch.cat(self._coordinates.traffic.wait(gathered, self._wire.clock))
        else:
            sent = self._wire.tell_all("the norm over all stages", float(_power(stage_norm.cpu().double(), norm_type)))
            powers = torch.tensor(self._coordinates.traffic.wait(sent, self._wire.clock), dtype=torch.float64)
        whole = powers.max() if norm_type == float("inf") else powers.sum() ** (1.0 / norm_type)
        return whole.to(norm.device, norm.dtype)


def _power(norm: Tensor, norm_type: float) -> Tensor:
    power: Tensor = norm if norm_type == float("inf") else norm**norm_type
    return power


def _of(stages: Stages, name: str) -> Tensor:
    return stages.shapes.model.get_parameter(name)


def _reduce(module: Any) -> None:
    """Make FSDP2 reduce, as at the end of a last backward pass."""
    from torch.distributed.fsdp import fully_shard

    module.set_is_last_backward(True)
    module.set_reshard_after_backward(True)
    module.set_requires_gradient_sync(True)
    state: Any = fully_shard.state(module)  # type: ignore[attr-defined]
    for module_state in state._state_ctx.all_states:
        groups = getattr(module_state, "_fsdp_param_groups", None)
        for group in (module_state._fsdp_param_group,) if groups is None else groups:  # torch has several from 2.13 on
            if group is not None:
                group.post_backward()
    state._root_post_backward_final_callback()


def norms_over_stages(ending: Ending) -> None:
    """Let torch clip gradients of this model by their norm over all stages from now on.

    torch's function forms the norm of the gradients passed to it, which are those of one stage here, and takes either
    plain tensors or pieces. The functions that it calls are wrapped, once in a process. Gradients of a model in stages
    have their norm over the stages, and each number counts once; other gradients are passed to torch's functions.
    """
    with _lock:
        _models[ending] = threading.get_ident()
        plain: Any = clip_grad._get_total_norm
        if getattr(plain, "_quorate_wraps", None) is not None:
            return

        @functools.wraps(plain)
        def total_norm(
            tensors: Tensor | Iterable[Tensor],
            norm_type: float = 2.0,
            error_if_nonfinite: bool = False,
            foreach: bool | None = None,
        ) -> Tensor:
            gradients = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            ending = next((candidate for candidate in _own() if _is_of(candidate, gradients)), None)
            frozen = [candidate for candidate in _own() if not any(True for _ in candidate.trained())]
            if not gradients and len(frozen) == 1:
                ending = frozen[0]
            if ending is None:
                same: Tensor = plain(gradients, norm_type, error_if_nonfinite, foreach)
                return same
            counted = {id(p.grad) for p in ending.counted()}
            norm = _here([x for x in gradients if id(x) in counted], float(norm_type), foreach, plain)
            whole: Tensor = ending.over_stages(norm, float(norm_type))
            if error_if_nonfinite and not bool(torch.isfinite(whole)):
                raise RuntimeError(
                    f"the norm (of order {norm_type}) of the gradients of all stages is {whole}, and "
                    "error_if_nonfinite=True"
                )
            return whole

        total_norm._quorate_wraps = plain  # type: ignore[attr-defined]
        clip_grad._get_total_norm = total_norm
        clips: Any = clip_grad._clip_grads_with_norm_

        @functools.wraps(clips)
        def clip(
            parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
        ) -> None:
            listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            gradients = [p.grad for p in listed if p.grad is not None]
            if not any(_is_of(candidate, gradients) for candidate in _own()):
                clips(listed, max_norm, total_norm, foreach)
                return
            factor = torch.clamp(max_norm / (total_norm + _SMALL), max=1.0)
            for x in gradients:
                local(x).mul_(factor.to(x.device))

        clip_grad._clip_grads_with_norm_ = clip


def _own() -> list[Any]:
    """Return the endings of this worker, where several workers are in one process."""
    own_thread = threading.get_ident()
    return [ending for ending, thread in list(_models.items()) if thread == own_thread]


def _is_of(ending: Ending, gradients: list[Tensor]) -> bool:
    here = {id(p.grad) for p in ending.trained() if p.grad is not None}
    return any(id(x) in here for x in gradients)


def _here(gradients: list[Tensor], norm_type: float, foreach: bool | None, plain: Any) -> Tensor:
    """Return the norm of this worker's gradients; plain tensors and pieces have separate norms first."""
    kinds: dict[Any, list[Tensor]] = {}
    for x in gradients:
        sharded: Any = x
        kinds.setdefault((sharded.device_mesh, sharded.placements) if is_sharded(x) else None, []).append(x)
    norms = []
    for some in kinds.values():
        norm: Any = plain(some, norm_type, False, foreach)
        norms.append(norm.full_tensor() if is_sharded(norm) else norm)
    return torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.zeros(())
