"""What waits for a round in one worker, seen from its training thread."""

from __future__ import annotations

from quorate.rounds.rounds import Rounds


def pending_weight(rounds: Rounds) -> float:
    """The weight of it."""
    with rounds._progress.lock:
        return rounds._member.pending.weight
