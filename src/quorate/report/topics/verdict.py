"""The verdict: the speed-up in large figures, a line for each arm, and cautions."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from quorate.report.charts.markup import Markup, element, joined
from quorate.report.parts import View, sentence
from quorate.report.reading.planned import Planned
from quorate.report.runs import seeds_in_words
from quorate.report.schema import ArmSummary, Estimate, Part, Summary
from quorate.report.statistics import NONE
from quorate.report.topic import Arms, Topic
from quorate.report.topics.arrival import TOPIC as ARRIVAL
from quorate.report.topics.steps import TOPIC as STEPS
from quorate.report.wording import counted, listed, number_in_words, seconds_in_words, share_in_words

MOST = 4
"""The most arms, with the baseline, of which each has a line."""
_LONG = 150
"""Letters in a verdict, from which on it is set smaller."""
Qualities = Mapping[str, Mapping[int, float]]
"""Final qualities by arm and seed, of runs that ended well."""


def verdict_of(plan: Planned, arms: Sequence[ArmSummary], qualities: Qualities) -> str:
    """Return a headline, of the fastest arm that is not worse, and a line for each other arm; limited by the intervals.

    Of more than `MOST` arms only the best and the worst have a line; the table has all.
    """
    if plan.is_single:
        return _of_one(plan, arms[0])
    baseline = next((arm for arm in arms if arm.is_baseline), None)
    others = [arm for arm in arms if arm is not baseline]
    if baseline is None or not others:
        return "\n".join(f"{_alone(arm, plan)}." for arm in arms)
    if not _is_measured(baseline):
        ended = "has ended yet" if _is_awaited(baseline) else "ended well"
        return f"No run of the baseline {baseline.name} {ended}, so there is no comparison."
    ranked = ranked_arms(arms)
    lines = [f"{_against(arm, baseline, plan, qualities)}." for arm in ranked]
    if len(arms) > MOST:
        more = len(ranked) - 2
        best, worst = f"Best of {len(ranked)}, {lines[0]}", f"Worst of {len(ranked)}, {lines[-1]}"
        lines = [best, worst, f"{counted(more, 'arm')} more {'is' if more == 1 else 'are'} in the table."]
    return "\n".join(lines)


def ranked_arms(arms: Sequence[ArmSummary]) -> list[ArmSummary]:
    """Return all arms but the baseline, the best first: the fastest of those that are not worse."""
    return sorted((arm for arm in arms if not arm.is_baseline), key=_rank, reverse=True)


def _rank(arm: ArmSummary) -> tuple[bool, bool, bool, float]:
    """Sort arms that were measured, are not worse, and reach the target in every run first; of these, the fastest."""
    speed = arm.target_speedup or arm.speedup
    is_worse = arm.differences.get("quality") == "worse"
    reaches = arm.target_reached is None or arm.target_reached[0] == arm.target_reached[1]
    return _is_measured(arm), not is_worse, reaches, 0.0 if speed is None else speed.mean


def _is_measured(arm: ArmSummary) -> bool:
    return STEPS.of(arm) is not None


def _is_awaited(arm: ArmSummary) -> bool:
    """Return whether none of its runs has failed, and none has ended."""
    return all(run.status is None for run in arm.runs)


def _nothing_of(arm: ArmSummary) -> str:
    return f"{arm.name}: no run {'has ended yet' if _is_awaited(arm) else 'ended well'}"


def _against(arm: ArmSummary, baseline: ArmSummary, plan: Planned, qualities: Qualities) -> str:
    if not _is_measured(arm):
        return _nothing_of(arm)
    parts = [
        _speed(arm, baseline, plan),
        _missed(arm, plan),
        _reaching(arm, baseline, plan, qualities),
        None if plan.world == "virtual" else _coding(arm, baseline),
    ]
    said = [part for part in parts if part]
    return f"{arm.name}: {'. '.join(said) or f'it was not measured together with {baseline.name}'}"


def has_target_speedup(arm: ArmSummary) -> bool:
    """Return whether its speed-up is that to the target: all of its runs reached it."""
    return arm.target_speedup is not None and arm.target_reached is not None and len(set(arm.target_reached)) == 1


def _speed(arm: ArmSummary, baseline: ArmSummary, plan: Planned) -> str | None:
    if has_target_speedup(arm):
        assert arm.target_speedup is not None
        metric = "" if plan.metric is None else f"{plan.metric.name} "
        to = "" if plan.target is None else f" to {metric}{plan.target:g}"
        return f"{_times(arm.target_speedup)} times as fast as {baseline.name}{to} ({_spread(arm.target_speedup)})"
    if arm.speedup is None:
        return None
    return f"{_times(arm.speedup)} times as fast as {baseline.name} ({_spread(arm.speedup)})"


def _missed(arm: ArmSummary, plan: Planned) -> str | None:
    if plan.target is None or arm.target_reached is None or arm.target_reached[0] == arm.target_reached[1]:
        return None
    reached, of = arm.target_reached
    metric = "" if plan.metric is None else f"{plan.metric.name} "
    return f"The target, {metric}{plan.target:g}, is reached in {reached} of {counted(of, 'run')}"


def _reaching(arm: ArmSummary, baseline: ArmSummary, plan: Planned, qualities: Qualities) -> str | None:
    if plan.metric is None or arm.quality is None:
        return None
    name = plan.metric.name
    ours, theirs = qualities.get(arm.name, {}), qualities.get(baseline.name, {})
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        why = "" if baseline.quality is None else f"; {baseline.name} has no run of an equal seed"
        return f"Quality: {name} {number_in_words(arm.quality.mean)}{why}"
    own, other = (number_in_words(statistics.fmean(side[seed] for seed in both)) for side in (ours, theirs))
    difference = arm.differences.get("quality", NONE)
    of = f" ({seeds_in_words(both)} alone)" if len(both) < len(ours.keys() | theirs.keys()) else ""
    return f"Quality: {difference}, {name} {own} against {other}{of}"


def _coding(arm: ArmSummary, baseline: ArmSummary) -> str | None:
    difference = coding_of(arm, baseline)
    return None if difference is None else f"Its codec {difference}"


def coding_of(arm: ArmSummary, baseline: ArmSummary) -> str | None:
    """Describe the savings and costs of the codec of an arm if the baseline has none; None otherwise.

    Virtual time does not include the costs of coding.
    """
    if not arm.settings.get("compress") or baseline.settings.get("compress"):
        return None
    steps, baseline_steps = STEPS.of(arm), STEPS.of(baseline)
    assert steps is not None
    assert baseline_steps is not None
    saved = baseline_steps.shares["communication"] - steps.shares["communication"]
    cost = sum(steps.shares[name] - baseline_steps.shares[name] for name in ("encode", "decode"))
    said = [f"{'saves' if saved > 0 else 'adds'} {seconds_in_words(abs(saved))} of communication a step"]
    said.append(f"{'costs' if cost > 0 else 'saves'} {seconds_in_words(abs(cost))} of coding")
    if arm.bytes_per_step is not None and baseline.bytes_per_step is not None and baseline.bytes_per_step.mean > 0:
        said.append(f"sends {number_in_words(arm.bytes_per_step.mean / baseline.bytes_per_step.mean)} times the bytes")
    return f"{listed(said)}: {'faster' if saved > cost else 'slower'} here"


def _times(estimate: Estimate) -> str:
    return f"{estimate.mean:.2f}"


def _spread(estimate: Estimate) -> str:
    """`0.98 to 1.04, 5 seeds`; of two `0.98 and 1.04, 2 seeds`; or `one seed`."""
    count = len(estimate.values)
    if estimate.low is not None and estimate.high is not None:
        return f"{estimate.low:.2f} to {estimate.high:.2f}, {count} seeds"
    if count < 2:
        return "one seed"
    return f"{listed([f'{value:.2f}' for value in estimate.values])}, {count} seeds"


def _alone(arm: ArmSummary, plan: Planned) -> str:
    steps = STEPS.of(arm)
    if steps is None:
        return _nothing_of(arm)
    said = list[str]()
    if plan.metric is not None and arm.quality is not None:
        said.append(f"reaches {plan.metric.name} {number_in_words(arm.quality.mean)}")
    if arm.examples_per_second is not None:
        said.append(f"processes {number_in_words(arm.examples_per_second.mean)} examples per second")
    return f"{arm.name} {' and '.join(said or ['took ' + counted(steps.count, 'step')])}"


def _of_one(plan: Planned, arm: ArmSummary) -> str:
    steps, arrival = STEPS.of(arm), ARRIVAL.of(arm)
    if steps is None:
        return "No worker has recorded enough steps to measure this run."
    per_rank = f"steps of {seconds_in_words(steps.p50)} (median)"
    rate = "" if arm.examples_per_second is None else f", {number_in_words(arm.examples_per_second.mean)} examples/s"
    ideal = "" if arm.no_wait_share is None else f", {share_in_words(arm.no_wait_share.mean)} of the no-wait ideal"
    end = ""
    if plan.metric is not None and arm.quality is not None:
        end = f", {plan.metric.name} {number_in_words(arm.quality.mean)} at the end"
    who = "" if arrival is None else f"; {arrival.sentence}"
    return f"{counted(plan.workers, 'worker')} took {per_rank}{rate}{ideal}{end}{who}."


def _body(view: View, arms: Arms[Part]) -> Iterator[Markup]:
    summary = view.summary
    headline = _headline(summary)
    yield headline
    first, *others = summary.verdict.splitlines()
    kind = "verdict" if len(first) <= _LONG and not headline else "verdict long"
    yield element("p", first, class_=kind)
    yield joined(element("p", line, class_="verdict-line") for line in others)
    if summary.other_work is not None:
        yield element("p", sentence(summary.other_work), class_="other-work")
    yield _warnings(view)


_EQUAL = {"better": ", at better quality", "worse": ", at worse quality", NONE: ", at equal quality"}


def _headline(summary: Summary) -> Markup:
    """Return the speed-up of the best arm in large figures, or that there is none; nothing without a baseline."""
    best = next(iter(ranked_arms(summary.arms)), None)
    if best is None or summary.baseline is None:
        return Markup()
    to_target = summary.target is not None and has_target_speedup(best)
    speedup = best.target_speedup if to_target else best.speedup
    if speedup is None:
        return Markup()
    difference = best.differences.get("time_to_target" if to_target else "examples_per_second", NONE)
    metric = "" if summary.metric is None else f"{summary.metric.name} "
    to = f" to {metric}{summary.target:g}" if to_target else " in examples/s"
    figure = NONE if difference == NONE else f"{_times(speedup)}×"
    noun = "in speed between {} and {}" if difference == NONE else "speed-up of {} over {}"
    quality = best.differences.get("quality", "")
    words = noun.format(best.name, summary.baseline) + to + _EQUAL.get(quality, "")
    kind = "same" if difference == NONE else "worse" if quality == "worse" else difference
    return element("p", element("strong", figure), " ", element("span", words), class_=f"headline {kind}")


def _warnings(view: View) -> Markup:
    if not view.summary.warnings:
        return Markup()
    items = (element("li", warning) for warning in view.summary.warnings)
    return element("div", element("strong", "Caution"), element("ul", *items), class_="warnings", role="note")


def _markdown(view: View, arms: Arms[Part]) -> list[str]:
    summary = view.summary
    parts = [f"# {summary.title}", summary.verdict]
    if summary.other_work is not None:
        parts.append(f"**{sentence(summary.other_work)}**")
    if summary.world == "virtual":
        parts.append("Times are virtual: the result of a simulation, not a measurement.")
    if summary.warnings:
        parts.append("\n".join(f"- Caution: {warning}." for warning in summary.warnings))
    return parts


TOPIC = Topic[None, Part](name="verdict", title="Verdict", body=_body, markdown=_markdown, is_open=True)
