"""The page of what goes with what, `reference/compatibility.md`, from the results of `make compatibility`.

`python docs/compatibility_page.py` writes it.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "src")) if path not in sys.path]

from quorate.cli.together import LAWS, Answer, compatibility  # noqa: E402 - its folder was not in the path

PAGE = Path(__file__).parent / "reference" / "compatibility.md"
TITLES = {
    "codec": "Codecs (`compress`)",
    "reduce": "Reducers and rules (`reduce`)",
    "death": "Workers that die and join",
    "momentum": "Settings of momentum",
    "optimizer": "Optimizers",
    "loop": "Features of the loop",
    "mean": "Settings of means",
    "clients": "Clients",
    "shrink": "Smaller models",
    "attention": "Sparse attention",
    "script": "Scripts of torch DDP",
    "mesh": "Models in pieces",
    "world": "Worlds",
}
"""The tables of strategies and the choices of each axis."""
LOOKS = {"works": "yes", "untested": "?", "fails": "**fails**"}


class Reasons:
    """The reasons of the page, numbered as they are used."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def cell(self, answer: Answer | None, template: str) -> str:
        """Return the text of a cell; a refusal has the number of its reason."""
        if answer is None:
            return "not played"
        if answer.state != "refused":
            return LOOKS[answer.state]
        number = self._numbers.setdefault(template, len(self._numbers) + 1)
        return f"[{number}](compatibility.md#r{number})"  # as of another page, which myst looks up later

    def lines(self) -> Iterator[str]:
        """Yield the table of reasons."""
        yield "| number | reason |"
        yield "|---|---|"
        for template, number in self._numbers.items():
            yield f'| <a id="r{number}"></a>{number} | {_prose(template.format("A", "B"))} |'


def page() -> str:
    """Return the text of the page."""
    table = compatibility()
    answers = {pair: table.of(*pair) for pair in combinations(table.names, 2)}
    counts = Counter(answer.state for answer in answers.values() if answer)
    reasons = Reasons()
    triples = table.triples
    lines = [
        "# What goes with what",
        "",
        "Made by `make compatibility`, which plays all pairs of choices; a test fails if this page is out of date.",
        "`quorate explain A B` prints one cell, with its reason: `quorate explain quorum top-k`.",
        "",
        f"- yes: {LAWS}.",
        "- a number: refused, with the reason of that number below. The refusal comes from `quorate.distribute`, or",
        "  from the first step, before any update, where nothing earlier can know of the choice (a GradScaler).",
        "- ?: untested, with a reason below; **fails**: a known fault.",
        "",
        f"{counts.total():,} pairs: {counts['works']:,} work, {counts['refused']:,} are refused, "
        f"{counts['untested']:,} are untested, {counts['fails']:,} fail.",
        *(
            [
                f"Triples of a strategy, a codec or rule and a feature of the loop, without those that have a refused "
                f"pair: {triples['played']:,} played, {triples['works']:,} work."
            ]
            if triples
            else []
        ),
        "",
        "## Strategies and the rest",
        "",
        "Settings are the defaults of each strategy, with shorter periods, so that a few steps show all of it.",
        "",
    ]
    for axis, title in TITLES.items():
        lines += [f"### {title}", "", *_matrix(table.axes["strategy"], table.axes[axis], reasons), ""]
    lines += [
        "## Pairs without a strategy",
        "",
        "Each pair is played under the first strategy that takes both choices. A choice goes with all others that its",
        "row does not name.",
        "",
        *_exceptions(reasons),
        "",
        "## Reasons",
        "",
        "A and B are the two choices, in the order of the tables above.",
        "",
        *reasons.lines(),
    ]
    for state, title in (("untested", "Untested pairs"), ("fails", "Known faults")):
        lines += [f"## {title}", "", *_listed(answers.items(), state), ""]
    return "\n".join(lines).rstrip() + "\n"


def _template_of(first: str, second: str) -> str:
    code = compatibility().code(first, second).partition(":")[0]
    return compatibility().reasons[int(code[1:])] if code[1:] else ""


def _matrix(rows: Sequence[str], columns: Sequence[str], reasons: Reasons) -> Iterator[str]:
    table = compatibility()
    yield f"| strategy | {' | '.join(columns)} |"
    yield f"|{'---|' * (len(columns) + 1)}"
    for row in rows:
        cells = (reasons.cell(table.of(row, column), _template_of(row, column)) for column in columns)
        yield f"| `{row}` | {' | '.join(cells)} |"


def _exceptions(reasons: Reasons) -> Iterator[str]:
    table = compatibility()
    names = [name for name in table.names if name not in table.axes["strategy"]]
    yield "| choice | does not go with |"
    yield "|---|---|"
    for name in names:
        answers = {other: table.of(name, other) for other in names if table.axis_of(other) != table.axis_of(name)}
        unplayed = ", ".join(other for other, answer in answers.items() if answer is None)
        refused = ", ".join(
            f"{other} {reasons.cell(answer, _template_of(name, other))}"
            for other, answer in answers.items()
            if answer is not None and answer.state != "works"
        )
        parts = (refused, f"not played: {unplayed}" if unplayed else "")
        yield f"| {name} | {'<br>'.join(filter(None, parts)) or 'nothing'} |"


def _listed(answers: Iterable[tuple[tuple[str, str], Answer | None]], state: str) -> Iterator[str]:
    by_reason: dict[str, dict[str, list[str]]] = {}
    for (first, second), answer in answers:
        if answer is not None and answer.state == state:
            by_reason.setdefault(answer.reason, {}).setdefault(first, []).append(second)
    yield from ("| reason | pairs |", "|---|---|") if by_reason else ("None.",)
    for reason, pairs in by_reason.items():
        named = (f"{first} with {', '.join(seconds)}" for first, seconds in pairs.items())
        yield f"| {_prose(reason)} | {'<br>'.join(named)} |"


def _prose(text: str) -> str:
    """Return a sentence of an error as Markdown shows it."""
    return re.sub(r"([*_<|\\])", r"\\\1", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
