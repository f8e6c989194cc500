"""The fairness of the comparison: the equal and the different, and the tuning of each side."""

from __future__ import annotations

from collections.abc import Sequence

from quorate.report.charts.markup import Markup, element, joined
from quorate.report.page.parts import NOT_MEASURED, View, figure_in_words, in_words, missing, paragraphs, section, table
from quorate.report.schema import Trial
from quorate.report.wording import counted, listed

LEAD = "A difference counts only where everything else was equal. This is what was, and what was not."


def fairness(view: View) -> Markup:
    """Return section 2 of the page."""
    if view.is_single:
        alone = missing("This is one run alone: there is nothing to hold it against.")
        return section("fairness", "Fairness", LEAD, alone, paragraphs(_counted(view)))
    return section(
        "fairness",
        "Fairness",
        LEAD,
        element("h3", "What was equal"),
        _equal(view),
        paragraphs(_counted(view)),
        element("h3", "What differed"),
        _differed(view),
        element("h3", "Tuning"),
        _tuning(view),
    )


def _equal(view: View) -> Markup:
    sentences = view.summary.fairness.equal
    if not sentences:
        return missing("Nothing is known of what was equal.")
    return element("ul", *(element("li", sentence) for sentence in sentences), class_="facts")


def _counted(view: View) -> str:
    fairness = view.summary.fairness
    seeds = f"Seed{'' if len(fairness.seeds) == 1 else 's'} {listed([str(seed) for seed in fairness.seeds])}"
    warm_up = f"warm-up left out: {counted(fairness.warm_up_steps, 'step')} of every rank"
    alone = " One seed shows nothing of what chance does." if len(fairness.seeds) == 1 else ""
    return f"{seeds if fairness.seeds else 'No seeds'}; {warm_up}.{alone}"


def _differed(view: View) -> Markup:
    differed = view.summary.fairness.differed
    if not differed:
        return missing("Nothing else: no setting has another value in one arm than in another.")
    names = [arm.name for arm in view.summary.arms]
    rows = [
        [element("code", key), *(element("code", in_words(values.get(name))) for name in names)]
        for key, values in differed.items()
    ]
    return table(["setting", *names], rows)


def _tuning(view: View) -> Markup:
    """Return a row for each arm, a column for each factor, and in the cells a line for each seed."""
    trials = view.summary.tuning
    if not trials:
        return missing("No arm was tuned: each was given its settings as they are.")
    factors = sorted({trial.factor for trial in trials})
    arms = list(dict.fromkeys(trial.arm for trial in trials))
    by_cell: dict[tuple[str, float], list[Trial]] = {}
    for trial in trials:
        by_cell.setdefault((trial.arm, trial.factor), []).append(trial)
    rows = [[arm, *(_trials(by_cell.get((arm, factor), [])) for factor in factors)] for arm in arms]
    quality = view.summary.metric.name if view.summary.metric else "quality"
    seeds = sorted({trial.seed for trial in trials})
    cells = f"Cells are {quality} at the end of a trial, of {listed([f'seed {seed}' for seed in seeds])}."
    many = {sum(trial.arm == arm for trial in trials) for arm in arms}
    counts = "Each side had as many trials." if len(many) == 1 else "The sides had unequal numbers of trials."
    heads = ["strategy", *(f"learning rate ×{factor:g}" for factor in factors)]
    return joined([table(heads, rows), element("p", f"{cells} {counts}", class_="note")])


def _trials(trials: Sequence[Trial]) -> Markup:
    is_chosen = any(trial.is_chosen for trial in trials)
    lines = [
        element("div", NOT_MEASURED if trial.quality is None else figure_in_words(trial.quality),
                data_value=None if trial.quality is None else repr(trial.quality))
        for trial in trials
    ]  # fmt: skip
    if is_chosen:
        lines.append(element("div", element("strong", "✓ chosen"), class_="small"))
    return joined(lines) if lines else element("span", NOT_MEASURED)
