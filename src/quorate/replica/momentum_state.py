"""The momentum of a worker in a checkpoint, and in the state of its optimizer in torch's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.core.local_tensor import as_piece_of, local
from quorate.core.vectors import Flat
from quorate.replica.worker_momentum import AVERAGE, HEAVY_BALL, TINY, OwnMoment, WorkerMomentum, beta_of, mean_factor


def kept_moments(
    momentum: WorkerMomentum, parameters: Sequence[Tensor], into: Flat
) -> tuple[Flat, list[list[float | None]]]:
    """Return the momenta of `parameters`, written into `into`, a vector of zeros, and the numbers of each."""
    none = OwnMoment(torch.empty(0))
    moments = [momentum.own.get(p, none) for p in parameters]
    for own, place in zip(moments, into.segments(), strict=True):
        if own is not none:
            place.copy_(own.m)
    return into, [own.numbers for own in moments]


def restore_moments(
    momentum: WorkerMomentum, parameters: Sequence[Tensor], kept: Sequence[tuple[Flat, list[list[Any]]]]
) -> None:
    """Set the momenta to the mean of the `kept` of several workers; one worker's are unchanged."""
    momentum.own.clear()
    for place, p in enumerate(parameters):
        pairs = [(vector.segment(place), numbers[place]) for vector, numbers in kept if numbers[place][0]]
        if pairs:
            m = torch.zeros_like(local(p))
            for x, _ in pairs:
                m.add_(x.to(p.dtype), alpha=1.0 if len(kept) == 1 else 1 / len(kept))
            count, left, ahead, cosine = pairs[0][1]
            momentum.own[p] = OwnMoment(m, int(count), float(left), float(ahead), cosine)


def follow_plain(momentum: WorkerMomentum) -> None:
    """Put the momentum into the `state_dict()` of the optimizer, and take it from the state that it loads."""
    _from_plain(momentum)
    momentum.optimizer.register_state_dict_post_hook(lambda _, state: _into_plain(momentum, state))
    momentum.optimizer.register_load_state_dict_post_hook(lambda _: _from_plain(momentum))


def _key(momentum: WorkerMomentum) -> str | None:
    """Return torch's name for it; None where torch's is of another kind (RMSprop's is of scaled gradients)."""
    if momentum.kind in ("rmsprop", "scale-free"):
        return None
    return HEAVY_BALL if momentum.kind in ("sgd", "muon") else AVERAGE


def _into_plain(momentum: WorkerMomentum, state: dict[str, Any]) -> dict[str, Any]:
    key, kept = _key(momentum), dict(state["state"])
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [p for group in momentum.optimizer.param_groups for p in group["params"]]
    for number, p in zip(numbers, parameters, strict=True):
        own = momentum.own.get(p)
        if own is None or key is None:
            continue
        entry = kept[number] = dict(kept.get(number, {}))
        m = own.m.clone()
        if momentum.kind in ("adam", "nadam"):  # torch divides by what its own count of steps makes of it
            begun = 1 - mean_factor(own) ** float(entry.get("step", own.count))
            m.mul_(begun / max(1 - own.left, TINY))
        entry[key] = as_piece_of(p, m)
        if "mu_product" in entry:
            entry["mu_product"] = torch.full_like(entry["mu_product"], own.ahead)
    return {**state, "state": kept}


def _from_plain(momentum: WorkerMomentum) -> None:
    key = _key(momentum)
    group_of = {p: group for group in momentum.optimizer.param_groups for p in group["params"]}
    for p, state in momentum.optimizer.state.items():
        if key is None or state.get(key) is None:
            continue
        count = int(float(state.get("step", 1))) or 1
        beta = float(group_of[p]["betas"][1]) if momentum.kind == "lion" else beta_of(group_of[p])
        momentum.own[p] = OwnMoment(local(state[key]).detach().clone(), count, beta**count)
        momentum.own[p].ahead = float(state.get("mu_product", 0.0)) or 1.0
        if momentum.kind == "sgd":
            del state[key]
