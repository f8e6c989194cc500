"""The pages made from the code say all of it; and the site builds, where what builds it is installed."""

from __future__ import annotations

import importlib.util
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer

import quorate
from quorate.cli.explain import FAULTS, cards_of
from quorate.cli.listing import registry
from quorate.cli.verbs import app
from quorate.train.compatibility import features, refused_features
from tests.architecture.tree import ROOT
from tests.support.every_strategy import OWN

DOCS = ROOT / "docs"
BUILDS = all(importlib.util.find_spec(name) for name in ("sphinx", "myst_parser", "furo"))


def script(name: str, folder: Path = DOCS) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look it up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generated() -> ModuleType:
    return script("generated_pages")


@pytest.fixture(scope="module")
def pages(generated: ModuleType) -> dict[str, str]:
    return dict(generated.pages_by_path())


@pytest.mark.parametrize("name", sorted(set(registry("strategies")) - set(OWN)))
def test_every_strategy_has_a_page_with_all_of_its_card(name: str, pages: dict[str, str]) -> None:
    page = pages[f"strategies/{name}.md"]
    (card,) = [card for card in cards_of(name) if card.kind == "strategy"]
    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert titles == ["Idea", "Cost", "When it loses", "Honesty", "Paper", "Goes with", "Settings"]
    for row in card.honesty:
        assert f"| {row.fault} | {row.verdict} |" in page
    assert all(f"| `{setting.name}` |" in page for setting in card.settings)
    table = next(line for line in pages["strategies/index.md"].splitlines() if line.startswith("| strategy |"))
    assert table == f"| strategy | {' | '.join(FAULTS)} |"
    assert f"\n{name}\n" in pages["strategies/index.md"]


def test_every_option_of_every_verb_is_there(pages: dict[str, str]) -> None:
    sections = {section.partition("`")[0]: section for section in pages["options.md"].split("\n## `quorate ")[1:]}
    commands = getattr(typer.main.get_command(app), "commands", {})
    assert set(sections) == set(commands)
    for verb, command in commands.items():
        for parameter in [one for one in command.params if not getattr(one, "hidden", False)]:
            names = (
                parameter.opts
                if parameter.param_type_name == "option"
                else [parameter.metavar or parameter.name.upper()]
            )
            assert all(f"`{name}`" in sections[verb] for name in names), (verb, names)


def test_every_setting_is_there_once_by_family(pages: dict[str, str]) -> None:
    parts = {part.partition("\n")[0]: part for part in pages["settings.md"].split("\n## ")[1:]}
    assert list(parts) == ["Strategies", "Codecs", "Rules", "Patterns", "Workloads"]
    common = parts["Strategies"].partition("\n### ")[0]
    for family in ("strategies", "workloads", "codecs", "rules"):
        for name in registry(family):
            if not registry(family).places[name].startswith("quorate."):
                continue
            part = parts[family.capitalize()]
            assert part.count(f"\n### `{name}`\n") == 1
            section = part.partition(f"\n### `{name}`\n")[2].partition("\n### ")[0]
            (card,) = [card for card in cards_of(name) if card.kind == registry(family).kind]
            rows = [line for line in section.splitlines() if line.startswith("| `")]
            shown = {line.split("`")[1] for line in rows}
            names = {setting.name for setting in card.settings}
            assert shown <= names
            assert all(f"| `{hidden}` |" in common for hidden in names - shown)
            assert bool(rows) != ("\nNone" in section)


def test_the_page_of_combinations_has_every_strategy_and_a_reason_for_each_no(pages: dict[str, str]) -> None:
    table, _, reasons = pages["combinations.md"].partition("## Reasons")
    for name in (name for name, place in registry("strategies").places.items() if place.startswith("quorate.")):
        row = next(line for line in table.splitlines() if line.startswith(f"| [`{name}`]"))
        cells = row.strip("| ").split(" | ")[1:]
        refused = refused_features(registry("strategies").get(name), name)
        assert [cell != "yes" for cell in cells] == [feature in refused for feature in features()]
        for number in re.findall(r"no \((\d+)\)", row):
            assert reasons.count(f"\n{number}. ") == 1


def test_the_command_line_has_the_same_combinations(generated: ModuleType) -> None:
    written = generated.COMBINATIONS.read_text(encoding="utf-8")
    assert written == generated.combinations_json(), "run python docs/generated_pages.py"


def test_the_page_of_tested_combinations_is_up_to_date() -> None:
    table = script("support_table")
    assert table.PAGE.read_text(encoding="utf-8") == table.page(), "run python docs/support_table.py"
    assert {cell for row in table.cells().values() for cell in row} == {"tested", "refused", "untested"}


def test_the_page_of_what_goes_with_what_is_up_to_date() -> None:
    table = script("compatibility_page")
    assert table.PAGE.read_text(encoding="utf-8") == table.page(), "run python docs/compatibility_page.py"


def test_pictures_of_the_gallery_show_published_figures() -> None:
    gallery = script("gallery_pictures", ROOT / "benchmarks")
    assert {file: file.read_text(encoding="utf-8") for file in gallery.files()} == gallery.files()
    page = (DOCS / "explanation" / "gallery.md").read_text(encoding="utf-8")
    published = [DOCS / "benchmarks.md", *(DOCS / "benchmarks").glob("*.md")]
    sections = [section for file in published for section in file.read_text(encoding="utf-8").split("\n## ")]
    for picture in gallery.PICTURES_OF:
        assert page.count(f"pictures/{picture.name}.svg") == 1
        assert f"python benchmarks/{picture.benchmark}.py" in page
        results = "".join(section for section in sections if f"benchmarks/{picture.benchmark}.py" in section)
        figures = {figure for bar in picture.bars for figure in (bar.figure, bar.low, bar.high) if figure}
        assert not {figure for figure in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.])", results)}


@pytest.fixture
def truth(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "truth")
    return script("table", ROOT / "benchmarks" / "truth")


def test_the_truth_table_shows_the_results_of_its_scripts(truth: ModuleType) -> None:
    assert truth.PAGE.read_text(encoding="utf-8") == truth.page(), "run python benchmarks/truth/table.py"
    assert {path.stem for path in truth.RESULTS.glob("*.json")} == set(truth.TOPICS)
    assert all((ROOT / "benchmarks" / "truth" / f"{name}.py").is_file() for name in truth.TOPICS)


def test_verdicts_of_the_truth_table_follow_from_their_bounds(truth: ModuleType) -> None:
    """A row that was tried has an interval; its verdict is that of the bounds that its script has declared."""
    rows = [row for name in truth.TOPICS for row in truth.rows_of(name)]
    tried = [row for row in rows if row["verdict"] != truth.UNTRIED]
    assert len(rows) >= 25
    assert len(tried) >= 20
    for row in tried:
        holds, partly = (
            (-math.inf if a is None else a, math.inf if b is None else b) for a, b in row["bounds"].values()
        )
        within = [low <= row["low"] <= row["median"] <= row["high"] <= high for low, high in (holds, partly)]
        assert row["verdict"] == (truth.HOLDS if within[0] else truth.PARTLY if within[1] else truth.FAILS), row["name"]
        assert len(row["values"]) >= 3, row["name"]


def test_figures_that_the_truth_table_cites_are_on_their_pages(truth: ModuleType) -> None:
    cited = [row["cited"] for name in truth.TOPICS for row in truth.rows_of(name) if "cited" in row]
    assert cited
    for place in cited:
        assert place["text"] in (DOCS / "benchmarks" / place["page"]).read_text(encoding="utf-8")


def test_the_expected_figures_for_teaching_are_in_the_notebooks() -> None:
    page = (DOCS / "tutorial" / "teaching.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ([\w -]+) \| [^|]+ \| ([\d., ]+) \|$", page.partition("## Expected figures")[2], re.MULTILINE
    )
    assert len(rows) == 10
    for title, figures in rows:
        notebook = (DOCS / "notebooks" / f"{title.lower().replace(' ', '-')}.ipynb").read_text(encoding="utf-8")
        shown = notebook.replace(",", "")
        assert not [figure for figure in figures.split(", ") if figure.replace(",", "") not in shown], title


def test_what_is_no_markup_is_read_as_it_stands(generated: ModuleType) -> None:
    assert generated.escaped(["`x` and **values, a_ |b|"]) == ["``x`` and \\*\\*values, a\\_ \\|b\\|"]
    assert generated.escaped(["*per worker*, 2 * 3 * x"]) == ["*per worker*, 2 \\* 3 \\* x"]


def test_all_that_is_public_is_described_the_core_first(pages: dict[str, str]) -> None:
    described = re.findall(r"^\.\. auto(?:class|function|module):: (?:[\w.]*\.)?(\w+)$", pages["api.md"], re.MULTILINE)
    assert described[:7] == ["join", "World", "distribute", "loader", "log", "save", "load"]
    assert {*described} - {"errors", "strategy"} == {*quorate.__all__} - {"shard"}


def test_pages_that_are_gone_are_taken_away(generated: ModuleType, tmp_path: Path, pages: dict[str, str]) -> None:
    (tmp_path / "old.md").write_text("# Of an earlier version\n")
    generated.write(tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")} == set(pages)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}
    generated.write(tmp_path)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}


@pytest.mark.skipif(not BUILDS, reason="the extra `docs` is not installed; `make docs` installs it")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-b", "dummy"]
    built = subprocess.run(
        [*command, "-d", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "site")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert built.returncode == 0, built.stderr
