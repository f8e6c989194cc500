"""Cards: what `quorate explain` tells of one name, read from the source of what the name stands for.

The documentation of a strategy's file has sections. Each begins a line with its title and a colon, and goes on to the
next title:

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

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quorate.cli.listing import FAMILIES, registry
from quorate.cli.scripts import check_script, is_file
from quorate.core.errors import ConfigurationError, QuorateError, unknown
from quorate.core.source import Setting, Source

SECTIONS = ("Idea", "Cost", "When it loses", "Honesty", "Paper", "Goes with")
FAULTS = ("worker death", "pause", "slow worker", "corrupt gradient", "resize", "resume")
"""The faults that a run may meet."""
VERDICTS = ("goes on", "restarts", "stops cleanly", "untested", "not yet")
"""The consequences of a fault; "not yet": it is not built."""

_TITLE = re.compile(rf"^({'|'.join(SECTIONS)}):[ ]*", re.MULTILINE)
_ROW = re.compile(r"^- (?P<fault>[^:]+): (?P<verdict>[^;]+)(?:; (?P<remark>.+))?$", re.DOTALL)


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
        raise unknown("name", name, {each for names in families.values() for each in names})
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
