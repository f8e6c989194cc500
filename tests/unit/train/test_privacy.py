"""The privacy loss of a client in rounds with noise."""

from __future__ import annotations

import sys

import pytest

import quorate
from quorate.core.errors import ConfigurationError, MissingExtra


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": -1, "sampled": 0.1, "noise": 1.0}, "rounds must be at least 0"),
        ({"rounds": 1, "sampled": 0.0, "noise": 1.0}, "sampled above 0 and at most 1"),
        ({"rounds": 1, "sampled": 0.1, "noise": 0.0}, "noise above 0"),
        ({"rounds": 1, "sampled": 0.1, "noise": 1.0, "delta": 1.0}, "delta between 0 and 1"),
        ({"sampled": 0.1, "noise": 1.0}, "missing a required argument: 'rounds'"),
    ],
)
def test_numbers_that_cannot_be_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        quorate.privacy_spent(**settings)  # type: ignore[arg-type]


def test_without_the_accountant_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingExtra, match="needs dp-accounting; install it with: pip install"):
        quorate.privacy_spent(rounds=10, sampled=0.1, noise=1.0)


def test_more_rounds_and_less_noise_give_away_more() -> None:
    pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
    usual = {"rounds": 100, "sampled": 0.01, "noise": 1.0}
    spent = quorate.privacy_spent(**usual)  # type: ignore[arg-type]
    assert 0.4 < spent < 3.0
    assert quorate.privacy_spent(**{**usual, "rounds": 1000}) > spent  # type: ignore[arg-type]
    assert quorate.privacy_spent(**{**usual, "noise": 0.7}) > spent  # type: ignore[arg-type]
    assert quorate.privacy_spent(**{**usual, "sampled": 0.05}) > spent  # type: ignore[arg-type]
    assert quorate.privacy_spent(rounds=0, sampled=0.1, noise=1.0) == 0.0


def test_where_all_take_part_it_is_the_gaussian_mechanism() -> None:
    """Rényi divergence alpha T / (2 z^2) of T rounds, turned into epsilon by the plain bound."""
    pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
    from math import log, sqrt

    z, rounds, delta = 4.0, 10, 1e-5
    plain = rounds / (2 * z**2) + sqrt(2 * rounds * log(1 / delta)) / z
    assert 0.7 * plain < quorate.privacy_spent(rounds=rounds, sampled=1.0, noise=z, delta=delta) <= plain
