"""Pages that say what the code says: a card for every strategy, every option of the command line, every setting.

`python docs/generated_pages.py` writes what the command line keeps of them, `combinations.json`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

import quorate
from quorate.cli.explain import Card, cards_of, default_in_words, type_in_words
from quorate.cli.listing import FAMILIES, GROUPS, registry
from quorate.cli.verbs import app
from quorate.core.source import Setting
from quorate.strategies import strategies
from quorate.train.compatibility import Rule, features, refused_features

HEADS = ("setting", "type", "default", "meaning")
CORE = ("join", "World", "distribute", "loader", "log", "save", "load")
INHERITS = "   :inherited-members:\n"
COMBINATIONS = Path(__file__).parents[1] / "src" / "quorate" / "cli" / "combinations.json"


def write(folder: Path) -> None:
    """Make all pages below `folder`; a page that says what it said before is not touched, so that builds are quick."""
    pages = dict(pages_by_path())
    for path, text in pages.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
    for file in folder.rglob("*.md"):
        if file.relative_to(folder).as_posix() not in pages:
            file.unlink()


def pages_by_path() -> Iterator[tuple[str, str]]:
    """Every page's path and text."""
    cards = {family: [_card(family, name) for name in registry(family)] for family in FAMILIES}
    for family in ("strategies", "baselines"):
        for card in cards[family]:
            yield f"strategies/{card.name}.md", card_page(card)
    yield "combinations.md", combinations_page()
    yield "strategies/index.md", strategies_page([*cards["strategies"], *cards["baselines"]])
    yield "options.md", options_page()
    yield "settings.md", settings_page(cards)
    yield "api.md", api_page()


def card_page(card: Card) -> str:
    """What `quorate explain` tells, as a page."""
    lines = [f"# `{card.name}`", "", card.summary, ""]
    if card.text:
        lines += [_prose(card.text), ""]
    for title, text in card.sections.items():
        if title == "Paper":
            lines += _honesty(card)
        lines += [f"## {title}", "", _prose(text), ""]
    if "Paper" not in card.sections:
        lines += _honesty(card)
    lines += _settings(card)
    lines += ["The same in a terminal:", "", "```bash", f"quorate explain {card.name}", "```", ""]
    return "\n".join(lines)


def strategies_page(cards: Sequence[Card]) -> str:
    """The list of all, and what becomes of each under faults, side by side."""
    names = "\n".join(f"{card.name}" for card in cards)
    faults = list(dict.fromkeys(row.fault for card in cards for row in card.honesty))
    rows = [
        [
            f"[`{card.name}`]({card.name}.md)",
            *({row.fault: row.verdict for row in card.honesty}.get(fault, "") for fault in faults),
        ]
        for card in cards
        if card.honesty
    ]
    summaries = [[f"[`{card.name}`]({card.name}.md)", card.kind, card.summary] for card in cards]
    return "\n".join(
        [
            "# Strategy cards",
            "",
            "Generated from the docstrings of the strategies; `quorate explain NAME` prints the same.",
            "",
            *_table(["name", "kind", "what it is"], summaries),
            "",
            "## What happens under faults",
            "",
            *_table(["strategy", *faults], rows),
            "",
            "[The command line](../../reference/command-line.md#quorate-explain) explains the words.",
            "",
            "```{toctree}",
            ":hidden:",
            "",
            names,
            "```",
            "",
        ]
    )


def combinations_page() -> str:
    """Return the page of what goes with which strategy, each cell as the table of refusals answers."""
    names = _own_strategies()
    refused = {name: refused_features(strategies.get(name), name) for name in names}
    reasons: dict[Rule, str] = {}
    for rule, words in (answer for name in names for answer in refused[name].values()):
        reasons.setdefault(rule, words)
    numbers = {rule: number for number, rule in enumerate(reasons, start=1)}
    rows = [
        [
            f"[`{name}`](strategies/{name}.md)",
            *(
                f"no ({numbers[refused[name][feature][0]]})" if feature in refused[name] else "yes"
                for feature in features()
            ),
        ]
        for name in names
    ]
    return "\n".join(
        [
            "# Combinations of features",
            "",
            "Each strategy with its default settings. A number names the reason below the table: the message of the",
            "error, for the first strategy that it concerns. `quorate explain NAME` prints a strategy's row.",
            "",
            *_table(["strategy", *features()], rows),
            "",
            "## Reasons",
            "",
            *(f"{numbers[rule]}. {_prose(words)}" for rule, words in reasons.items()),
            "",
        ]
    )


def _own_strategies() -> list[str]:
    return [name for name, place in strategies.places.items() if place.startswith("quorate.")]


def combinations_json() -> str:
    """Return the text of `src/quorate/cli/combinations.json`, which `quorate explain` reads."""
    refused = {name: list(refused_features(strategies.get(name), name)) for name in _own_strategies()}
    rows = ",\n".join(f'    "{name}": {json.dumps(names)}' for name, names in refused.items())
    return f'{{\n  "features": {json.dumps(list(features()))},\n  "refused": {{\n{rows}\n  }}\n}}\n'


def options_page() -> str:
    """Every verb, with every argument and option, as `--help` has them."""
    group: Any = typer.main.get_command(app)
    lines = ["# Options of every verb", "", "What `quorate VERB --help` shows.", ""]
    for verb, command in group.commands.items():
        lines += [f"## `quorate {verb}`", "", _prose(inspect.cleandoc(command.help or "")), ""]
        rows = [_option(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
        if rows:
            lines += [*_table(["argument or option", "default", "meaning"], rows), ""]
    return "\n".join(lines)


def settings_page(cards: Mapping[str, Sequence[Card]]) -> str:
    """Return the page of every setting that has a value, by family; `cards` are by family."""
    by_name = {card.name: card for card in cards["strategies"]}
    groups = {
        **GROUPS,
        "others": tuple(name for name in by_name if not any(name in names for names in GROUPS.values())),
    }
    common = _common_settings(cards["strategies"])
    lines = [
        "# All settings",
        "",
        "| settings of | are given by |",
        "|---|---|",
        "| [strategies](#strategies) | `quorate run --set key=value`, `--strategy NAME:key=value`, or keyword "
        "arguments of `quorate.distribute` |",
        "| [codecs](#codecs), [rules](#rules) | the same, beside `compress=NAME` or `reduce=NAME`; or in its text: "
        '`compress="top-k:density=0.01"` |',
        "| [workloads](#workloads) | `quorate compare --workload-set key=value` |",
        "",
        "Values are written as in TOML: `true`, `0.1`, `majority`. The arguments of `quorate.distribute` are in",
        "[the API](../reference/api.md), the options of the command line in [options](options.md).",
        "",
        "## Strategies",
        "",
        "Every strategy has these; each section gives their defaults where they differ from these:",
        "",
        *_table(HEADS, [_setting(setting) for setting in common.values()]),
        "",
    ]
    for title, names in groups.items():
        lines += [f"**{title[0].upper()}{title[1:]}**", ""] if names else []
        for name in names:
            lines += _settings_of(by_name[name], common)
    for family in ("codecs", "rules", "patterns", "workloads"):
        lines += [f"## {family.capitalize()}", ""]
        for card in cards[family]:
            lines += _settings_of(card, {})
    return "\n".join(lines)


def _common_settings(cards: Sequence[Card]) -> dict[str, Setting]:
    """Return the settings that all cards have, by name, with the default that most of them have."""
    by_name: dict[str, list[Setting]] = {}
    for setting in (setting for card in cards for setting in card.settings):
        by_name.setdefault(setting.name, []).append(setting)
    shared = {name: settings for name, settings in by_name.items() if len(settings) == len(cards)}
    return {name: _usual(settings) for name, settings in shared.items()}


def _usual(settings: Sequence[Setting]) -> Setting:
    defaults, meanings = [setting.default for setting in settings], [setting.meaning for setting in settings]
    return max(settings, key=lambda setting: (defaults.count(setting.default), meanings.count(setting.meaning)))


def _settings_of(card: Card, common: Mapping[str, Setting]) -> list[str]:
    """Return a section: what the card says in a line, and its settings without `common` ones of the same default."""
    own = [s for s in card.settings if s.name not in common or s.default != common[s.name].default]
    rows = [_setting(setting) for setting in own]
    table = _table(HEADS, rows) if rows else ["None of its own." if common else "None."]
    return [f"### `{card.name}`", "", card.summary, "", *table, ""]


CALLED = {"launch": "launching.launch", "report": "reporting.report"}
"""Packages that can be called, and the function that this calls."""


def api_page() -> str:
    """What Sphinx is to take from the docstrings."""
    known = {name: getattr(quorate, name) for name in quorate.__all__}
    kinds = {name: "class" if inspect.isclass(one) else "function" for name, one in known.items()}
    called = {name: f"quorate.notebook.{place}" for name, place in CALLED.items()}
    packages = {name: one.__name__ for name, one in known.items() if inspect.ismodule(one) and name not in called}
    order = [*CORE, *sorted(kinds.keys() - {*CORE, "shard"}, key=lambda name: (kinds[name] == "class", name))]
    return "\n".join(
        [
            "# API from the docstrings",
            "",
            "Generated from the docstrings: signatures, errors, and what a strategy sees.",
            "[The API](../reference/api.md) explains the same with examples.",
            "",
            "## Names in `quorate`",
            "",
            "The core first. `shard` is an alias of `loader`.",
            "",
            "```{eval-rst}",
            ".. currentmodule:: quorate",
            "",
            *(
                f".. auto{kinds[name]}:: {name}\n{INHERITS if name == 'World' else ''}"
                for name in order
                if name not in {*called, *packages}
            ),
            *(f".. autofunction:: {place}\n" for place in called.values()),
            *(f".. automodule:: {place}\n" for place in packages.values()),
            "```",
            "",
            *_module("Errors", "quorate.core.errors"),
            *_module("The interface of strategies", "quorate.core.strategy"),
        ]
    )


def escaped(lines: Sequence[str]) -> list[str]:
    """A docstring's lines with what reStructuredText would take for markup escaped, but for `code` and *emphasis*."""
    text = re.sub(r"(`[^`]*`|(?<![\w*])\*\w[^*`]*\*(?![\w*]))|([*|\\])|(\w_)(?!\w)", _escape, "\n".join(lines))
    return text.split("\n")


def _escape(found: re.Match[str]) -> str:
    kept, mark, reference = found.groups()
    if kept is not None:
        return f"`{kept}`" if kept[0] == "`" and "\n" not in kept else kept
    return f"\\{mark}" if mark else f"{reference[0]}\\_"


def _card(family: str, name: str) -> Card:
    kind = registry(family).kind
    return next(card for card in cards_of(name) if card.kind == kind)


def _module(title: str, name: str) -> list[str]:
    return [f"## {title}", "", "```{eval-rst}", f".. automodule:: {name}", "```", ""]


def _honesty(card: Card) -> list[str]:
    if not card.honesty:
        return []
    rows = [[row.fault, row.verdict, row.remark] for row in card.honesty]
    return ["## Honesty", "", *_table(["fault", "what happens", "remark"], rows), ""]


def _settings(card: Card) -> list[str]:
    if not card.settings:
        return ["## Settings", "", "None.", ""]
    return ["## Settings", "", *_table(HEADS, [_setting(setting) for setting in card.settings]), ""]


def _setting(setting: Setting) -> list[str]:
    default = "required" if setting.default is None else f"`{default_in_words(setting.default)}`"
    return [f"`{setting.name}`", type_in_words(setting.type), default, setting.meaning]


def _option(parameter: Any) -> list[str]:
    names = [*parameter.opts, *parameter.secondary_opts]
    is_option = parameter.param_type_name == "option"
    shown = (
        ", ".join(f"`{name}`" for name in names) if is_option else f"`{parameter.metavar or parameter.name.upper()}`"
    )
    default = parameter.default
    told = "" if default in (None, False, ()) or callable(default) else f"`{default}`"
    return [shown, told, _prose(getattr(parameter, "help", None) or "")]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]


def _prose(text: str) -> str:
    """Text of a docstring or of help, so that Markdown takes nothing in it for markup but code in backticks."""
    return re.sub(r"(`[^`]*`)|([*_<\\])", lambda found: found[1] or f"\\{found[2]}", text)


if __name__ == "__main__":
    COMBINATIONS.write_text(combinations_json(), encoding="utf-8")
