"""Workers that joined a run under way: who, when, and in place of whom."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from quorate.records.rows import Gone, Joined, Step
from quorate.report.reading.sound import is_count, is_number
from quorate.report.wording import seconds_in_words


def is_newcomer(start: Mapping[str, Any]) -> bool:
    """Whether the worker with this `start` row was not there at the start of the run: those have the ranks below."""
    is_further = is_count(start.get("rank")) and is_count(start.get("size")) and bool(start["rank"] >= start["size"])
    return is_further and not start.get("server")


def replaced_by(
    joining: Joined, deaths: Sequence[Gone], starts: Mapping[int, Mapping[str, Any]], size: int
) -> Gone | None:
    """Whose place it has: of those that died before and had this seat, the last; None for one that was asked for.

    `starts` are the `start` rows by rank; of those that joined they say the seat.
    """
    seat = starts.get(joining.rank, {}).get("seat")
    before = [
        one
        for one in deaths
        if one.time <= joining.time
        and one.rank != joining.rank
        and seat == (one.rank if one.rank < size else starts.get(one.rank, {}).get("seat"))
    ]
    return before[-1] if before and seat is not None else None


def seconds_to_join(joining: Joined, replaced: Gone | None, start: Mapping[str, Any]) -> float | None:
    """Since the death of the one whose place it has was noticed, else since it called `quorate.join()`; None where
    neither is known."""
    now = start.get("now")
    since = replaced.time if replaced is not None else now if is_number(now) else None
    return None if since is None else max(0.0, joining.time - since)


def joined_in_words(joining: Joined, replaced: Gone | None) -> str:
    """`rank 4 joined with round 300, 22.8 s after rank 1 had died, and 4 went on`."""
    after = ""
    if replaced is not None:
        after = f", {seconds_in_words(max(0.0, joining.time - replaced.time))} after rank {replaced.rank} had died"
    return f"rank {joining.rank} joined with round {joining.round}{after}, and {joining.live} went on"


def comparable(
    steps: Mapping[int, Sequence[Step]], newcomers: Collection[int], distributed: Iterable[Mapping[str, Any]]
) -> dict[int, Sequence[Step]]:
    """Those steps, by rank, whose numbers can be held side by side: where replicas step apart, not those of newcomers.

    `distributed` are the ranks' `distribute` rows.
    """
    left_out = newcomers if any(row.get("replicas_differ", False) for row in distributed) else ()
    return {rank: own for rank, own in steps.items() if rank not in left_out}
