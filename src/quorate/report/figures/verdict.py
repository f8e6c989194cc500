"""The verdict of a comparison, or of one run, in a sentence."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from quorate.report.reading.planned import Planned
from quorate.report.schema import ArmSummary, Estimate
from quorate.report.wording import counted, listed, number_in_words, seconds_in_words, share_in_words

NONE_SHOWN = "no difference shown"


Qualities = Mapping[str, Mapping[int, float]]
"""By arm and seed, of runs that ended well."""


def verdict_of(plan: Planned, arms: Sequence[ArmSummary], qualities: Qualities) -> str:
    """One sentence that claims no more than the intervals do."""
    if plan.is_single:
        return _of_one(plan, arms[0])
    baseline = next((arm for arm in arms if arm.is_baseline), None)
    rest = [arm for arm in arms if arm is not baseline]
    if baseline is None or not rest:
        return "; ".join(_alone(arm, plan) for arm in arms) + "."
    if not _is_measured(baseline):
        ended = "has ended yet" if _is_awaited(baseline) else "ended well"
        return f"No run of the baseline {baseline.name} {ended}, so nothing can be held against it."
    return "; ".join(_against(arm, baseline, plan, qualities) for arm in rest) + "."


def _is_measured(arm: ArmSummary) -> bool:
    return arm.steps is not None


def _is_awaited(arm: ArmSummary) -> bool:
    """Whether none of its runs has failed, and none has ended."""
    return all(run.status is None for run in arm.runs)


def _nothing_of(arm: ArmSummary) -> str:
    return f"no run of {arm.name} {'has ended yet' if _is_awaited(arm) else 'ended well'}"


def _against(arm: ArmSummary, baseline: ArmSummary, plan: Planned, qualities: Qualities) -> str:
    if not _is_measured(arm):
        return _nothing_of(arm)
    parts = (
        _reaching(arm, baseline, plan, qualities),
        _target(arm, baseline, plan),
        _speed(arm, baseline),
    )
    said = listed([part for part in parts if part])
    coding = None if plan.world == "virtual" else coding_of(arm, baseline)
    return f"{arm.name} {said or f'cannot be held against {baseline.name}: nothing of both was measured'}" + (
        "" if coding is None else f" (its codec {coding})"
    )


def _reaching(arm: ArmSummary, baseline: ArmSummary, plan: Planned, qualities: Qualities) -> str | None:
    """Where its quality ends; beside the baseline's, on the seeds that both have."""
    if plan.metric is None or arm.quality is None:
        return None
    ours, theirs = qualities.get(arm.name, {}), qualities.get(baseline.name, {})
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        other = "" if baseline.quality is None else f" ({baseline.name}: no run of an equal seed)"
        return f"reaches {plan.metric.name} {number_in_words(arm.quality.mean)}{other}"
    own, other = (number_in_words(statistics.fmean(some[seed] for seed in both)) for some in (ours, theirs))
    of = "" if len(both) == len(ours.keys() | theirs.keys()) else f", on {_seeds(both)} alone"
    return (
        f"reaches {plan.metric.name} {own} ({baseline.name} {other}{of}: {arm.differences.get('quality', NONE_SHOWN)})"
    )


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {listed([str(seed) for seed in seeds])}"


def _target(arm: ArmSummary, baseline: ArmSummary, plan: Planned) -> str | None:
    if plan.target is None or arm.target_reached is None or arm.target_reached[1] == 0:
        return None
    reached, of = arm.target_reached
    if reached < of:
        return f"meets the target {plan.target:g} in {reached} of {counted(of, 'run')}"
    if arm.target_speedup is None:
        return f"meets the target {plan.target:g} in every run"
    found = arm.differences.get("time_to_target", NONE_SHOWN)
    ratio = _ratio(arm.target_speedup)
    return f"is {ratio} times as fast as {baseline.name} to {plan.target:g} ({_spread(arm.target_speedup)}: {found})"


def _speed(arm: ArmSummary, baseline: ArmSummary) -> str | None:
    if arm.speedup is None:
        return None
    found = arm.differences.get("examples_per_second", NONE_SHOWN)
    return f"does {_ratio(arm.speedup)} times {baseline.name}'s examples per second ({_spread(arm.speedup)}: {found})"


def coding_of(arm: ArmSummary, baseline: ArmSummary) -> str | None:
    """Where it writes small what it sends, and the baseline does not: what that saves of each step, and what it costs.

    Virtual time knows nothing of what coding costs.
    """
    if not arm.settings.get("compress") or baseline.settings.get("compress"):
        return None
    assert arm.steps is not None
    assert baseline.steps is not None
    saved = baseline.steps.shares["communication"] - arm.steps.shares["communication"]
    cost = sum(arm.steps.shares[name] - baseline.steps.shares[name] for name in ("encode", "decode"))
    said = [f"{'saves' if saved > 0 else 'adds'} {seconds_in_words(abs(saved))} of communication a step"]
    said.append(f"{'costs' if cost > 0 else 'saves'} {seconds_in_words(abs(cost))} of coding")
    if arm.bytes_per_step is not None and baseline.bytes_per_step is not None and baseline.bytes_per_step.mean > 0:
        said.append(f"sends {number_in_words(arm.bytes_per_step.mean / baseline.bytes_per_step.mean)} times the bytes")
    return f"{listed(said)}: {'faster' if saved > cost else 'slower'} here"


def _ratio(estimate: Estimate) -> str:
    return f"{estimate.mean:.2f}"


def _spread(estimate: Estimate) -> str:
    """`0.98 to 1.04, 5 seeds`, or `one seed`."""
    if estimate.low is None or estimate.high is None:
        return "one seed"
    return f"{estimate.low:.2f} to {estimate.high:.2f}, {len(estimate.values)} seeds"


def _alone(arm: ArmSummary, plan: Planned) -> str:
    """What an arm did that is compared with nothing."""
    if arm.steps is None:
        return _nothing_of(arm)
    said = []
    if plan.metric is not None and arm.quality is not None:
        said.append(f"reaches {plan.metric.name} {number_in_words(arm.quality.mean)}")
    if arm.examples_per_second is not None:
        said.append(f"does {number_in_words(arm.examples_per_second.mean)} examples per second")
    return f"{arm.name} {' and '.join(said or ['took ' + counted(arm.steps.count, 'step')])}"


def _of_one(plan: Planned, arm: ArmSummary) -> str:
    if arm.steps is None:
        return "No worker left the steps it takes to say anything of this run."
    per_rank = f"steps of {seconds_in_words(arm.steps.p50)} (median)"
    rate = "" if arm.examples_per_second is None else f", {number_in_words(arm.examples_per_second.mean)} examples/s"
    ideal = "" if arm.no_wait_share is None else f", {share_in_words(arm.no_wait_share.mean)} of the no-wait ideal"
    who = "" if arm.arrival is None else f"; {arm.arrival.sentence}"
    return f"{counted(plan.workers, 'worker')} took {per_rank}{rate}{ideal}{who}."
