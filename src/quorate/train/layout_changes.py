"""Announcements, over the board, that a worker trains other parameters than before, so that who does not is named."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quorate.core.errors import ConfigurationError, ranks_in_words
from quorate.train.worker import StrategyWorker

_STEPS = 16
"""Steps that a worker may make after another's change before it makes the same, where steps are not in common."""
_LOOKS_EVERY = 4
_LOOKS_UNASKED_EVERY = 16


class LayoutChanges:
    """The announcements of one worker, for strategies under which the one that changes pauses until all have paused.

    Cost: nothing per step while no worker rests. While one rests, one question to the board in every fourth step. Under
    servers, and rounds to which not all contribute, which do not show who rests, one in every 16th step.
    """

    def __init__(self, worker: StrategyWorker) -> None:
        self._worker = worker
        self._seen_at: int | None = None
        """This worker's step when it first saw that another one has changed."""

    def announce(self, before: str, names_before: Sequence[str]) -> str:
        """This worker has laid out other parameters than in the layout of digest `before`; where it has said so."""
        worker = self._worker
        self._seen_at = None
        prefix = f"{worker.wire.name}/layout/{before}/"
        words = _difference(names_before, worker.replica.names_now)
        told = json.dumps({"rank": worker.rank, "step": worker.step, "words": words}).encode()
        worker.wire.board.set(f"{prefix}{worker.rank}", told)
        worker.wire.board.swap(f"{prefix}first", None, told)
        return prefix

    def check_all_changed(self, prefix: str) -> None:
        """All workers have paused or ended. Raises `ConfigurationError` where some have not changed their layout."""
        worker = self._worker
        ranks = worker.wire.alive
        told = worker.wire.board.get_all([f"{prefix}{rank}" for rank in ranks])
        others = [rank for rank, one in zip(ranks, told, strict=True) if one is None]
        if others:
            own = next(one for rank, one in zip(ranks, told, strict=True) if rank == worker.rank)
            assert own is not None
            raise ConfigurationError(_sentence(json.loads(own), f"{ranks_in_words(others)} paused or ended without it"))

    def settled(self, prefix: str) -> None:
        """All workers have changed alike."""
        board, own = self._worker.wire.board, f"{prefix}{self._worker.rank}"
        told = board.get(f"{prefix}first")
        if told is not None and json.loads(told)["rank"] == self._worker.rank:
            board.delete(f"{prefix}first")
        board.delete(own)

    def step_begins(self) -> None:
        """Raises `ConfigurationError` where another worker has changed its layout, and this one goes on without."""
        worker = self._worker
        if self._seen_at is None and not self._looks():
            return
        told = self._first()
        if told is None:
            self._seen_at = None
            return
        if self._seen_at is None:
            self._seen_at = worker.step
        allowed = 0 if self._in_lockstep else _STEPS
        if worker.step > told["step"] + allowed and worker.step >= self._seen_at + allowed:
            raise ConfigurationError(_sentence(told, f"rank {worker.rank} is at its step {worker.step} without it"))

    def pause_begins(self) -> None:
        """Raises `ConfigurationError` where another worker has changed its layout, and this one pauses without it."""
        told = self._first()
        if told is not None:
            raise ConfigurationError(
                _sentence(
                    told, f"rank {self._worker.rank} pauses or ends after its step {self._worker.step} without it"
                )
            )

    def _first(self) -> dict[str, Any] | None:
        worker = self._worker
        told = worker.wire.board.get(f"{worker.wire.name}/layout/{worker.replica.layout.digest}/first")
        found = None if told is None else dict(json.loads(told))
        return None if found is None or found["rank"] in worker.wire.dead else found

    @property
    def _in_lockstep(self) -> bool:
        """Whether all workers come to their steps together."""
        return self._worker.has_rounds and not self._worker.differs and self._worker.rounds.waits_for_all

    def _looks(self) -> bool:
        """Whether the board is asked in this step, while nothing is known of a change."""
        worker = self._worker
        if worker.has_rounds:
            contributors = worker.rounds.contributors
            if contributors >= worker.wire.size or contributors >= len(worker.wire.alive):
                return False
            return self._in_lockstep or worker.step % _LOOKS_UNASKED_EVERY == 0
        if worker.is_served:
            return worker.step % _LOOKS_UNASKED_EVERY == 0
        return worker.step % _LOOKS_EVERY == 0 and (worker.means.some_away or worker.neighbours.someone_rests)


def _difference(before: Sequence[str], now: Sequence[str]) -> str:
    gone, new = [x for x in before if x not in set(now)], [x for x in now if x not in set(before)]
    parts = [f"{_some(gone)} no longer trained"] * bool(gone) + [f"{_some(new)} trained now"] * bool(new)
    return ", and ".join(parts) or "the same ones on another device or of another dtype"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"


def _sentence(told: Mapping[str, object], others: str) -> str:
    return (
        f"rank {told['rank']} trains other parameters since its step {told['step']} ({told['words']}), and {others}; "
        "parameters freeze, thaw and join the optimizer on all workers before the same step"
    )
