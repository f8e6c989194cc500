"""Memory: what each rank took at its peak, beside what was foreseen."""

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
"""That are listed of each arm, at most."""
_HEADS = [
    "strategy", "rank", "ZeRO", "parameters", "gradients", "optimizer", "foreseen", "live before", "live at most",
    "resident before", "resident at most", "on the GPU at most",
]  # fmt: skip
_OF_OFFLOAD = ["foreseen on the host", "to the host in a step", "to the device in a step"]


def memory(view: View) -> Markup:
    """Only where some arm has recorded it."""
    known = [(arm, arm.memory) for arm in view.summary.arms if arm.memory is not None]
    if not known:
        return Markup()
    offloads = any(one.host is not None for _, told in known for one in told.ranks)
    heads = [*_HEADS, *(_OF_OFFLOAD if offloads else ())]
    some = [(arm, told, one) for arm, told in known for one in told.ranks[:RANKS]]
    sizes = [_sizes(one) for _, _, one in some]
    figures = alike(sizes, [bytes_alike] * len(sizes[0]))
    rows = [[*_names(*one), *row][: len(heads)] for one, row in zip(some, figures, strict=True)]
    hidden = sum(max(0, len(told.ranks) - RANKS) for _, told in known)
    note = f"Further ranks: {hidden:,}; all of them are in the data." if hidden else ""
    return section("memory", "Memory", LEAD, framed(view, "Memory of each rank", table(heads, rows),
                                                    paragraphs(MEANINGS, note)))  # fmt: skip


def _names(arm: ArmSummary, told: MemorySummary, one: RankMemory) -> list[str]:
    return [arm.name, f"{one.rank}", nothing("none") if told.shards == 1 else f"{told.zero} over {told.shards}"]


def _sizes(one: RankMemory) -> list[float | None]:
    foreseen = (one.parameters, one.gradients, one.optimizer)
    known = [part for part in foreseen if part is not None]
    total = sum(known) if len(known) == len(foreseen) else None
    seen = (one.live_before, one.peak_live, one.resident_before, one.peak_resident, one.peak_gpu)
    return [*foreseen, total, *seen, one.host, one.to_host, one.to_device]
