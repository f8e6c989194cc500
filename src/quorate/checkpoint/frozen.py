"""The base of a model: its parameters that are not trained, beside adapters that are."""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Mapping

from torch import Tensor
from torch.nn import Module

from quorate.core.errors import CheckpointError
from quorate.observe.digests import digests_in_order

BASE = "quorate base"
"""The key of a model file's metadata for the digest of the base that it lacks."""

_digests: weakref.WeakKeyDictionary[Module, tuple[list[tuple[str, int, int]], str]] = weakref.WeakKeyDictionary()


def base_of(model: Module) -> dict[str, Tensor]:
    """Return the parameters of `model` that are not trained, by name; tied ones under each name."""
    return {name: p for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}


def base_digest(model: Module) -> str:
    """Return the digest of names, dtypes, shapes and bits of the base.

    Cost: one pass over the base, on its device, the first time and after changes of it.
    """
    base = base_of(model)
    versions = [(name, x.data_ptr(), x._version) for name, x in base.items()]
    known = _digests.get(model)
    if known is None or known[0] != versions:
        bits = digests_in_order(list(base.values()))
        said = [[name, str(x.dtype), list(x.shape), n] for (name, x), n in zip(base.items(), bits, strict=True)]
        known = _digests[model] = versions, hashlib.sha256(json.dumps(said).encode()).hexdigest()
    return known[1]


def words_on_rates(model: Module, workers: int, before: int) -> str | None:
    """Return a caution if `model` is mostly base, and trains with more `workers` than `before`; else None."""
    numbers = [(p.numel(), p.requires_grad) for p in model.parameters()]
    of_base = sum(count for count, is_trained in numbers if not is_trained)
    if workers <= before or 2 * of_base <= sum(count for count, _ in numbers):
        return None
    return (
        f"{workers} workers train adapters with the learning rates of {before}; their common batch is larger, which "
        "adapters tolerate less than full models: compare rates (quorate compare --tune-lr)"
    )


def without_base(state: Mapping[str, Tensor], model: Module) -> dict[str, Tensor]:
    """Return the entries of the state of `model` that do not belong to its base."""
    base = base_of(model)
    return {key: x for key, x in state.items() if key not in base}


def check_base(model: Module, digest: str, source: str) -> None:
    """Raise `CheckpointError` if the base of `model` is not the one of `digest`, on which `source` was trained."""
    if base_digest(model) != digest:
        raise CheckpointError(
            f"{source} has only trained parameters, which belong to another base than that of the script's model; load "
            "the same base and freeze the same parameters before quorate.load()"
        )
