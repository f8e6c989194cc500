"""`torch.nn.utils.clip_grad_norm_` over a model in stages: the norm is that of all stages' gradients.

torch's function forms the norm of the gradients it is given, which are those of one stage here, and takes either plain
tensors or pieces. What it calls is wrapped, once in a process: gradients of a model in stages have their norm over the
stages, and each number counts once; all others go straight through.
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
"""With the thread of each, which is the one that trains."""
_SMALL = 1e-6
"""As in torch."""


def norms_over_stages(ending: Ending) -> None:
    """From now on, of gradients of this model."""
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
            given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            found = next((one for one in _own() if _is_of(one, given)), None)
            frozen = [one for one in _own() if not any(True for _ in one.trained())]
            if not given and len(frozen) == 1:
                found = frozen[0]
            if found is None:
                same: Tensor = plain(given, norm_type, error_if_nonfinite, foreach)
                return same
            counted = {id(p.grad) for p in found.counted()}
            norm = _here([x for x in given if id(x) in counted], float(norm_type), foreach, plain)
            whole: Tensor = found.over_stages(norm, float(norm_type))
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
            given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            gradients = [p.grad for p in given if p.grad is not None]
            if not any(_is_of(one, gradients) for one in _own()):
                clips(given, max_norm, total_norm, foreach)
                return
            factor = torch.clamp(max_norm / (total_norm + _SMALL), max=1.0)
            for x in gradients:
                local(x).mul_(factor.to(x.device))

        clip_grad._clip_grads_with_norm_ = clip


def _own() -> list[Any]:
    """Of this worker, where several are in one process."""
    mine = threading.get_ident()
    return [one for one, thread in list(_models.items()) if thread == mine]


def _is_of(ending: Ending, given: list[Tensor]) -> bool:
    here = {id(p.grad) for p in ending.trained() if p.grad is not None}
    return any(id(x) in here for x in given)


def _here(given: list[Tensor], norm_type: float, foreach: bool | None, plain: Any) -> Tensor:
    """Of this worker's gradients, plain ones and pieces, of each kind by itself."""
    kinds: dict[Any, list[Tensor]] = {}
    for x in given:
        sharded: Any = x
        kinds.setdefault((sharded.device_mesh, sharded.placements) if is_sharded(x) else None, []).append(x)
    norms = []
    for some in kinds.values():
        norm: Any = plain(some, norm_type, False, foreach)
        norms.append(norm.full_tensor() if is_sharded(norm) else norm)
    return torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.zeros(())
