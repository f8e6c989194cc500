"""`quorate explain`: the card of one name, of any family. Imports none of what it explains.

Only the file of a strategy is run. With -n a topology is drawn and measured, which loads numpy, of a reducer the steps
are shown, and an attention pattern is drawn, which loads torch.

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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from quorate.cli.listing import FAMILIES, registry, value_of
from quorate.cli.names import folded, known_as, unknown_name
from quorate.cli.pictures import Picture, picture
from quorate.cli.scripts import check_script, is_file
from quorate.cli.tables import text_table, text_width, wrapped
from quorate.cli.together import explain_pair
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.core.source import Setting, Source

SECTIONS = ("Idea", "Cost", "When it loses", "Honesty", "Paper", "Goes with")
FAULTS = ("worker death", "pause", "slow worker", "corrupt gradient", "resize", "resume")
"""The faults that a run may meet."""
VERDICTS = ("goes on", "restarts", "stops cleanly", "untested", "not yet")
"""The consequences of a fault; "not yet": it is not built."""

_TYPES = {
    "bool": "true or false",
    "int": "whole number",
    "float": "number",
    "str": "text",
    "tuple[str, ...]": "list",
    "tuple[int, ...]": "list of whole numbers",
    "None": "null",
}
_SET_BY = {
    "workload": "--workload-set SETTING=VALUE",
    "topology": "NAME:SETTING=VALUE",
    "attention pattern": "NAME:SETTING=VALUE",
}
"""By kind, how settings are set if not by `--set SETTING=VALUE`."""
_LABELS = {
    "batch_size": "batch size",
    "epochs": "epochs",
    "learning_rate": "learning rate",
    "headline": "quality",
    "baseline": "baseline",
    "cost": "a step",
    "imbalance": "imbalance",
    "breakdown": "tolerates",
}
_FLAGS = {
    ("compresses", "'ways'"): ("compress", "applies to deltas"),
    ("compresses", "'gradients'"): ("compress", "applies to gradients"),
    ("compresses", "'differences'"): ("compress", "applies to differences between copies"),
    ("higher_is_better", "True"): ("better if", "higher"),
    ("higher_is_better", "False"): ("better if", "lower"),
    ("is_biased", "False"): ("bias", "none: on average a decoded vector equals the original one"),
    ("is_linear", "True"): ("codes", "can be added without decoding them"),
}
"""Label and words of class variables, by name and value."""

_SPARSE_ATTENTION = "sparse-attention"
"""The name of all attention patterns; it stands for the most usual one."""
_TITLE = re.compile(rf"^({'|'.join(SECTIONS)}):[ ]*", re.MULTILINE)
_RAISES = re.compile(r"(?:^|\n)Raises `(?:.+\n?)+")
"""A paragraph for those who call the class."""
_ROW = re.compile(r"^- (?P<fault>[^:]+): (?P<verdict>[^;]+)(?:; (?P<remark>.+))?$", re.DOTALL)


def explain(
    name: Annotated[str, typer.Argument(help="A name from `quorate list`, or the file of a strategy.", metavar="NAME")],
    other: Annotated[
        str | None,
        typer.Argument(help="A second name: say whether the two go together.", metavar="[OTHER]", show_default=False),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--workers",
            help="Draw a topology or an all-reduce for this number of workers, a pattern for this number of blocks.",
            metavar="N",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of cards.")] = False,
) -> None:
    """Explain one name: its idea, its cost, when it loses, what happens under faults, its settings, the paper.

    With two names, say whether they go together, and why not: strategies, codecs, reducers, rules, and features of a
    training such as AdamW, accumulation, prune, zero=3 or processes. An unknown name is answered with the list.

    For a topology (such as random:degree=3), -n draws the graph and says how fast it mixes. For an all-reduce
    algorithm, -n shows who sends what to whom in each step, and the cost. A name that is both shows both. For a pattern
    of sparse attention (such as window:width=5), -n draws its blocks.
    """
    if other is not None:
        typer.echo(explain_pair(name, other, as_json=as_json))
        return
    head, colon, settings = name.partition(":")
    if folded(head) == folded(_SPARSE_ATTENTION):
        head = "longformer"
    name = f"{known_as(head, *FAMILIES)}{colon}{settings}"
    cards = cards_of(name.partition(":")[0])
    width = text_width()
    pictures: list[Picture | None] = [None] * len(cards)
    if workers is not None:
        pictures = [picture(card.kind, name, workers, width) for card in cards]
        if not any(pictures):
            raise ConfigurationError(
                f"-n draws topologies, all-reduce algorithms and attention patterns; "
                f'"{name}" is a {cards[0].kind}, which has no picture'
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
        setting["default"] = None if setting["default"] is None else value_of(setting["default"])
    card_as_json["facts"] = {name: value_of(written) for name, written in card.facts.items()}
    return card_as_json


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
    if properties := list(properties_of(card)):
        yield from ("", "Properties")
        yield from text_table(properties, width)
    how = _SET_BY.get(card.kind, "--set SETTING=VALUE")
    yield from ("", f"Settings ({how})" if card.settings else "Settings: none")
    for setting in card.settings:
        default = "required" if setting.default is None else f"default: {default_of(setting)}"
        yield from wrapped(f"{setting.name}: {type_of(setting)}; {default}", width, "  ", " " * 6)
        yield from wrapped(setting.meaning, width, " " * 6)


def _faults(card: Card, width: int) -> Iterator[str]:
    if card.honesty:
        yield from ("", "Honesty")
        yield from text_table([(row.fault, row.verdict, row.remark) for row in card.honesty], width)


def properties_of(card: Card) -> Iterator[tuple[str, str]]:
    """Yield the label and the value of the class variables that concern users."""
    for name, written in card.facts.items():
        if (name, written) in _FLAGS:
            yield _FLAGS[name, written]
        elif name in _LABELS:
            yield _LABELS[name], default_in_words(written)
        elif name == "reduction":
            yield "preset", ", ".join(f"{key}={preset}" for key, preset in ast.literal_eval(written).items())


def type_of(setting: Setting) -> str:
    """Return the values that a setting takes on the command line, in words."""
    words = type_in_words(setting.type)
    return words.replace("number", "duration, such as 50ms", 1) if setting.is_duration else words


def default_of(setting: Setting) -> str:
    """Return the default of a setting as it is typed on the command line."""
    written = default_in_words(setting.default or "")
    return f"{written}s" if setting.is_duration and written[:1].isdigit() else written


def type_in_words(written: str) -> str:
    """Return `stop or continue` for `Literal['stop', 'continue']`, and `number or null` for `float | None`."""
    kinds: list[str] = []
    for part in re.sub(r"\bint \| (?=float)", "", written).split(" | "):
        choices = re.fullmatch(r"Literal\[(.*)\]", part)
        kinds += [_TYPES.get(part, part)] if choices is None else map(default_in_words, choices[1].split(", "))
    return " or ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))


def default_in_words(written: str) -> str:
    """Return a value as it is typed on the command line."""
    value = value_of(written)
    if isinstance(value, str):
        return value or '""'
    return json.dumps(value) if value is None or isinstance(value, bool | tuple) else written


def _wrapped(text: str, width: int) -> Iterator[str]:
    """Yield the lines of wrapped paragraphs; indented ones stay unchanged."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text)):
        if number:
            yield ""
        is_laid_out = any(line.startswith(" ") for line in paragraph.splitlines())
        yield from [f"  {line}" for line in paragraph.splitlines()] if is_laid_out else wrapped(paragraph, width, "  ")


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
        text=_RAISES.sub("", own_sections[""].partition("\n")[2]).strip(),
        sections={title: sections[title] for title in SECTIONS if sections.get(title) and title != "Honesty"},
        honesty=tuple({row.fault: row for row in rows}.values()),
        settings=source.settings,
        facts=dict(source.facts),
    )
