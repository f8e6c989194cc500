"""Options as fields: what Typer is told, what the verb is given, how they are spelt."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import typer

from quorate.cli.options import argument, command, flags_given, option, same_named, types_written
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import seconds_from


@dataclass(frozen=True, kw_only=True)
class Options:
    script: str = argument("The script.", "SCRIPT")
    words: list[str] = argument("Its words.", "[WORDS]...", default=[])
    workers: int | None = option("Workers.", "-n")
    wait_at_most: float | None = option("A duration.", reads=seconds_from)
    settings: list[str] = option("Pairs.", "--set", default=[])
    room: int = option("More.", default=0)
    higher: bool | None = option("Which way.", "--higher/--lower")
    dry_run: bool = option("Only say.", default=False)


def parsed(*words: str) -> Options:
    found: list[Options] = []

    @command
    def verb(context: typer.Context, options: Options) -> None:
        """Do it."""
        assert context.params["script"] == options.script
        found.append(options)

    app = typer.Typer()
    app.command(context_settings={"allow_interspersed_args": False})(verb)
    app(args=list(words), standalone_mode=False)
    return found[0]


def test_what_is_not_given_is_the_fields_default() -> None:
    assert parsed("train.py") == Options(script="train.py")
    assert Options(script="train.py").words is not Options(script="train.py").words


def test_what_is_written_is_read() -> None:
    words = ["-n", "0", "--wait-at-most", "20ms", "--set", "a=1", "--set", "b=2", "--room", "3", "--lower", "--dry-run"]
    assert parsed(*words, "train.py", "-n", "7") == Options(
        script="train.py",
        words=["-n", "7"],
        workers=0,
        wait_at_most=0.02,
        settings=["a=1", "b=2"],
        room=3,
        higher=False,
        dry_run=True,
    )


def test_what_was_given_is_spelt_as_it_is_typed() -> None:
    every = tuple(Options.__dataclass_fields__)
    assert flags_given(Options(script="x"), *every) == ["SCRIPT"]
    whole = Options(
        script="x", words=["a"], workers=0, wait_at_most=1.0, settings=["a"], room=1, higher=False, dry_run=True
    )
    assert flags_given(whole, *every) == [
        "SCRIPT", "WORDS", "-n", "--wait-at-most", "--set", "--room", "--higher/--lower", "--dry-run",
    ]  # fmt: skip
    assert flags_given(whole, "room", "workers") == ["-n", "--room"]


def test_the_type_of_what_is_written() -> None:
    assert types_written(Options) == {
        "script": str, "words": list[str], "workers": int, "wait_at_most": str, "settings": list[str], "room": int,
        "higher": bool, "dry_run": bool,
    }  # fmt: skip


def test_a_flag_has_no_opposite_unless_it_says_so() -> None:
    assert not parsed("--higher", "train.py").dry_run and parsed("--higher", "train.py").higher
    with pytest.raises(Exception, match="(?i)no such option: --no-dry-run"):
        parsed("--no-dry-run", "train.py")


def test_a_script_has_to_be_given() -> None:
    with pytest.raises(Exception, match="(?i)missing .*script"):
        parsed("-n", "2")


@dataclass(frozen=True, kw_only=True)
class Dependent:
    workers: int | None = option("Workers.", "-n", metavar="N")
    delay: str | None = option("With -n.", needs="-n N")
    rate: float = option("With -n.", default=1.0, needs="-n N")
    quick: bool = option("Fast.", default=False)
    limit: int | None = option("With --quick.", needs="--quick")


@command
def dependent(context: typer.Context, options: Dependent) -> None:
    """Do it."""


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["-n", "0", "--delay", "1s", "--rate", "2"], None),
        (["--rate", "1.0"], None),
        (["--delay", "1s", "--rate", "2"], "--delay and --rate can be given with -n N only"),
        (["-n", "1", "--limit", "0"], "--limit can be given with --quick only"),
        (["--quick", "--limit", "0"], None),
    ],
)
def test_an_option_may_need_another(words: list[str], error: str | None) -> None:
    app = typer.Typer()
    app.command()(dependent)
    with nullcontext() if error is None else pytest.raises(ConfigurationError, match=f"^{error}$"):
        app(args=words, standalone_mode=False)


def test_options_become_fields_of_the_same_name() -> None:
    @dataclass
    class Other:
        rate: float
        place: str

    assert same_named(Dependent(rate=3.0, limit=7), Other) == {"rate": 3.0}
