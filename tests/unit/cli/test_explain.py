"""Cards: what is told of each name, complete for every strategy, without importing any."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate.cli import explain as explaining
from quorate.cli import listing
from quorate.cli.explain import (
    FAULTS,
    SECTIONS,
    VERDICTS,
    Honesty,
    cards_of,
    default_in_words,
    explain,
    honesty_in,
    sections_in,
    type_in_words,
)
from quorate.cli.listing import FAMILIES, FIRST, GROUPS, list_names, registry
from quorate.cli.main import main
from quorate.core.errors import ConfigurationError
from quorate.core.registry import Registry
from quorate.strategies import strategies
from tests.support.every_strategy import OWN
from tests.support.sampled import Few

NAMES = [
    (family, name)
    for family in FAMILIES
    for name in registry(family)
    if registry(family).source(name) and name not in OWN  # which are named by their files
]
STRATEGIES = [name for family, name in NAMES if family == "strategies"]


@pytest.mark.parametrize(("family", "name"), NAMES)
def test_every_name_has_a_card(family: str, name: str) -> None:
    (card,) = [card for card in cards_of(name) if card.kind == registry(family).kind]
    assert card.name == name
    assert card.summary.endswith(".")


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_says_everything_about_itself(name: str) -> None:
    (card,) = [card for card in cards_of(name) if card.kind == "strategy"]
    assert tuple(card.sections) == tuple(title for title in SECTIONS if title != "Honesty")
    for title, text in card.sections.items():
        assert len(text) > 20 and text[0].isupper() and text.endswith("."), title
    assert tuple(row.fault for row in card.honesty) == FAULTS
    assert {row.verdict for row in card.honesty} <= set(VERDICTS)
    assert all(setting.meaning for setting in card.settings)


@pytest.mark.parametrize("name", [name for family, name in NAMES if family == "workloads"])
def test_settings_are_those_of_the_dataclass(name: str) -> None:
    import dataclasses

    (card,) = cards_of(name)
    workload = registry("workloads").get(name)
    assert [setting.name for setting in card.settings] == [field.name for field in dataclasses.fields(workload)]


def test_sections_are_found_by_their_titles() -> None:
    text = "First.\n\nAs an Idea: no title.\n\nIdea: It\nworks.\n\nWhen it loses: Never.\nHonesty:\n- pause: goes on\n"
    assert sections_in(text) == {
        "": "First.\n\nAs an Idea: no title.",
        "Idea": "It\nworks.",
        "When it loses": "Never.",
        "Honesty": "- pause: goes on",
    }


def test_honesty_has_rows() -> None:
    section = "- worker death: stops cleanly; the others\n  leave: all; at once\n- pause: goes on\nnothing of the kind"
    assert list(honesty_in(section)) == [
        Honesty(fault="worker death", verdict="stops cleanly", remark="the others leave: all; at once"),
        Honesty(fault="pause", verdict="goes on nothing of the kind", remark=""),
    ]
    assert list(honesty_in("nothing")) == []


def test_a_card_reads_like_this(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    explain("all-reduce")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "all-reduce (strategy)"
    assert lines[1].startswith("  The gradients of all workers are averaged")
    titles = ["Idea", "Cost", "When it loses", "Honesty", "Paper", "Goes with", "Properties"]
    titles.append("Settings (--set SETTING=VALUE)")
    assert [line for line in lines[1:] if line and not line.startswith(" ")] == titles
    assert any(line.startswith("  worker death      stops cleanly  the others") for line in lines)


def test_settings_are_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    explain("least-squares")
    lines = capsys.readouterr().out.splitlines()
    place = lines.index("Settings (--workload-set SETTING=VALUE)")
    assert lines[place + 1 :][:2] == ["  examples: whole number; default: 512", "      Number of training points, n."]
    assert "  quality        squared_error" in lines and "  better if      lower" in lines


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("bool", "true or false"),
        ("float | None", "number or null"),
        ("int | float | Literal['all', 'majority']", "number, all or majority"),
        ("Literal[1, 2, 4]", "1, 2 or 4"),
        ("tuple[str, ...] | None", "list or null"),
    ],
)
def test_types_in_words(written: str, words: str) -> None:
    assert type_in_words(written) == words


def test_values_as_they_are_typed() -> None:
    written = ("True", "None", "'stop'", "''", "1e-06", "0.5")
    assert list(map(default_in_words, written)) == ["true", "null", "stop", '""', "1e-06", "0.5"]


def test_no_card_shows_python() -> None:
    for _, name in NAMES:
        for card in cards_of(name):
            texts = [card.summary, card.text, *card.sections.values(), *(setting.meaning for setting in card.settings)]
            prose = re.sub(r"`[^`]*`", "", " ".join(texts))
            assert not re.search(r"Raises|\bNone\b|\bTrue\b|\bFalse\b", prose), name
            types = [word for setting in card.settings for word in type_in_words(setting.type).split()]
            assert not {"bool", "int", "float", "str", "None"} & {word.strip(",") for word in types}, name


def test_every_strategy_is_in_one_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(set(STRATEGIES)) and set(FIRST) < set(grouped)


def test_strategies_are_listed_in_groups(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    list_names("strategies")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "strategies",
        "",
        "  synchronous",
        "    all-reduce      Start here. The gradients of all workers",
    ]
    assert lines[-1] == "quorate explain NAME says more."


def test_json_has_values(capsys: pytest.CaptureFixture[str]) -> None:
    explain("stdlib-functions", as_json=True)
    (card,) = json.loads(capsys.readouterr().out)
    assert (card["name"], card["kind"], card["facts"]["batch_size"]) == ("stdlib-functions", "workload", 32)
    longest = next(setting for setting in card["settings"] if setting["name"] == "longest")
    assert longest == {
        "name": "longest",
        "type": "int",
        "default": 3000,
        "meaning": "Maximum number of words of a function; further words are cut off.",
        "is_required": False,
    }


def test_a_name_of_two_families_has_two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    twins: Registry[object] = Registry("twin", {"ddp": "quorate.core.durations:UCF101_LSTM"})
    monkeypatch.setitem(listing.FAMILIES, "twins", "quorate.core.durations:traces")
    known = explaining.registry
    monkeypatch.setattr(explaining, "registry", lambda family: twins if family == "twins" else known(family))
    assert [card.kind for card in cards_of("ddp")] == ["baseline", "twin"]


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ConfigurationError, match='unknown name "all-reduse"; did you mean "all-reduce"[?] See quorate '
    ):
        cards_of("all-reduse")


STRATEGY = '''"""Doing nothing.

Idea: Nobody moves.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate import strategies
from quorate.core.strategy import Strategy, Worker


@strategies.register("{name}")
@dataclass(frozen=True, kw_only=True)
class Idle(Strategy):
    """Workers do nothing for `{setting}` steps."""

    {setting}: int = 3
    """How long."""

    def start(self, worker: Worker) -> None:
        return None
'''


@pytest.fixture
def only_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the strategies that other tests have registered, and afterwards those of these tests."""
    places = {name: place for name, place in strategies._places.items() if name in strategies._readable}
    monkeypatch.setattr(strategies, "_places", places)
    monkeypatch.setattr(strategies, "_loaded", {})
    monkeypatch.setattr(strategies, "_files", {})


@pytest.mark.usefixtures("only_the_packages")
def test_the_file_of_a_strategy_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "idle.py"
    path.write_text(STRATEGY.format(name="idle", setting="patience"))
    with pytest.raises(SystemExit) as ended:
        main(["explain", "--json", str(path)])
    assert ended.value.code == 0
    (card,) = json.loads(capsys.readouterr().out)
    assert (card["name"], card["kind"]) == ("idle", "strategy")
    assert card["summary"] == "Workers do nothing for `patience` steps."
    assert card["sections"] == {"Idea": "Nobody moves."}
    patience = {"name": "patience", "type": "int", "default": 3, "meaning": "How long.", "is_required": False}
    assert patience in card["settings"]
    assert {"on_death", "buffers"} < {setting["name"] for setting in card["settings"]}, "those of every strategy"


@pytest.mark.usefixtures("only_the_packages")
@pytest.mark.parametrize("name", ["fedprox", "gossip_memory"])
def test_strategies_among_the_examples_have_cards(name: str) -> None:
    (card,) = cards_of(str(Path(__file__).parents[3] / "examples" / "strategies" / f"{name}.py"))
    assert {"Idea", "Cost", "Paper", "Goes with"} <= card.sections.keys() and card.honesty and card.settings


@pytest.mark.usefixtures("only_the_packages")
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "there is no file .*; name a strategy, or a file that registers one"),
        ("def", "is not a valid Python script: "),
        ("x = 1", 'registers nothing; the file of a strategy registers one with @register\\("name"\\)'),
        ("1 / 0", "cannot be run: ZeroDivisionError: division by zero"),
    ],
)
def test_files_that_are_no_strategy_are_refused(tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=sentence):
        cards_of(str(path))


@pytest.fixture
def quiet(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield
    capsys.readouterr()


@pytest.mark.parametrize(("arguments", "status"), [(["all-reduce"], 0), (["ddp", "--json"], 0), (["bogus"], 2)])
def test_it_is_a_verb(quiet: None, arguments: list[str], status: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", *arguments])
    assert ended.value.code == status


def test_nothing_heavy_is_imported(few: Few) -> None:
    calls = [["explain", name] for _, name in few(NAMES)] + [["list"], ["trace", "--help"]]
    code = f"""
import functools, sys
import typer.main
from quorate.cli.main import main
typer.main.get_command = functools.cache(typer.main.get_command)  # once for all calls
for arguments in {calls!r}:
    try:
        main(arguments)
    except SystemExit as end:
        heavy = [name for name in ('torch', 'numpy') if name in sys.modules]
        if end.code or heavy:
            sys.exit(f'{{arguments}}: status {{end.code}}, imported {{heavy}}')
"""
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, stdout=subprocess.DEVNULL)


def test_a_pattern_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    explain("sparse-attention", workers=5)
    text = capsys.readouterr().out
    assert text.startswith("longformer (attention pattern)")
    assert "  ###..             ##...\n" in text
    assert "320 positions, causal: 57,344 scores for each head" in text
    explain("window:width=1", workers=3, as_json=True)
    (card,) = json.loads(capsys.readouterr().out)
    assert card["blocks"]["causal"] == ["#..", ".#.", "..#"]
    assert card["costs"]["scores"] == 3 * 64 * 64
    with pytest.raises(ConfigurationError, match="-n is 65; a pattern can be drawn for 1 to 64 blocks"):
        explain("window", workers=65)
