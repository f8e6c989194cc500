"""`torch.nn.utils.clip_grad_norm_` over a model in stages: the norm is that of all stages' gradients.

torch's function forms the norm of the gradients passed to it, which are those of one stage here, and takes either plain
tensors or pieces. The functions that it calls are wrapped, once in a process: gradients of a model in stages have their
norm over the stages, and each number counts once; other gradients go to torch's functions.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from quorate.core.local_tensor import is_sharded, local

if TYPE_CHECKING:
    from quorate.sharding.stages.ending import Ending

_lock = threading.Lock()
_models: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""The thread of each ending, in which it is trained."""
_SMALL = 1e-6
"""The same constant as in torch."""


def norms_over_stages(ending: Ending) -> None:
    """Let torch clip gradients of this model by their norm over all stages from now on."""
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
