"""Rounds in a checkpoint: the newest round that was applied, and what no round up to it has taken in.

The law of pending gradients: the sum over all workers is kept, weights and all. In a world of another size the old
workers' are dealt out in turn, each to one new worker; a contribution counts as much as any other of the new world.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from quorate.checkpoint.vectors import KeptVectors
from quorate.core.resize import dealt
from quorate.core.vectors import Flat
from quorate.means.headers import COUNTS
from quorate.replica.momentum_state import kept_moments, restore_moments
from quorate.replica.replica import Replica
from quorate.rounds.buffer import Entry, Kept, Ledger

if TYPE_CHECKING:
    from quorate.rounds.of_worker import AnyRounds

_PLACES = 7
"""Before the counts in the headers of checkpoints that do not say how many."""


def kept_of(rounds: AnyRounds, replica: Replica, size: int) -> dict[str, Any]:
    """What one worker keeps of its rounds; vectors are not copied."""
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
                "vector": vectors.written(entry.vector),
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


def restore(rounds: AnyRounds, replica: Replica, olds: Sequence[dict[str, Any]], rank: int, size: int) -> list[str]:
    """Let the rounds of worker `rank` of `size` go on from what the old workers kept; returns what is to be said."""
    past, first, vectors = len(olds), olds[0], KeptVectors(replica)
    assert len({old["number"] for old in olds}) == 1, "every worker is kept as it is after the same round"
    mine = [olds[other] for other in ([rank] if past == size else dealt(past, rank, size))]
    ledger = Ledger()
    for old in mine:
        for name, value in old["ledger"].items():
            setattr(ledger, name, getattr(ledger, name) + value)
    whole = first.get("workers", past)  # of which some may have died
    entries = [
        _entry(entry, vectors, whole, size, old.get("places", _PLACES)) for old in mine for entry in old["entries"]
    ]
    own: dict[str, Any] = olds[rank] if rank < past else {"step": 0.0, "options": None}
    rounds.restore(
        Kept(
            number=first["number"],
            best_step=first["best_step"],
            best_options=first["best_options"],
            progress=first.get("progress", float(first["best_step"])),
            step=own["step"],
            options=own["options"],
            ledger=ledger,
            entries=_joined(entries),
            error=_error([vectors.read(old["error"]).on_cpu() for old in mine if "error" in old], whole / size),
            settings=first.get("settings", {}) if past == size else {},  # a count of workers means another share then
            request=first.get("request", -1),
        )
    )
    if "own_options" in first:
        replica.options.go_on(first["own_options"])
    count = sum(entry["count"] for old in olds for entry in old["entries"])
    if past == size or not count:
        return []
    return [f"{count} gradients that were pending are dealt out again, none is lost"]


def _entry(kept: dict[str, Any], vectors: KeptVectors, past: int, size: int, places: int = COUNTS) -> Entry:
    """A contribution holds its gradient divided by the number of workers, which may be another one now.

    Headers had fewer `places` before their counts once: what is told there since is 0.
    """
    vector = vectors.read(kept["vector"]).on_cpu()
    about = vectors.header(kept["vector"])
    about = torch.cat([about[:places], about.new_zeros(COUNTS - places), about[places:]])
    if past != size:
        vector.mul_(past / size)
        about = about[:-past]  # the rest is of each rank
    if past != size or places != COUNTS:
        about = about[: vector.header.numel()]
        vector.header[: about.numel()].copy_(about)
    return Entry(kept["version"], kept["weight"], vector, kept["count"])


def _error(kept: Sequence[Flat], factor: float) -> Flat | None:
    """The sum of what codecs had left out, in units of contributions in a world of this size."""
    total: Flat | None = None
    for error in kept:
        total = error if total is None else total.add_(error)
    return None if total is None else total.mul_(factor)


def _joined(entries: Sequence[Entry]) -> list[Entry]:
    """At most one entry for each version, in order."""
    found: dict[int, Entry] = {}
    for entry in entries:
        there = found.setdefault(entry.version, entry)
        if there is not entry:
            there.vector = there.vector + entry.vector
            there.weight += entry.weight
            there.count += entry.count
    return [found[version] for version in sorted(found)]


def momentum_kept(replica: Replica) -> dict[str, Any]:
    """What a worker keeps of the momentum of its own gradients."""
    if replica.momentum is None:
        return {}
    vector, numbers = kept_moments(replica.momentum, replica.trained, Flat.zeros(replica.layout))
    named = dict(zip(replica.names, numbers, strict=True))
    return {"momentum": {"vector": KeptVectors(replica).written(vector), "numbers": named}}


def _in_order(numbers: Any, replica: Replica) -> list[Any]:
    return [numbers[name] for name in replica.names] if isinstance(numbers, dict) else list(numbers)


def restore_momentum(replica: Replica, olds: Sequence[dict[str, Any]], rank: int, size: int) -> None:
    """Its law: a worker's own; in a world of another size everyone has the mean of all, so that their mean stays."""
    mine = [olds[rank]] if len(olds) == size else olds
    found = [old["momentum"] for old in mine if "momentum" in old]
    if replica.momentum is not None and found:
        kept = [(KeptVectors(replica).read(one["vector"]), _in_order(one["numbers"], replica)) for one in found]
        restore_moments(replica.momentum, replica.trained, kept)
