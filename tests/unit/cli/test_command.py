"""Words of other launchers, options that stand behind the script, where help is, and panels and examples of helps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from quorate.cli.command import EXAMPLES
from quorate.cli.verbs import VERBS, app, status_of
from tests.architecture.tree import ROOT

COMMANDS = getattr(typer.main.get_command(app), "commands", {})


@pytest.fixture(autouse=True)
def _with_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("train.py").write_text("import sys\n")
    Path("own.py").write_text("add_argument('--seed'); add_argument('-n')\n")


@pytest.mark.parametrize(
    "words",
    [
        ["-np", "3"],
        ["--nproc", "3"],
        ["--nproc-per-node=3"],
        ["--nproc_per_node", "3"],
        ["--num_processes", "3"],
        ["--gpus", "3"],
        ["--workers", "3"],
    ],
)
def test_words_of_other_launchers_are_the_number_of_workers(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["run", *words, "--dry-run", "train.py"]) == 0
    assert capsys.readouterr().out.startswith("would start 3 workers of train.py")
    assert status_of(["compare", "digits", *words, "--dry-run", "--seeds", "1"]) == 0
    assert "3 workers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--nnodes", "2", "x.py"], "no such option: --nnodes; --hosts first:4,second:4 starts workers on "),
        (["run", "--max_restarts=2", "x.py"], "no such option: --max_restarts; --restart N replaces dead workers; see"),
        (["run", "--timeline-filename", "x", "x.py"], "no such option: --timeline-filename; quorate trace RUN writes"),
        (["run", "--min-np=2", "x.py"], "no such option: --min-np; --restart N replaces dead workers, under a"),
        (["run", "-H", "a:2,b:2", "x.py"], "no such option: -H; --hosts first:4,second:4 starts workers on "),
        (["run", "--no-hierarchical-allreduce", "x.py"], "no such option: --no-hierarchical-allreduce; hosts add up"),
        (["run", "--strategi", "x"], "no such option: --strategi; did you mean --strategy? See quorate run --help\n"),
        (["run", "--zzz"], "no such option: --zzz; see quorate run --help\n"),
        (["run", "-np", "four", "train.py"], "-n takes a whole number; see quorate run --help\n"),
        (["run"], "missing argument 'SCRIPT'; see quorate run --help\n"),
        (["run", "--cold", "x"], "no such option: --cold; see quorate run --help\n"),
        (["run", "--worker", "2", "x"], "no such option: --worker; did you mean --workers? See quorate run --help\n"),
        (
            ["simulate", "--latency", "50us"],
            "no such option: --latency; --network 50us:10Gbit is both; see quorate simulate --help\n",
        ),
        (["runn"], "no such command 'runn'; did you mean 'run'? See quorate --help\n"),
        (["help", "bogus"], "no such command 'bogus'; see quorate --help\n"),
    ],
)
def test_an_error_names_the_help_of_its_verb(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"quorate: {sentence}")
    assert said.count("\n") == 1


def test_each_option_of_horovodrun_in_its_table_has_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, table = (ROOT / "docs" / "howto" / "horovod.md").read_text().partition("## Options of horovodrun")
    rows = [row.partition(" | ") for row in table.splitlines()]
    answers = {flag: use for flags, _, use in rows for flag in re.findall("`(-[A-Za-z-]+)", flags)}
    assert len(answers) > 10
    for flag, use in answers.items():
        assert status_of(["run", flag, "2", "--zzz", "x.py"]) == 2
        said = capsys.readouterr().err
        assert ("no such option: --zzz" if flag == "-np" else f"no such option: {flag}; ") in said
        assert "did you mean" not in said
        assert flag == "-np" or all(words in said for words in re.findall(r"`(quorate \w+|--set \w+=|--[\w-]+)", use))


@pytest.mark.parametrize("words", [["help"], ["-h"], ["help", "run"], ["run", "-h"], ["doctor", "-h"]])
def test_help_has_several_names(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    verbs = [word for word in words if word in VERBS]
    assert status_of([*verbs, "--help"]) == 0
    shown = capsys.readouterr().out
    assert status_of(words) == 0
    assert capsys.readouterr().out == shown


def test_the_version_is_a_word_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["version"]) == 0
    assert capsys.readouterr().out.startswith("quorate ")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["train.py", "-n", "4"], "-n 4"),
        (["train.py", "-np", "4"], "-np 4"),
        (["train.py", "--seed=4"], "--seed=4"),
        (["train.py", "--dry-run", "x"], "--dry-run"),
        (["train.py", "--lr", "4", "--workers", "2", "--seed", "4"], "--workers 2"),
        (["train.py", "--lr", "4", "--seed", "4"], None),
        (["train.py", "--lr", "4", "--", "-n", "4"], None),
        (["train.py", "--lr", "4"], None),
        (["train.py", "--", "-n", "4"], None),
        (["own.py", "-n", "4"], None),
        (["own.py", "--seed", "4"], None),
        (["own.py", "--name", "x"], "--name x"),
    ],
)
def test_an_option_behind_the_script_is_told(
    words: list[str], option: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["run", "--dry-run", *words]) == 0
    told = f"quorate: {option} came after the script and was passed to it; put it before {words[0]} if it is meant for "
    assert capsys.readouterr().err == ("" if option is None else f"{told}quorate\n")


def test_a_number_of_workers_behind_other_arguments_may_be_the_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["run", "-n", "2", "--dry-run", "train.py", "--lr", "4", "-n", "4"]) == 0
    assert capsys.readouterr().err == ""


def test_all_options_behind_the_script_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["run", "--dry-run", "train.py", "-n", "4", "--json"]) == 0
    told = "quorate: -n 4 and --json came after the script and were passed to it; put them before train.py if they are "
    assert capsys.readouterr().err == f"{told}meant for quorate\n"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("train", '; did you mean "train.py"?'),
        ("trian.py", '; did you mean "train.py"?'),
        ("./trian.py", '; did you mean "./train.py"?'),
        ("elsewhere.py", ""),
        ("nowhere/train.py", ""),
    ],
)
def test_a_script_of_a_similar_name_is_proposed(name: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["run", name]) == 2
    assert capsys.readouterr().err.partition(" (looked in ")[2].partition(")")[2] == f"{hint}\n"


@pytest.mark.parametrize("verb", ["run", "compare", "simulate", "plan"])
def test_options_are_shown_in_panels(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    for parameter in COMMANDS[verb].params:
        if parameter.param_type_name == "option":
            assert f"  {parameter.opts[0]}" in shown
    titles = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert "Strategy:" in titles and "Options:" not in titles and len(titles) == len(set(titles)) > 5


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_ends_with_three_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of([verb, "--help"]) == 0
    examples = capsys.readouterr().out.partition("\nExamples:\n")[2]
    assert examples.count(f"  quorate {verb}") == len(EXAMPLES[verb]) == 3
    for example in EXAMPLES[verb]:
        words = example.replace("\\\n", " ").split()[2:]
        COMMANDS[verb].make_context(verb, words).close()
