"""Workers that joined a run under way, with times, and the workers that they replaced."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from quorate.records.rows import Gone, Joined, Step
from quorate.report.reading.sound import is_count, is_number
from quorate.report.wording import seconds_in_words


def is_newcomer(start: Mapping[str, Any]) -> bool:
    """Return whether the worker with this `start` row joined after the start: ranks of the start are below the size."""
    is_further = is_count(start.get("rank")) and is_count(start.get("size")) and bool(start["rank"] >= start["size"])
    return is_further and not start.get("server")


def replaced_by(
    joining: Joined, deaths: Sequence[Gone], starts: Mapping[int, Mapping[str, Any]], size: int
) -> Gone | None:
    """Return the last death of a worker with the same seat; None for a worker that replaced none.

    `starts` are the `start` rows by rank, which have the seats of newcomers.
    """
    seat = starts.get(joining.rank, {}).get("seat")
    before = [
        death
        for death in deaths
        if death.time <= joining.time
        and death.rank != joining.rank
        and seat == (death.rank if death.rank < size else starts.get(death.rank, {}).get("seat"))
    ]
    return before[-1] if before and seat is not None else None


def seconds_to_join(joining: Joined, replaced: Gone | None, start: Mapping[str, Any]) -> float | None:
    """Return the seconds since the replaced worker's death was noticed, else since `quorate.join()`, or None."""
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
    """Return the steps, by rank, that can be compared by number: without newcomers if replicas step independently.

    `distributed` are the ranks' `distribute` rows.
    """
    left_out = newcomers if any(row.get("replicas_differ", False) for row in distributed) else ()
    return {rank: rank_steps for rank, rank_steps in steps.items() if rank not in left_out}
