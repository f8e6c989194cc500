"""`summary.md`: the verdict, a table, fairness, slow ranks, and how to reproduce the results."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping

from quorate.report.schema import ArmSummary, Estimate, MemorySummary, RoundsSummary, StagesSummary, Summary
from quorate.report.wording import (
    Words,
    bytes_alike,
    bytes_in_words,
    counted,
    number_in_words,
    numbers_alike,
    range_in_words,
    ratios_alike,
    seconds_alike,
    share_in_words,
    shares_alike,
)

NOTHING = "–"
_WAYS: Mapping[str, Callable[[Iterable[float | None]], Words]] = {
    "speedup": ratios_alike,
    "quality": numbers_alike,
    "time_to_target": seconds_alike,
    "examples_per_second": numbers_alike,
    "no_wait_share": shares_alike,
    "bytes_per_step": bytes_alike,
    "peak_bytes": bytes_alike,
}
_RANKS = 16
"""The most ranks of a pipeline that are named."""
COLUMNS = (
    "strategy", "speed-up", "final quality", "time to target", "examples/s", "of the no-wait ideal",
    "bytes per step and rank", "peak memory", "target reached",
)  # fmt: skip


def markdown(summary: Summary) -> str:
    """Return the summary for readers without a browser."""
    parts = [f"# {summary.title}", summary.verdict]
    if summary.world == "virtual":
        parts.append("Times are virtual: the result of a simulation, not a measurement.")
    if summary.warnings:
        parts.append("\n".join(f"- Caution: {warning}." for warning in summary.warnings))
    parts += [_table(summary), _legend(summary), "## Fairness", _fairness(summary)]
    slow = [f"- {arm.name}: {arm.arrival.sentence}." for arm in summary.arms if arm.arrival is not None]
    parts += ["## Who is slow", "\n".join(slow) or "Nobody can be told apart: no two workers met."]
    merged = [f"- {arm.name}: {_rounds(arm.rounds)}." for arm in summary.arms if arm.rounds is not None]
    if merged:
        parts += ["## Rounds", "\n".join(merged)]
    staged = [f"- {arm.name}: {_stages(arm.stages)}." for arm in summary.arms if arm.stages is not None]
    if staged:
        parts += ["## Stages", "\n".join(staged)]
    noisy = [f"- {arm.name}: {arm.noise.advice}." for arm in summary.arms if arm.noise is not None]
    if noisy:
        parts += ["## Gradient noise", "\n".join(noisy)]
    taken = [f"- {arm.name}: {_memory(arm.memory)}." for arm in summary.arms if arm.memory is not None]
    if taken:
        parts += ["## Memory", "\n".join(taken)]
    parts += ["## Reproduce", "\n".join(_reproduce(summary))]
    return "\n\n".join(parts) + "\n"


def _table(summary: Summary) -> str:
    forms = {field: form([_mean(arm, field) for arm in summary.arms]) for field, form in _WAYS.items()}
    rows = [COLUMNS, tuple("---" for _ in COLUMNS), *(_row(arm, forms) for arm in summary.arms)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _mean(arm: ArmSummary, field: str) -> float | None:
    estimate: Estimate | None = getattr(arm, field)
    return None if estimate is None else estimate.mean


def _row(arm: ArmSummary, forms: Mapping[str, Words]) -> tuple[str, ...]:
    name = f"{arm.name} (baseline)" if arm.is_baseline else arm.name
    reached = arm.target_reached
    missed = reached is not None and reached[0] == 0
    cells = {field: _cell(getattr(arm, field), words) for field, words in forms.items()}
    if missed:
        cells["time_to_target"] = "missed"
    judged = {"speedup": "examples_per_second"}
    figures = [_judged(cell, arm.differences.get(judged.get(field, field))) for field, cell in cells.items()]
    return (name.replace("|", "\\|"), *figures, NOTHING if reached is None else f"{reached[0]} of {reached[1]}")


def _cell(estimate: Estimate | None, words: Words) -> str:
    """Write `0.62 (0.60 to 0.64, 5 seeds)`; the values of two seeds, and the only one of one."""
    if estimate is None:
        return NOTHING
    if estimate.low is None or estimate.high is None:
        count = len(estimate.values)
        each = f"{', '.join(map(words, estimate.values))}; {count} seeds" if count > 1 else "one seed"
        return f"{words(estimate.mean)} ({each})"
    mean, low, high = words(estimate.mean), words(estimate.low), words(estimate.high)
    spread = "" if low == mean == high else f"{low} to {high}, "
    return f"{mean} ({spread}{len(estimate.values)} seeds)"


def _judged(cell: str, difference: str | None) -> str:
    """Set a cell in bold if it is shown to be better, else add what is shown."""
    if difference is None or cell == NOTHING:
        return cell
    return f"**{cell}**" if difference == "better" else f"{cell}: {difference}"


def _legend(summary: Summary) -> str:
    metric = ""
    if summary.metric is not None:
        better = "higher" if summary.metric.higher_is_better else "lower"
        metric = f"Quality is {summary.metric.name}, {better} is better. "
    if summary.target is not None:
        metric += f"The target is {summary.target:g}. "
    if summary.baseline is None:
        return f"{metric}In brackets: the 95% interval of the mean, where there are three seeds or more."
    return (
        f"{metric}In brackets: the 95% interval of the mean. **Bold**: better than {summary.baseline}, pair by pair of "
        "equal seeds, beyond the 95% interval. Speed-up is in examples per second, as a geometric mean."
    )


def _fairness(summary: Summary) -> str:
    fairness = summary.fairness
    lines = [f"- {sentence}" for sentence in fairness.equal]
    for key, values in fairness.differed.items():
        listed = ", ".join(f"{name} {NOTHING if value is None else value}" for name, value in values.items())
        lines.append(f"- Different: {key}: {listed}.")
    if not lines:
        steps = counted(fairness.warm_up_steps, "step")
        lines.append(f"One run, compared with nothing; the first {steps} of every worker are left out as warm-up.")
    return "\n".join(lines)


def _rounds(rounds: RoundsSummary) -> str:
    speed = "" if rounds.per_second is None else f" ({number_in_words(rounds.per_second.mean)} per second)"
    least = min(range(len(rounds.rank_shares)), key=lambda rank: rounds.rank_shares[rank])
    said = [
        f"{number_in_words(rounds.count.mean)} rounds{speed}, {number_in_words(rounds.contributors_mean)} of "
        f"{range_in_words(*rounds.live)} workers in each",
        f"{share_in_words(rounds.fresh_share.mean)} of the gradients fresh, staleness "
        f"{number_in_words(rounds.staleness_mean)} in the mean and {len(rounds.staleness) - 1} at most",
        f"rank {least} has the least of the applied gradients, {share_in_words(rounds.rank_shares[least])}",
    ]
    if rounds.effective_batch is not None:
        said.append(f"effective batch {number_in_words(rounds.effective_batch.mean)}")
    if rounds.waiting_share is not None and rounds.waiting_in_step is not None:
        waited, in_step = (share_in_words(share.mean) for share in (rounds.waiting_share, rounds.waiting_in_step))
        said.append(f"{waited} of the time was waiting (estimate of what it would have been in step: {in_step})")
    return "; ".join(said)


def _stages(stages: StagesSummary) -> str:
    each = ", ".join(f"rank {rank.rank} {share_in_words(rank.bubble)}" for rank in stages.ranks[:_RANKS])
    more = f" and {len(stages.ranks) - _RANKS} more ranks" if len(stages.ranks) > _RANKS else ""
    formula = "" if stages.formula is None else f" (by formula, for equal stages: {share_in_words(stages.formula)})"
    return (
        f"{stages.schedule} with {stages.microbatches} micro-batches; waiting for other stages: {each}{more}{formula}"
    )


def _memory(memory: MemorySummary) -> str:
    peak = max(memory.ranks, key=lambda rank: (rank.peak_live or 0, rank.peak_resident or 0))
    parts = (("parameters", peak.parameters), ("gradients", peak.gradients), ("optimizer", peak.optimizer))
    foreseen = ", ".join(f"{name} {bytes_in_words(size)}" for name, size in parts if size is not None)
    seen = (("live", peak.peak_live), ("resident", peak.peak_resident), ("on the GPU", peak.peak_gpu))
    most = ", ".join(f"{bytes_in_words(size)} {name}" for name, size in seen if size is not None)
    before = "" if peak.live_before is None else f" (live before there was a model: {bytes_in_words(peak.live_before)})"
    spread = "" if memory.shards == 1 else f", ZeRO {memory.zero} over {memory.shards} workers"
    return f"rank {peak.rank} took {most} at most{before}{spread}; foreseen between steps: {foreseen or NOTHING}"


def _reproduce(summary: Summary) -> Iterator[str]:
    again = summary.reproduce
    if again.command:
        yield f"```bash\n{shlex.join(again.command)}\n```\n"
    if again.started:
        yield f"- Started: {again.started}"
    git = again.git or {}
    if git.get("commit"):
        dirty = git.get("dirty")
        state = "" if dirty is None else ", with changes that are in no commit" if dirty else ", without changes"
        yield f"- Commit: {git['commit']}{state}"
    packages = ", ".join(f"{name} {version}" for name, version in again.packages.items() if version is not None)
    if packages:
        yield f"- Packages: {packages}"
    if again.machine:
        yield "- Machine: " + ", ".join(f"{key} {value}" for key, value in again.machine.items())
