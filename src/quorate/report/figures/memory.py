"""What memory each rank took at its peak, beside what was foreseen when its optimizers were distributed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quorate.report.reading.rank import RankRecords
from quorate.report.reading.run import RunRecords
from quorate.report.schema_parts import MemorySummary, RankMemory


def memory_of(run: RunRecords, seed: int) -> MemorySummary | None:
    """Of all ranks that have said something of it; None where none has, as in a virtual world."""
    ranks = [found for one in run.ranks if one.memory and (found := _of_rank(one)) is not None]
    if not ranks:
        return None
    told = next((one.distributed for one in run.ranks if one.distributed), {})
    return MemorySummary(seed=seed, zero=told.get("zero") or 0, shards=told.get("shards") or 1, ranks=tuple(ranks))


def _of_rank(one: RankRecords) -> RankMemory | None:
    first, foreseen = one.memory[0], one.foreseen.values()
    peak = (one.end or {}).get("peak_bytes")
    residents = [row.resident for row in one.memory if row.resident is not None]
    knows_all = bool(foreseen) and all("optimizer" in told for told in foreseen)
    return RankMemory(
        rank=one.rank,
        resident_before=first.resident,
        peak_resident=peak if isinstance(peak, int) else max(residents, default=None),
        live_before=first.live,
        peak_live=_most(row.peak_live for row in one.memory),
        peak_gpu=_most(row.peak_gpu for row in one.memory),
        parameters=sum(told.get("parameters", 0) for told in foreseen) if foreseen else None,
        gradients=sum(told.get("gradients", 0) for told in foreseen) if foreseen else None,
        optimizer=sum(told["optimizer"] for told in foreseen) if knows_all else None,
        host=sum(told["host"] for told in foreseen if "host" in told) if any("host" in t for t in foreseen) else None,
        to_host=_in_a_step([(row.step, row.to_host) for row in one.memory]),
        to_device=_in_a_step([(row.step, row.to_device) for row in one.memory]),
    )


def _in_a_step(rows: Sequence[tuple[int, int | None]]) -> float | None:
    """From the first row of a step to the last one; of one such row from the beginning."""
    known = [(step, total) for step, total in rows if step and total is not None]
    if not known:
        return None
    begin, end = known[0] if known[0][0] < known[-1][0] else (0, 0), known[-1]
    return (end[1] - begin[1]) / (end[0] - begin[0])


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
