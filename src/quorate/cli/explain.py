"""`quorate explain`: the card of one name, of any family. Imports none of what it explains.

Only the file of a strategy is run. With -n a topology is drawn and measured, which loads numpy, and of a reducer the
steps are shown.

A card is read from the source of what the name stands for. The documentation of a strategy's file has sections. Each
begins a line with its title and a colon, and goes on to the next title:

Idea: What it does, in some five lines.
Cost: Bytes per step and worker, memory, who waits for whom.
When it loses: To what, and where.
Honesty:
- worker death: stops cleanly; a remark, where there is something to say
Paper: Authors, title, venue, year.

The section "Goes with" of a strategy is made from the table of what goes together (`train.compatibility`).
A preset derives from a strategy: sections and rows of Honesty that its own card lacks are those of the strategy's card.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from quorate.cli.listing import FAMILIES, registry
from quorate.cli.names import known_as, unknown_name
from quorate.cli.pictures import Picture, picture
from quorate.cli.scripts import check_script, is_file
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.core.source import Setting, Source

_WIDEST = 100

SECTIONS = ("Idea", "Cost", "When it loses", "Honesty", "Paper", "Goes with")
FAULTS = ("worker death", "pause", "slow worker", "corrupt gradient", "resize", "resume")
"""The faults that a run may meet."""
VERDICTS = ("goes on", "restarts", "stops cleanly", "untested", "not yet")
"""The consequences of a fault; "not yet": it is not built."""

_TITLE = re.compile(rf"^({'|'.join(SECTIONS)}):[ ]*", re.MULTILINE)
_ROW = re.compile(r"^- (?P<fault>[^:]+): (?P<verdict>[^;]+)(?:; (?P<remark>.+))?$", re.DOTALL)


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
    head, colon, settings = name.partition(":")
    name = f"{known_as(head, *FAMILIES)}{colon}{settings}"
    cards = cards_of(name.partition(":")[0])
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


@dataclass(frozen=True, kw_only=True)
class Honesty:
    """The consequence of a fault for a run."""

    fault: str
    verdict: str
    remark: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """The explanation of one name."""

    name: str
    kind: str
    """The noun of its family: "strategy"."""
    summary: str
    text: str
    """The documentation below its first line, outside of sections."""
    sections: dict[str, str]
    """Text by title, without Honesty."""
    honesty: tuple[Honesty, ...]
    settings: tuple[Setting, ...]
    facts: dict[str, str]
    """The class variables, as written: values that cannot be set."""


def cards_of(name: str) -> list[Card]:
    """Return the cards of `name`, one per family that has it; for a path, run the file and return its strategy's.

    Raises `ConfigurationError`, with all names, if no family knows it, and for a file that registers no strategy.
    """
    if name.endswith(".py"):
        return [_card_of_file(name)]
    families = {family: registry(family) for family in FAMILIES}
    knowing = [names for names in families.values() if name in names]
    if not knowing:
        raise unknown_name("name", name, {each for names in families.values() for each in names})
    return [_card(name, names.kind, names.source(name), names.summary(name)) for names in knowing]


def _card_of_file(path: str) -> Card:
    if is_file(path):
        check_script(path)
    strategies = registry("strategies")
    try:
        name = strategies.registered(path)
    except QuorateError:
        raise
    except Exception as error:
        raise ConfigurationError(f'the file "{path}" cannot be run: {type(error).__name__}: {error}') from error
    return _card(name, strategies.kind, strategies.source(path), strategies.summary(path))


def sections_in(documentation: str) -> dict[str, str]:
    """Return the text of each section by title; the text before the first one has the title ""."""
    pieces = _TITLE.split(documentation)
    return {
        "": pieces[0].strip(),
        **{title: text.strip() for title, text in zip(pieces[1::2], pieces[2::2], strict=True)},
    }


def honesty_in(section: str) -> Iterator[Honesty]:
    """Yield the rows of the section Honesty."""
    for row in re.split(r"\n(?=- )", section):
        match = _ROW.fullmatch(" ".join(row.split()))
        if match is not None:
            remark = match["remark"] or ""
            yield Honesty(fault=match["fault"], verdict=match["verdict"], remark=remark)


def _goes_with(name: str) -> str:
    """Return the features that go with a strategy; the table is asked for one of a file, which has imported torch."""
    combinations = json.loads(Path(__file__).with_name("combinations.json").read_text(encoding="utf-8"))
    refused = combinations["refused"].get(name)
    if refused is None:
        from quorate.train.compatibility import refused_features

        try:
            refused = refused_features(registry("strategies").get(name), name)
        except TypeError:  # it is abstract, or has settings without defaults
            return ""
    taken = [feature for feature in combinations["features"] if feature not in refused]
    return f"Yes: {', '.join(taken) or 'nothing'}.\n\nNo: {', '.join(refused) or 'nothing'}."


def _card(name: str, kind: str, source: Source | None, summary: str) -> Card:
    source = source or Source(module="", documentation=summary)
    own_sections = sections_in(source.documentation)
    of_base = sections_in(source.base_module)
    sections = {**of_base, **sections_in(source.module), **own_sections}
    rows = (*honesty_in(of_base.get("Honesty", "")), *honesty_in(sections.get("Honesty", "")))
    if kind == "strategy":
        sections["Goes with"] = _goes_with(name)
    return Card(
        name=name,
        kind=kind,
        summary=summary,
        text=own_sections[""].partition("\n")[2].strip(),
        sections={title: sections[title] for title in SECTIONS if sections.get(title) and title != "Honesty"},
        honesty=tuple({row.fault: row for row in rows}.values()),
        settings=source.settings,
        facts=dict(source.facts),
    )
