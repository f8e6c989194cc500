"""`quorate explain`: the card of one name, of any family. Imports none of what it explains.

Only the file of a strategy is run. With -n a topology is drawn and measured, which loads numpy, and of a reducer the
steps are shown.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from quorate.cli.cards import Card, cards_of
from quorate.cli.pictures import Picture, picture
from quorate.core.errors import ConfigurationError

_WIDEST = 100


def explain(
    name: Annotated[str, typer.Argument(help="A name from `quorate list`, or the file of a strategy.", metavar="NAME")],
    workers: Annotated[
        int | None,
        typer.Option(
            "-n", "--workers", help="Draw a topology or an all-reduce for this number of workers.", metavar="N"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of cards.")] = False,
) -> None:
    """Explain one name: its idea, its cost, when it loses, what happens under faults, its settings, the paper.

    For a topology (such as random:degree=3), -n draws the graph and says how fast it mixes. For an all-reduce
    algorithm, -n shows who sends what to whom in each step, and the cost. A name that is both shows both.
    """
    cards = cards_of(name.partition(":")[0] if ":" in name else name)
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    pictures: list[Picture | None] = [None] * len(cards)
    if workers is not None:
        pictures = [picture(card.kind, name, workers, width) for card in cards]
        if not any(pictures):
            raise ConfigurationError(
                f'-n draws topologies and all-reduce algorithms; "{name}" is a {cards[0].kind}, which has no picture'
            )
    if as_json:
        objects = [
            _as_json(card) | ({} if drawing is None else drawing.as_json)
            for card, drawing in zip(cards, pictures, strict=True)
        ]
        typer.echo(json.dumps(objects, indent=2, ensure_ascii=False))
        return
    blocks = []
    for card, drawing in zip(cards, pictures, strict=True):
        blocks.append("\n".join(_lines(card, width)))
        if drawing is not None:
            blocks.append("\n".join(drawing.lines))
    typer.echo("\n\n".join(blocks))


def _as_json(card: Card) -> dict[str, Any]:
    card_as_json = asdict(card)
    for setting in card_as_json["settings"]:
        setting["is_required"] = setting["default"] is None
        setting["default"] = None if setting["default"] is None else _value(setting["default"])
    card_as_json["facts"] = {name: _value(written) for name, written in card.facts.items()}
    return card_as_json


def _value(written: str) -> Any:
    """Return the value of a source text if JSON can express it, else the text."""
    try:
        value = ast.literal_eval(written)
        json.dumps(value)
    except (ValueError, TypeError):
        return written
    return value


def _lines(card: Card, width: int) -> Iterator[str]:
    yield f"{card.name} ({card.kind})"
    yield from _wrapped(card.summary, width)
    if card.text:
        yield ""
        yield from _wrapped(card.text, width)
    for title, text in card.sections.items():
        if title == "Paper":
            yield from _faults(card, width)
        yield from ("", title)
        yield from _wrapped(text, width)
    if "Paper" not in card.sections:
        yield from _faults(card, width)
    if card.facts:
        yield from ("", "Fixed")
        yield from _table([(name, written) for name, written in card.facts.items()], width)
    yield from ("", "Settings (name, type, default, meaning)" if card.settings else "Settings: none")
    yield from _table(
        [(setting.name, setting.type, setting.default or "(required)", setting.meaning) for setting in card.settings],
        width,
    )


def _faults(card: Card, width: int) -> Iterator[str]:
    if card.honesty:
        yield from ("", "Honesty")
        yield from _table([(row.fault, row.verdict, row.remark) for row in card.honesty], width)


def _wrapped(text: str, width: int) -> Iterator[str]:
    """Yield the lines of wrapped paragraphs; indented ones stay unchanged."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text)):
        if number:
            yield ""
        is_laid_out = any(line.startswith(" ") for line in paragraph.splitlines())
        lines = paragraph.splitlines() if is_laid_out else textwrap.wrap(paragraph, max(20, width - 2))
        yield from (f"  {line}".rstrip() for line in lines)


def _table(rows: Sequence[tuple[str, ...]], width: int) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in list(zip(*rows, strict=True))[:-1]]
    for row in rows:
        start = "  " + "".join(f"{cell:<{wide}}  " for cell, wide in zip(row, widths, strict=False))
        left = width - len(start)
        last = textwrap.wrap(row[-1], left) if left >= 20 else [row[-1]]
        yield (start + (last[0] if last else "")).rstrip()
        yield from (" " * len(start) + line for line in last[1:])
