"""Gradients that are NaN or infinite: detected where they arise, sent with the exchange, treated alike by all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, NotFinite, ranks_in_words
from quorate.core.local_tensor import numbers_in
from quorate.core.telling import tell
from quorate.wire.failure import host_of

_SMALL = 1 << 18
"""The largest tensor whose numbers are all checked: some 20 µs."""
_BLOCK, _BETWEEN = 1 << 13, 1 << 9
OnNonfinite = Literal["warn", "raise", "skip", "ignore"]


def check_policy(policy: str) -> None:
    """Raise `ConfigurationError` for an unknown policy."""
    if policy not in get_args(OnNonfinite):
        raise ConfigurationError(f'on_nonfinite="{policy}" is unknown; known: ignore, raise, skip, warn')


def is_finite(parts: Sequence[Tensor]) -> bool:
    """Return whether all numbers are finite. Cost: one pass, which adds up; a non-finite sum takes a second one."""
    total = 0.0
    for part in parts:
        if part.device.type != "cpu":
            return _is_finite_on_device(parts)
        total += float(abs(part.sum())) if part.is_complex() else float(part.sum())
    if math.isfinite(total):
        return True
    return all(bool(torch.isfinite(part).all()) for part in parts)


def _is_finite_on_device(parts: Sequence[Tensor]) -> bool:
    """Return `is_finite` of tensors on GPUs; each device is waited for once."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for part in parts:
        by_device.setdefault(part.device, []).append(part.isfinite().all())
    return all(bool(torch.stack(flags).all()) for flags in by_device.values())


def seems_finite(parts: Sequence[Tensor]) -> bool:
    """Return whether all numbers of small tensors are finite, and a sample of large ones.

    A non-finite loss makes nearly all of a gradient non-finite. Cost: some 30 µs per part, whatever its size.
    """
    return is_finite([piece for part in parts for piece in _sample(part)])


def _sample(part: Tensor) -> Sequence[Tensor]:
    numel = part.numel()
    if numel <= _SMALL:
        return (part,)
    flat = part.view(-1)
    return flat[:_BLOCK], flat[-_BLOCK:], flat[:: numel // _BETWEEN]


class Finite:
    """The treatment of one optimizer's gradients that are not finite."""

    def __init__(
        self, wire: Wire, strategy: str, policy: OnNonfinite, replicas: Sequence[Sequence[int]] | None = None
    ) -> None:
        """`replicas` are the workers of each replica, where several workers hold one, and their gradients are
        summed."""
        self._wire, self._strategy, self.policy, self._replicas = wire, strategy, policy, replicas
        self.looks = policy != "ignore"
        """Whether gradients are checked."""
        self.first = ""
        """The first parameter whose gradient was not finite on this worker."""
        self._seen = 0

    def sees(self, parts: Sequence[Tensor]) -> bool:
        """Return whether `parts` seem finite; policies that act on the answer check every number."""
        return seems_finite(parts) if self.policy == "warn" else is_finite(parts)

    def note(self, names: Sequence[str], gradients: Sequence[Tensor | None]) -> None:
        """Remember the first parameter whose gradient is not finite."""
        pairs = zip(names, gradients, strict=True)
        self.first = next((name for name, x in pairs if x is not None and not is_finite([numbers_in(x)])), "")

    def leaves_out(self, ranks: Sequence[int], number: int, *, is_scaled: bool) -> bool:
        """Return whether the update of round `number` is left out, as `ranks` have sent non-finite gradients.

        All workers call this alike. Under a GradScaler infinities are ordinary, and the scaler handles them. Raises
        `NotFinite` if the policy is "raise".
        """
        if not ranks or is_scaled:
            return False
        sentence = self._sentence(ranks, number)
        if self.policy == "raise":
            raise NotFinite(sentence, [worker for rank in ranks for worker in self._workers(rank)])
        self._seen += 1
        count = str(self._seen)
        is_told = count.strip("0") == "1"  # the first, the tenth, the hundredth
        if is_told and (self._wire.rank == 0 or self._wire.rank in ranks):
            does = "its update is left out" if self.policy == "skip" else "it counts like any other"
            times = "" if self._seen == 1 else f" ({count} rounds by now)"
            tell(f'quorate: {sentence}; {does} (on_nonfinite="{self.policy}"){times}\n')
        return self.policy == "skip"

    def _sentence(self, ranks: Sequence[int], number: int) -> str:
        wire = self._wire
        workers = [worker for rank in ranks for worker in self._workers(rank)]
        who = ranks_in_words(workers)
        if self._replicas is not None:
            each = [f"{rank} ({ranks_in_words(self._replicas[rank])})" for rank in sorted(ranks)]
            who = f"replica {each[0]}" if len(each) == 1 else f"replicas {', '.join(each[:-1])} and {each[-1]}"
        elif len(ranks) == 1:
            who += f" (host {host_of(wire.board, ranks[0])})"
        where = f", first in {self.first}" if wire.rank in ranks and self.first else ""
        return f"{who} brought a gradient that is not finite to round {number} of {self._strategy}{where}"

    def _workers(self, rank: int) -> Sequence[int]:
        return [rank] if self._replicas is None else self._replicas[rank]
