"""Rounds that are kept: in a checkpoint, or until a step has all of its micro-batches.

A checkpoint has the newest round that was applied, and the contributions that no round has taken in yet. The law of
pending gradients: their sum over all workers is kept, with weights. In a world of another size those of each old worker
go to one new worker, in turn, and count as contributions of the new world.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from quorate.checkpoint.vectors import KeptVectors
from quorate.core.errors import CheckpointError
from quorate.core.resize import dealt
from quorate.core.vectors import Flat, empty_vector, header_in, scale_into, vector_on_cpu
from quorate.means.headers import COUNTS
from quorate.quorums.rows_in_rounds import RowsInRounds
from quorate.replica.replica import Replica
from quorate.replica.worker_momentum import kept_moments, restore_moments
from quorate.rounds.buffer import Entry, Kept, Ledger
from quorate.rounds.log import Round

if TYPE_CHECKING:
    from quorate.rounds.of_worker import AnyRounds


class KeptStep(Protocol):
    """The current step of one worker, of several rounds where its batch stays as it was after a death.

    A round of all workers that live lacks the micro-batches of one that has died. It is no step then: its sum is kept,
    on all workers, and the next round adds the missing micro-batches, which some of them have computed meanwhile. All
    workers have the same after the same round. Cost: a copy of the sum of a round that lacks some.
    """

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


_PLACES = 7
"""Numbers before the counts in a header, for checkpoints that do not say how many there are."""


def kept_of(
    rounds: AnyRounds, replica: Replica, size: int, divisor: int, rows: RowsInRounds | None = None
) -> dict[str, Any]:
    """Return the state of one worker's rounds for a checkpoint, in which contributions are divided by `size`.

    They were divided by `divisor` so far; where that is `size`, vectors are not copied.
    """
    kept, vectors = rounds.keep(), KeptVectors(replica)
    return {
        "number": kept.number,
        "best_step": kept.best_step,
        "best_options": kept.best_options,
        "progress": kept.progress,
        "step": kept.step,
        "options": kept.options,
        "ledger": dataclasses.asdict(kept.ledger),
        "entries": [
            {
                "version": entry.version,
                "weight": entry.weight,
                "count": entry.count,
                "vector": vectors.written(times(divisor / size, entry.vector)),
                **({} if rows is None else {"rows": rows.kept(entry.measures, divisor / size)}),
            }
            for entry in kept.entries
        ],
        "settings": kept.settings,
        "request": kept.request,
        "workers": size,
        "places": COUNTS,
        **({} if kept.error is None else {"error": vectors.written(kept.error)}),
        **({"own_options": replica.options.kept()} if replica.options.are_some_own else {}),
    }


def restore(
    rounds: AnyRounds,
    replica: Replica,
    olds: Sequence[dict[str, Any]],
    rank: int,
    size: int,
    divisor: int,
    rows: RowsInRounds | None = None,
) -> list[str]:
    """Restore the rounds of worker `rank` of `size` from the states of all old workers; return notes for the user.

    Contributions are divided by `divisor` from now on.
    """
    past, first, vectors = len(olds), olds[0], KeptVectors(replica)
    assert len({old["number"] for old in olds}) == 1, "every worker is kept as it is after the same round"
    taken = [olds[other] for other in ([rank] if past == size else dealt(past, rank, size))]
    ledger = Ledger()
    for old in taken:
        for name, value in old["ledger"].items():
            setattr(ledger, name, getattr(ledger, name) + value)
    workers = first.get("workers", past)  # some of them may have died
    if any(("rows" in entry) != (rows is not None) for old in olds for entry in old["entries"]):
        raise CheckpointError(
            "the checkpoint has gradients that were pending, of the same tables as here, but with another setting "
            "sparse= of their layers; build these as they were when it was saved"
        )
    olds_of_entries = [(entry, old.get("places", _PLACES)) for old in taken for entry in old["entries"]]
    progress = first.get("progress", float(first["best_step"]))
    if rounds.agreed.batch:  # a step whose batch is kept begins again, whatever rounds have of it
        olds_of_entries, progress = [], float(math.floor(progress + 1e-6))
    entries = [_entry(entry, vectors, workers, size, places) for entry, places in olds_of_entries]
    for entry, (old_entry, _) in zip(entries, olds_of_entries, strict=True):
        entry.vector = times(size / divisor, entry.vector)
        if rows is not None:
            entry.measures = rows.restore(old_entry["rows"], workers / divisor, entry.version)
    own: dict[str, Any] = olds[rank] if rank < past else {"step": 0.0, "options": None}
    rounds.restore(
        Kept(
            number=first["number"],
            best_step=first["best_step"],
            best_options=first["best_options"],
            progress=progress,
            step=own["step"],
            options=own["options"],
            ledger=ledger,
            entries=_joined(entries),
            error=_error(
                [vector_on_cpu(vectors.read(old["error"])) for old in taken if "error" in old], workers / size
            ),
            settings=first.get("settings", {}) if past == size else {},  # a count of workers means another share then
            request=first.get("request", -1),
        )
    )
    if "own_options" in first:
        replica.options.go_on(first["own_options"])
    count = sum(entry["count"] for old in olds for entry in old["entries"])
    if past == size or not count or rounds.agreed.batch:
        return []
    return [f"{count} gradients that were pending are assigned again, none is lost"]


def begin_at(rounds: AnyRounds, steps: float) -> list[str]:
    """Begin the rounds of a training that has made so many synchronous steps without any; there is nothing to say."""
    rounds.restore(Kept(number=0, step=0.0, options=None, ledger=Ledger(), entries=[], progress=float(steps)))
    return []


def _entry(kept: dict[str, Any], vectors: KeptVectors, past: int, size: int, places: int = COUNTS) -> Entry:
    """Return a contribution, whose gradient is divided by the number of workers, for a world of `size` after `past`.

    `places` is the count of numbers at the start of its header; older headers have fewer, and the missing ones are 0.
    """
    vector = vector_on_cpu(vectors.read(kept["vector"]))
    about = vectors.header(kept["vector"])
    about = torch.cat([about[:places], about.new_zeros(COUNTS - places), about[places:]])
    if past != size:
        vector.mul_(past / size)
        about = about[:-past]  # the last `past` numbers are one of each rank
    if past != size or places != COUNTS:
        about = about[: header_in(vector).numel()]
        header_in(vector)[: about.numel()].copy_(about)
    return Entry(kept["version"], kept["weight"], vector, kept["count"])


def times(factor: float, vector: Flat) -> Flat:
    """Return `factor` times the numbers of `vector`, with its header; `vector` itself where `factor` is 1."""
    if factor == 1.0:
        return vector
    scaled = vector * factor
    header_in(scaled).copy_(header_in(vector))
    return scaled


def _error(kept: Sequence[Flat], factor: float) -> Flat | None:
    """Return `factor` times the sum of the errors that codecs have left; None if there is none."""
    total: Flat | None = None
    for error in kept:
        total = error if total is None else total.add_(error)
    return None if total is None else total.mul_(factor)


def _joined(entries: Sequence[Entry]) -> list[Entry]:
    """Return at most one entry for each version, in order: entries of the same version are added up."""
    sums: dict[int, Entry] = {}
    for entry in entries:
        total = sums.setdefault(entry.version, entry)
        if total is not entry:
            total.vector = total.vector + entry.vector
            total.weight += entry.weight
            total.count += entry.count
            total.measures = total.measures + entry.measures
    return [sums[version] for version in sorted(sums)]


def momentum_kept(replica: Replica) -> dict[str, Any]:
    """Return the momentum of a worker's own gradients for a checkpoint; an empty dict if it has none."""
    if replica.momentum is None:
        return {}
    vector, numbers = kept_moments(replica.momentum, replica.trained, Flat.zeros(replica.layout))
    named = dict(zip(replica.names, numbers, strict=True))
    return {"momentum": {"vector": KeptVectors(replica).written(vector), "numbers": named}}


def _in_order(numbers: Any, replica: Replica) -> list[Any]:
    return [numbers[name] for name in replica.names] if isinstance(numbers, dict) else list(numbers)


def restore_momentum(replica: Replica, olds: Sequence[dict[str, Any]], rank: int, size: int) -> None:
    """Restore a worker's own momentum; in a world of another size every worker gets the mean of all, which stays."""
    taken = [olds[rank]] if len(olds) == size else olds
    momenta = [old["momentum"] for old in taken if "momentum" in old]
    if replica.momentum is not None and momenta:
        kept = [(KeptVectors(replica).read(x["vector"]), _in_order(x["numbers"], replica)) for x in momenta]
        restore_moments(replica.momentum, replica.trained, kept)
