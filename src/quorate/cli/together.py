"""Whether two choices go together: the results of `make compatibility` for all pairs, in `compatibility.json`.

The file has names by axis, reasons, and for each choice a line of answers about those before it. The answer "w" means
that both work. The letters r (refused), s (refused in the first step, before any update), u (untested) and f (fails)
are followed by the number of a reason. The answer "-" is for the same axis, and for pairs that were not played. A name
such as ":quorum" behind an answer is the strategy under which two other choices were played.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from quorate.cli.names import folded
from quorate.core.errors import ConfigurationError, unknown

FILE = Path(__file__).with_name("compatibility.json")
STATES = {"w": "works", "r": "refused", "s": "refused", "u": "untested", "f": "fails"}
LAWS = (
    "a short training of a few workers kept all laws. The replicas were equal at a pause and at the end, rounds "
    "accounted for every gradient, and a training from the checkpoint went on as the other did"
)

REFUSES = {
    "distribute": "quorate.distribute refuses them",
    "first step": "The first step refuses them, before any update",
}


@dataclass(frozen=True)
class Answer:
    """The answer to whether two choices go together."""

    state: str
    """One of `STATES`."""
    reason: str = ""
    when: str = ""
    """The call that refuses: "distribute", or "first step" before any update."""
    under: str = ""
    """The strategy that both were tried under, if neither is one."""


@dataclass(frozen=True)
class Compatibility:
    """The contents of the file."""

    axes: Mapping[str, Sequence[str]]
    reasons: Sequence[str]
    answers: Mapping[str, str]
    triples: Mapping[str, Any]

    @cached_property
    def names(self) -> Sequence[str]:
        """All choices, axis by axis."""
        return [name for names in self.axes.values() for name in names]

    def axis_of(self, name: str) -> str:
        """Return the axis of a choice."""
        return next(axis for axis, names in self.axes.items() if name in names)

    @cached_property
    def _rows(self) -> Mapping[str, Sequence[str]]:
        return {name: line.split() for name, line in self.answers.items()}

    def code(self, first: str, second: str) -> str:
        """Return the answer for two choices as it is written."""
        early, late = sorted((first, second), key=self.names.index)
        return self._rows[late][self.names.index(early)]

    def of(self, first: str, second: str) -> Answer | None:
        """Return the answer for two choices; None on the same axis, and where the pair was not played."""
        early, late = sorted((first, second), key=self.names.index)
        code, _, under = self.code(early, late).partition(":")
        if code == "-":
            return None
        reason = self.reasons[int(code[1:])].format(early, late) if code[1:] else ""
        is_of_strategy = "strategy" in (self.axis_of(first), self.axis_of(second))
        when = {"r": "distribute", "s": "first step"}.get(code[0], "")
        return Answer(STATES[code[0]], reason, when, "" if is_of_strategy else under or self.axes["strategy"][0])


@cache
def compatibility() -> Compatibility:
    """Return the contents of the file of this package."""
    return Compatibility(**json.loads(FILE.read_text(encoding="utf-8")))


def choice_known_as(name: str) -> str:
    """Return how the file writes the name of a choice; raises `ConfigurationError` for one that it does not have."""
    names = compatibility().names
    written = {folded(known): known for known in reversed(names)}
    if name in names:
        return name
    if folded(name) in written:
        return written[folded(name)]
    raise unknown("choice", name, names)


def explain_pair(first: str, second: str, *, as_json: bool) -> str:
    """Return whether two choices go together and why not, as text or as one JSON object."""
    first, second = choice_known_as(first), choice_known_as(second)
    table = compatibility()
    answer = table.of(first, second)
    if answer is None:
        axis = table.axis_of(first)
        if table.axis_of(second) != axis:
            raise ConfigurationError(f'"{first}" and "{second}" were not played yet; run make compatibility in a clone')
        raise ConfigurationError(f'"{first}" and "{second}" are both of the kind "{axis}", of which a training has one')
    if as_json:
        return json.dumps({"names": [first, second], **vars(answer)}, indent=2, ensure_ascii=False)
    under = f" under {answer.under}" if answer.under else ""
    verdicts = {
        "works": f"{first} and {second}{under}: yes.\n\n{LAWS[0].upper()}{LAWS[1:]}.",
        "refused": f"{first} and {second}: no. {REFUSES.get(answer.when, '')}:\n\n{answer.reason}",
        "untested": f"{first} and {second}: untested.\n\n{answer.reason}",
        "fails": f"{first} and {second}{under}: no; this is a known fault.\n\n{answer.reason}",
    }
    return verdicts[answer.state]
