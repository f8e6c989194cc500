"""Steps of several rounds, where the batch of a step stays as it was after a death.

A round of all workers that live lacks the micro-batches of one that has died. It is no step then: its sum is kept, on
all workers, and the next round adds the missing micro-batches, which some of them have computed meanwhile.

Cost: a copy of the sum of a round that lacks some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor

from quorate.core.vectors import Flat, empty_vector, scale_into
from quorate.rounds.log import Round


class KeptStep(Protocol):
    """The current step of one worker; all workers have the same after the same round."""

    partial: Round | None
    """The sum of the rounds of this step so far."""
    place: float
    """The synchronous steps that the training had made when this worker last ended a step. Its options are for no later
    place: where it has missed steps, its schedulers have not followed yet."""

    def summed(self, round: Round) -> bool:
        """Note the contributions of `round`; return whether the step has all of its micro-batches now."""

    def captured(self) -> dict[str, Any]:
        """Return the place of this step, for a copy of the replica; plain JSON values."""

    def adopt(self, place: dict[str, Any]) -> None:
        """Go on at that place."""


def whole_step(kept: KeptStep, round: Round) -> Round:
    """Return the round of a whole step: `round` with those before it; without a sum as long as it lacks some."""
    before, total = kept.partial, round
    if before is not None:
        sums = [x for x in (before.sum, round.sum) if x is not None]
        contributors = {**before.contributors, **round.contributors}
        total = replace(round, sum=_sum(sums), weight=before.weight + round.weight, contributors=contributors)
    if kept.summed(round):
        kept.partial = None
        return total
    if round.contributors:  # its memory is the log's
        kept.partial = replace(total, sum=None if total.sum is None else _copied(total.sum))
    return replace(round, sum=None, weight=0.0)


def with_kept_step(
    kept: KeptStep | None, header: dict[str, Any], tensors: Sequence[Tensor]
) -> tuple[dict[str, Any], Sequence[Tensor]]:
    """Return the copy of a replica with the place of its step, and with the sum so far."""
    if kept is None:
        return header, tensors
    partial = kept.partial
    parts: Sequence[Tensor] = () if partial is None or partial.sum is None else _copied(partial.sum).parts
    about = None if partial is None else replace(partial, sum=None).header()
    return {**header, "kept": [kept.captured(), about, len(parts)]}, [*tensors, *parts]


def adopt_kept_step(
    kept: KeptStep | None, header: dict[str, Any], tensors: Sequence[Tensor], blank: Callable[[], Flat]
) -> None:
    """Go on at the step of that copy; its sum is at the end of the `tensors`."""
    if kept is None:
        return
    place, about, count = header["kept"]
    kept.adopt(place)
    kept.partial = None
    if about is not None:
        vector = blank() if count else None
        for into, part in zip(() if vector is None else vector.parts, tensors[len(tensors) - count :], strict=True):
            into.copy_(part)
        kept.partial = Round.read({**about, "term": about["formed_in"]}, vector)


def _sum(vectors: Sequence[Flat]) -> Flat | None:
    return vectors[0] + vectors[1] if len(vectors) == 2 else next(iter(vectors), None)


def _copied(vector: Flat) -> Flat:
    return scale_into(vector, 1.0, empty_vector(vector.layout))
