"""Memory: the peak of each rank, beside the forecast from when its optimizers were distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from quorate.report.charts.markup import Markup
from quorate.report.figures.run import MeasuredRun
from quorate.report.parts import NOT_MEASURED, View, framed, nothing, paragraphs, table
from quorate.report.reading.rank import RankRecords
from quorate.report.schema import Part
from quorate.report.topic import Arms, Topic, by_arm, data_of
from quorate.report.wording import Words, bytes_alike, bytes_in_words

LEAD = (
    "The peak memory of the workers beside the predicted memory between steps: parameters, buffers, gradients and "
    "optimizer state; for a model in shards, those of one worker."
)
MEANINGS = (
    "The first run, as a range over the ranks; the data have each rank. Live memory is memory that a program has "
    "allocated and not freed. It is read at the end of forward passes and steps, so the peak of a backward pass may "
    "be missing. Resident memory is all that the process holds. The prediction does not include activations, gathered "
    "parameters and gradients, the buffers of strategies, and torch itself."
)


class RankMemory(Part):
    """Bytes of one worker; null if unknown."""

    rank: int
    resident_before: int | None
    """When the worker had joined, before there was a model."""
    peak_resident: int | None
    live_before: int | None
    """In use then: allocated by the C library and not freed, and shared memory that is resident."""
    peak_live: int | None
    """The highest value at the end of a forward pass or of a step."""
    peak_gpu: int | None
    """Allocated by torch."""
    parameters: int | None
    """Forecast, with buffers; of a model in shards its piece."""
    gradients: int | None
    optimizer: int | None
    host: int | None = None
    """Forecast of memory of the host, or in mapped files, if something is offloaded there."""
    to_host: float | None = None
    """Mean bytes copied there in a step."""
    to_device: float | None = None


class MemorySummary(Part):
    """The peak of memory, in the first run of an arm that ended well, beside the forecast for between steps."""

    seed: int
    zero: int
    """0 if every worker has all of the model."""
    shards: int
    """Workers of a replica."""
    ranks: tuple[RankMemory, ...]


def memory_of(run: MeasuredRun) -> MemorySummary | None:
    """Return the memory of all ranks that have recorded it; None if none has, as in a virtual world."""
    records = run.records.ranks
    ranks = [rank_memory for rank in records if rank.memory and (rank_memory := _of_rank(rank)) is not None]
    if not ranks:
        return None
    row = next((rank.distributed for rank in records if rank.distributed), {})
    return MemorySummary(seed=run.seed, zero=row.get("zero") or 0, shards=row.get("shards") or 1, ranks=tuple(ranks))


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


def _body(view: View, arms: Arms[MemorySummary]) -> Iterator[Markup]:
    memories = [memory for _, memory in arms]
    in_parts = any(memory.shards > 1 or any(rank.host is not None for rank in memory.ranks) for memory in memories)
    heads, cells = ["strategy", "ranks"], [[arm.name for arm, _ in arms], [f"{len(m.ranks)}" for m in memories]]
    if in_parts:
        heads.append("ZeRO")
        cells.append([nothing("none") if m.shards == 1 else f"{m.zero} over {m.shards}" for m in memories])
    for head, value_of in (*(_PARTS if in_parts else ()), *_COLUMNS):
        values = [[value for rank in m.ranks if (value := value_of(rank)) is not None] for m in memories]
        if any(values):
            heads.append(head)
            write = bytes_alike(value for ranks in values for value in ranks)
            cells.append([_range(ranks, write) for ranks in values])
    yield framed(view, "Memory of the ranks", table(heads, list(zip(*cells, strict=True))), paragraphs(MEANINGS))


def _range(values: Sequence[float], write: Words) -> str:
    if not values:
        return nothing()
    least, most = write(min(values)), write(max(values))
    return least if least == most else f"{least} – {most}"


def _predicted(rank: RankMemory) -> int | None:
    parts = (rank.parameters, rank.gradients, rank.optimizer)
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _in_words(memory: MemorySummary) -> str:
    peak = max(memory.ranks, key=lambda rank: (rank.peak_live or 0, rank.peak_resident or 0))
    parts = (("parameters", peak.parameters), ("gradients", peak.gradients), ("optimizer", peak.optimizer))
    predicted = ", ".join(f"{name} {bytes_in_words(size)}" for name, size in parts if size is not None)
    seen = (("live", peak.peak_live), ("resident", peak.peak_resident), ("on the GPU", peak.peak_gpu))
    most = ", ".join(f"{bytes_in_words(size)} {name}" for name, size in seen if size is not None)
    before = "" if peak.live_before is None else f" (live before the model: {bytes_in_words(peak.live_before)})"
    spread = "" if memory.shards == 1 else f", ZeRO {memory.zero} over {memory.shards} workers"
    return f"rank {peak.rank} peaked at {most}{before}{spread}; predicted between steps: {predicted or NOT_MEASURED}"


_Columns = Sequence[tuple[str, Callable[[RankMemory], float | None]]]
_PARTS: _Columns = (
    ("parameters", lambda rank: rank.parameters),
    ("gradients", lambda rank: rank.gradients),
    ("optimizer", lambda rank: rank.optimizer),
)
"""Figures of models in shards, and of optimizers that are offloaded."""
_COLUMNS: _Columns = (
    ("predicted", _predicted),
    ("live, before the model", lambda rank: rank.live_before),
    ("live, peak", lambda rank: rank.peak_live),
    ("resident, before the model", lambda rank: rank.resident_before),
    ("resident, peak", lambda rank: rank.peak_resident),
    ("on the GPU, peak", lambda rank: rank.peak_gpu),
    ("predicted on the host", lambda rank: rank.host),
    ("to the host per step", lambda rank: rank.to_host),
    ("to the device per step", lambda rank: rank.to_device),
)
TOPIC = Topic(
    name="memory",
    title="Memory",
    lead=LEAD,
    part=MemorySummary,
    measure=memory_of,
    body=_body,
    markdown=lambda view, arms: by_arm("Memory", arms, _in_words),
    data={
        "memory": data_of(
            "rank parameters gradients optimizer live_before peak_live resident_before peak_resident peak_gpu",
            lambda summary: summary.ranks,
        )
    },
)
