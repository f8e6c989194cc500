"""The picture of `quorate explain NAME -n 4`: the graph of a topology, or the steps of an all-reduce."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from quorate.cli.all_reduce_steps import drawn_steps, lines_of_steps
from quorate.cli.graphs import drawn, lines


@dataclass(frozen=True)
class Picture:
    """A picture as lines of text, and as JSON."""

    lines: list[str]
    as_json: dict[str, Any]
    """The field that it adds to the card."""


def picture(kind: str, text: str, workers: int, width: int) -> Picture | None:
    """Return the picture of `text`, a name with settings, of the family `kind`; None if it has no picture."""
    if kind == "topology":
        graph = drawn(text, workers)
        return Picture(list(lines(graph)), {"graph": asdict(graph)})
    steps = drawn_steps(text, workers) if kind == "reducer" else None
    return None if steps is None else Picture(list(lines_of_steps(steps, width)), {"steps": asdict(steps)})
