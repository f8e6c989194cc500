"""What `quorate explain NAME -n 4` shows below a card: the graph of a topology, or the steps of an all-reduce."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from quorate.cli.all_reduce_steps import drawn_steps, lines_of_steps
from quorate.cli.graphs import drawn, lines


@dataclass(frozen=True)
class Picture:
    """The same twice."""

    lines: list[str]
    as_json: dict[str, Any]
    """For JSON, by the field it has on the card."""


def picture(kind: str, text: str, workers: int, width: int) -> Picture | None:
    """Of what `text` says, with its settings, in the family with this noun; None where there is nothing to be drawn."""
    if kind == "topology":
        graph = drawn(text, workers)
        return Picture(list(lines(graph)), {"graph": asdict(graph)})
    steps = drawn_steps(text, workers) if kind == "reducer" else None
    return None if steps is None else Picture(list(lines_of_steps(steps, width)), {"steps": asdict(steps)})
