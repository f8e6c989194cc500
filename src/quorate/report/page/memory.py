"""Memory: the peak of each rank, beside the forecast."""

from __future__ import annotations

from quorate.report.charts.markup import Markup
from quorate.report.page.parts import View, alike, framed, nothing, paragraphs, section, table
from quorate.report.schema import ArmSummary, MemorySummary
from quorate.report.schema_parts import RankMemory
from quorate.report.wording import bytes_alike

LEAD = (
    "What each worker took at its peak, beside what it was to hold between steps: parameters with buffers, gradients, "
    "and what the optimizer keeps; of a model in shards, its piece."
)
MEANINGS = (
    "Of the first run. Live is what programs asked for and did not give back, and shared memory, seen at the end of "
    "forward passes and of steps, so that the most of a backward pass may be missing. Resident is what the system gave "
    "to the process, programs and memory that is kept for later included. What is not foreseen: activations, whole "
    "parameters and gradients that come and go, what strategies keep and exchange, and what torch loads."
)
RANKS = 32
"""The most ranks listed of each arm."""
_HEADS = [
    "strategy", "rank", "ZeRO", "parameters", "gradients", "optimizer", "foreseen", "live before", "live at most",
    "resident before", "resident at most", "on the GPU at most",
]  # fmt: skip
_OF_OFFLOAD = ["foreseen on the host", "to the host in a step", "to the device in a step"]


def memory(view: View) -> Markup:
    """Return the section, if some arm has recorded its memory."""
    summaries = [(arm, arm.memory) for arm in view.summary.arms if arm.memory is not None]
    if not summaries:
        return Markup()
    offloads = any(rank.host is not None for _, summary in summaries for rank in summary.ranks)
    heads = [*_HEADS, *(_OF_OFFLOAD if offloads else ())]
    entries = [(arm, summary, rank) for arm, summary in summaries for rank in summary.ranks[:RANKS]]
    sizes = [_sizes(rank) for _, _, rank in entries]
    figures = alike(sizes, [bytes_alike] * len(sizes[0]))
    rows = [[*_names(*cells), *row][: len(heads)] for cells, row in zip(entries, figures, strict=True)]
    hidden = sum(max(0, len(summary.ranks) - RANKS) for _, summary in summaries)
    note = f"Further ranks: {hidden:,}; all of them are in the data." if hidden else ""
    return section("memory", "Memory", LEAD, framed(view, "Memory of each rank", table(heads, rows),
                                                    paragraphs(MEANINGS, note)))  # fmt: skip


def _names(arm: ArmSummary, summary: MemorySummary, rank: RankMemory) -> list[str]:
    return [
        arm.name,
        f"{rank.rank}",
        nothing("none") if summary.shards == 1 else f"{summary.zero} over {summary.shards}",
    ]


def _sizes(rank: RankMemory) -> list[float | None]:
    foreseen = (rank.parameters, rank.gradients, rank.optimizer)
    parts = [part for part in foreseen if part is not None]
    total = sum(parts) if len(parts) == len(foreseen) else None
    seen = (rank.live_before, rank.peak_live, rank.resident_before, rank.peak_resident, rank.peak_gpu)
    return [*foreseen, total, *seen, rank.host, rank.to_host, rank.to_device]
