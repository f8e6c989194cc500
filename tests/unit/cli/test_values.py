"""What is written after options, as values."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.cli.options import settings_from, strategy_from
from quorate.cli.verbs import status_of
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import bytes_per_second_from, seconds_from


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("1e-3", 1e-3),
        ("true", True),
        ("majority", "majority"),
        ("'3'", "3"),
        ('"a b"', "a b"),
        ("[1, 2]", [1, 2]),
        ("", ""),
        ("a=b", "a=b"),
        ("1\nother = 2", "1\nother = 2"),
        ("2026-01-31", "2026-01-31"),
        ("{a = 1}", "{a = 1}"),
        ("True", "True"),
    ],
)
def test_a_setting_is_what_toml_makes_of_it_or_text(text: str, value: object) -> None:
    parsed = settings_from([f"key={text}"])["key"]
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("quorum:grace=50ms,patience=2s", {"grace": 0.05, "patience": 2.0}),
        ("quorum:grace=0,wait_for=2", {"grace": 0.0, "wait_for": 2}),
        ("sgp:patience=null", {"patience": "null"}),
        ("eager-solo:grace='1min'", {"grace": 60.0}),
        ("decoupled-diloco:grace=5s,sync_every=4", {"grace": 5.0, "sync_every": 4}),
        ("own.py:grace=5", {"grace": 5}),
    ],
)
def test_durations_among_the_settings_have_a_unit(text: str, settings: dict[str, object]) -> None:
    assert strategy_from(text)[1] == settings


@pytest.mark.parametrize(
    "words", [["--strategy", "quorum:grace=50"], ["--strategy", "quorum", "--set", "grace=50"], ["--set", "grace=50"]]
)
def test_a_duration_without_a_unit_is_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import quorate\nquorate.distribute(optimizer, model, 'eager-solo')\n")
    assert status_of(["run", *words, "--dry-run", "train.py"]) == 2
    assert capsys.readouterr().err == 'quorate: "50" in "grace=50" has no unit: 50ms or 50s?\n'


def test_a_card_shows_durations_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["explain", "quorum"]) == 0
    shown = capsys.readouterr().out
    assert "  grace: duration, such as 50ms; default: 0.05s\n" in shown and "default: 10.0s" in shown


def test_names_may_be_written_with_dashes_and_the_last_one_counts() -> None:
    assert settings_from(["wait-for=1", "b=2", "wait_for=3"]) == {"wait_for": 3, "b": 2}


@pytest.mark.parametrize("written", ["key", "=3", " =3"])
def test_what_is_no_setting_is_refused(written: str) -> None:
    with pytest.raises(ConfigurationError, match="--set takes key=value"):
        settings_from([written])


@pytest.mark.parametrize(("text", "seconds"), [("50us", 50e-6), ("1.5ms", 1.5e-3), ("2s", 2.0), ("1e-3s", 1e-3)])
def test_durations(text: str, seconds: float) -> None:
    assert seconds_from(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "rate"), [("10Gbit", 1.25e9), ("10Gbit/s", 1.25e9), ("1.25GB", 1.25e9), ("100Mbit", 12.5e6), ("0", 0.0)]
)
def test_bandwidths(text: str, rate: float) -> None:
    assert bytes_per_second_from(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "fast", "3 minutes", "-1s", "1.2.3s", "10Gb"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a duration"):
        seconds_from(text)
    with pytest.raises(ConfigurationError, match="is not a bandwidth"):
        bytes_per_second_from(text)


@pytest.mark.parametrize(
    ("text", "name", "settings"),
    [
        ("local-sgd", "local-sgd", {}),
        ("local-sgd:sync_every=8", "local-sgd", {"sync_every": 8}),
        (
            'local-sgd:sync-every="4096 examples",momentum=reset',
            "local-sgd",
            {"sync_every": "4096 examples", "momentum": "reset"},
        ),
        ("d-psgd:topology=random:degree=3,seed=1", "d-psgd", {"topology": "random:degree=3", "seed": 1}),
    ],
)
def test_a_strategy_with_its_settings(text: str, name: str, settings: dict[str, object]) -> None:
    assert strategy_from(text) == (name, settings)


def test_settings_of_a_strategy_that_are_none() -> None:
    with pytest.raises(ConfigurationError, match='--strategy "local-sgd:8": settings are written key=value, not "8"'):
        strategy_from("local-sgd:8")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["plan", "-n", "2", "--memory", "24", "--bandwidth", "10Gbit", "x.py"], '"24" has no unit: 24GB or 24GiB?'),
        (["plan", "-n", "2", "--memory", "1GB", "--bandwidth", "10", "x.py"], '"10" has no unit: 10Gbit or 10GB?'),
        (["doctor", "--memory", "--fits", "24", "x.py"], '"24" has no unit: 24GB or 24GiB?'),
        (["run", "--virtual", "2", "--bandwidth", "10", "x.py"], '"10" has no unit: 10Gbit or 10GB?'),
        (["run", "--virtual", "2", "--latency", "3", "x.py"], '"3" has no unit: 3ms or 3s?'),
        (["simulate", "--network", "50us:10"], '"10" has no unit: 10Gbit or 10GB?'),
        (["join", "x", "--timeout", "3"], '"3" in "--timeout 3" has no unit: 3ms or 3s?'),
    ],
)
def test_a_number_without_a_unit_is_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(words) == 2
    assert capsys.readouterr().err == f"quorate: {sentence}\n"
