"""The peak of the memory of each rank, beside the forecast from when its optimizers were distributed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quorate.report.reading.rank import RankRecords
from quorate.report.reading.run import RunRecords
from quorate.report.schema_parts import MemorySummary, RankMemory


def memory_of(run: RunRecords, seed: int) -> MemorySummary | None:
    """Return the memory of all ranks that have recorded it; None if none has, as in a virtual world."""
    ranks = [rank_memory for rank in run.ranks if rank.memory and (rank_memory := _of_rank(rank)) is not None]
    if not ranks:
        return None
    row = next((rank.distributed for rank in run.ranks if rank.distributed), {})
    return MemorySummary(seed=seed, zero=row.get("zero") or 0, shards=row.get("shards") or 1, ranks=tuple(ranks))


def _of_rank(rank: RankRecords) -> RankMemory | None:
    first, foreseen = rank.memory[0], rank.foreseen.values()
    peak = (rank.end or {}).get("peak_bytes")
    residents = [row.resident for row in rank.memory if row.resident is not None]
    knows_all = bool(foreseen) and all("optimizer" in memory for memory in foreseen)
    on_host = [memory["host"] for memory in foreseen if "host" in memory]
    return RankMemory(
        rank=rank.rank,
        resident_before=first.resident,
        peak_resident=peak if isinstance(peak, int) else max(residents, default=None),
        live_before=first.live,
        peak_live=_most(row.peak_live for row in rank.memory),
        peak_gpu=_most(row.peak_gpu for row in rank.memory),
        parameters=sum(memory.get("parameters", 0) for memory in foreseen) if foreseen else None,
        gradients=sum(memory.get("gradients", 0) for memory in foreseen) if foreseen else None,
        optimizer=sum(memory["optimizer"] for memory in foreseen) if knows_all else None,
        host=sum(on_host) if on_host else None,
        to_host=_in_a_step([(row.step, row.to_host) for row in rank.memory]),
        to_device=_in_a_step([(row.step, row.to_device) for row in rank.memory]),
    )


def _in_a_step(rows: Sequence[tuple[int, int | None]]) -> float | None:
    """Return the bytes of a step, from the first row to the last; of a single row, from the beginning of the run."""
    totals = [(step, total) for step, total in rows if step and total is not None]
    if not totals:
        return None
    begin, end = totals[0] if totals[0][0] < totals[-1][0] else (0, 0), totals[-1]
    return (end[1] - begin[1]) / (end[0] - begin[0])


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
