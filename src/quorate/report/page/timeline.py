"""Typical steps side by side: the activities of ranks over time."""

from __future__ import annotations

from collections.abc import Sequence

from quorate.report.charts.activities import words_of
from quorate.report.charts.lanes import RoundLine, lane_chart
from quorate.report.charts.markup import Markup, element
from quorate.report.page.parts import View, figure, missing, section
from quorate.report.schema import ArmSummary, Lane
from quorate.report.wording import counted, listed, seconds_in_words

LEAD = (
    "Some consecutive steps that took a typical time. Spans show what each rank was doing; where one waits, look for "
    "the rank that is still computing. A gap in all lanes is an evaluation."
)
NOT_WAITED_FOR = "Whoever is still computing at a round was not waited for; the gradient goes into a later one."
LANES = 16
_ALIKE = 4.0
"""Arms share one scale, unless one shows this many times the seconds of another."""


def timeline(view: View) -> Markup:
    """Return section 7 of the page."""
    arms = [arm for arm in view.summary.arms if any(lane.spans for lane in arm.timeline)]
    if not arms:
        why = missing("No arm has a run with steps after the warm-up, so there are no typical ones to show.")
        return section("timeline", "Timeline of typical steps", LEAD, why)
    lengths = {arm.name: max(end for lane in arm.timeline for _, _, end in lane.spans) for arm in arms}
    longest = max(lengths.values())
    are_alike = longest <= _ALIKE * min(lengths.values())
    scale = "All arms are on one scale." if are_alike else "Each arm has a scale of its own."
    charts = [_arm(view, arm, longest if are_alike else lengths[arm.name]) for arm in arms]
    absent = view.left_out((arm for arm in view.summary.arms if arm not in arms), "no steps are known")
    full = element(
        "p", f"{scale} {absent} The whole of a run, for a viewer that zooms: ", element("code", "quorate trace RUN"),
        ", where RUN is the folder of one, such as ", element("code", _a_run(arms[0])), " here.", class_="note",
    )  # fmt: skip
    return section("timeline", "Timeline of typical steps", LEAD, *charts, full)


def chosen(lanes: Sequence[Lane], slow_rank: int | None) -> list[Lane]:
    """Return at most `LANES` of them: the first ones, and that of the slow rank."""
    shown = list(lanes[:LANES])
    slow = [lane for lane in lanes[LANES:] if lane.rank == slow_rank]
    return [*shown[: LANES - 1], *slow] if slow else shown


def _arm(view: View, arm: ArmSummary, seconds: float) -> Markup:
    slow_rank = arm.arrival.slow_rank if arm.arrival else None
    shown = chosen(arm.timeline, slow_rank)
    lanes = [
        (f"rank {lane.rank} (slow)" if lane.rank == slow_rank else f"rank {lane.rank}", lane.spans) for lane in shown
    ]
    note = ""
    if len(shown) < view.summary.workers:
        note = f"{len(shown)} of {view.summary.workers} ranks: {listed([str(lane.rank) for lane in shown])}."
    rounds = _rounds(arm, [lane.rank for lane in shown])
    if rounds:
        note = f"{NOT_WAITED_FOR} {note}".strip()
    described = f"{_in_words(shown)} {_rounds_in_words(arm)}".strip()
    label = f"Timeline of typical steps of {arm.name}, {seconds_in_words(seconds)} long. {described}"
    title = view.time("time since the first of these steps began")
    return figure(
        view, arm.name,
        lambda width: lane_chart(lanes, seconds=seconds, title=title, width=width, label=label, rounds=rounds),
        note=note, slim=False,
    )  # fmt: skip


def _rounds(arm: ArmSummary, ranks: Sequence[int]) -> list[RoundLine]:
    places = {rank: place for place, rank in enumerate(ranks)}
    lines = []
    for mark in arm.marks:
        gradients = [(places[rank], time, staleness > 0) for rank, time, staleness in mark.given if rank in places]
        of = sorted({rank for rank, _, _ in mark.given})
        words = listed([str(rank) for rank in of]) if len(of) <= LANES else f"{len(of)} of them"
        name = f"round {mark.number:,}, with gradients of {'rank' if len(of) == 1 else 'ranks'} {words}"
        lines.append(RoundLine(name=name if of else f"round {mark.number:,}", time=mark.time, gradients=gradients))
    return lines


def _rounds_in_words(arm: ArmSummary) -> str:
    if not arm.marks:
        return ""
    fresh = sum(staleness == 0 for mark in arm.marks for _, _, staleness in mark.given)
    late = sum(len(mark.given) for mark in arm.marks) - fresh
    return f"Lines mark {counted(len(arm.marks), 'round')}, dots {fresh:,} fresh and {late:,} late gradients."


def _in_words(lanes: Sequence[Lane]) -> str:
    descriptions = []
    for lane in lanes:
        spent: dict[str, float] = {}
        for name, begin, end in lane.spans:
            spent[name] = spent.get(name, 0.0) + end - begin
        most = sorted(spent, key=lambda name: -spent[name])[:2]
        descriptions.append(
            f"Rank {lane.rank}: {listed([f'{words_of(name)} {seconds_in_words(spent[name])}' for name in most])}."
        )
    return " ".join(descriptions)


def _a_run(arm: ArmSummary) -> str:
    seed = arm.arrival.seed if arm.arrival else None
    folders = [run.folder for run in arm.runs if run.seed == seed] or [run.folder for run in arm.runs]
    return folders[0] if folders else "RUN"
