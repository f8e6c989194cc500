"""`quorate explain TOPOLOGY -n N`, and the list of topologies."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from quorate.cli.pictures import drawn, lines
from quorate.cli.verbs import app
from quorate.core.errors import ConfigurationError


def said(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_a_ring_is_drawn_and_measured() -> None:
    text = "\n".join(lines(drawn("ring", 6), 80))
    assert "  0 \\*...*\n  1 *\\*...\n" in text
    assert "edges lead both ways" in text
    assert "spectral gap, per round        0.3333" in text
    assert "exact mean                     never" in text
    assert "messages of a worker           2 a round" in text


def test_rounds_of_a_cycle_are_numbered() -> None:
    one = drawn("one-peer-exponential", 8)
    text = "\n".join(lines(one, 80))
    assert "  0 \\12.3...\n" in text
    assert one.exact_after == one.cycle == 3
    assert "exact mean                     after 3 rounds" in text


def test_many_workers_are_measured_and_not_drawn() -> None:
    assert "\n  0 " not in "\n".join(lines(drawn("complete", 65), 80))


def test_the_command_draws_settings_and_gives_json() -> None:
    found = said("explain", "random:degree=3", "-n", "8")
    assert found.exit_code == 0
    assert "random (topology)" in found.output
    assert "among 8 workers" in found.output
    (card,) = json.loads(said("explain", "random:degree=3", "-n", "8", "--json").output)
    assert card["graph"]["workers"] == 8
    given = [sum(w for a, _, w in card["graph"]["edges"][0] if a == rank) for rank in range(8)]
    assert given == pytest.approx([1.0] * 8)


def test_topologies_are_listed() -> None:
    names = json.loads(said("list", "topologies", "--json").output)["topologies"]
    assert {"ring", "complete", "file", "one-peer-exponential"} <= names.keys()
    assert all(names.values())


@pytest.mark.parametrize("workers", [0, 2000])
def test_numbers_of_workers_that_cannot_be(workers: int) -> None:
    with pytest.raises(ConfigurationError, match=f"-n is {workers}"):
        drawn("ring", workers)


def test_what_is_no_topology_is_not_drawn() -> None:
    found = said("explain", "quorum", "-n", "4")
    assert isinstance(found.exception, ConfigurationError)
