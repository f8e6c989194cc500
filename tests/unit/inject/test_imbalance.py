"""Injected imbalance: who is late by how much, drawn alike on every worker, and how it is written."""

from __future__ import annotations

import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from quorate.core.durations import Batches, traces
from quorate.core.errors import ConfigurationError
from quorate.inject.imbalance import parse_imbalance


def table(text: str, *, seed: int = 0, size: int = 4, steps: int = 400, base: float = 1.0) -> list[list[float]]:
    """Delays by step, then rank."""
    imbalance = parse_imbalance(text, seed=seed, size=size)
    return [[imbalance.delay(rank, step, base) for rank in range(size)] for step in range(steps)]


def test_one_of_makes_one_worker_late_in_every_step() -> None:
    rows = table("one-of:200ms", steps=2000)
    assert all(sorted(row) == [0.0, 0.0, 0.0, 0.2] for row in rows)
    often = Counter(row.index(0.2) for row in rows)
    assert [often[rank] for rank in range(4)] == pytest.approx([500] * 4, rel=0.15)
    in_a_row = sum(a == b for a, b in pairwise(rows))
    assert in_a_row / 2000 == pytest.approx(0.25, abs=0.05)


def test_several_of_are_different_workers() -> None:
    assert all(sorted(row) == [0.0, 0.2, 0.2, 0.2] for row in table("3-of:200ms"))
    assert table("1-of:200ms") == table("one-of:200ms")
    assert table("one-of:1s", size=1, steps=2) == [[1.0], [1.0]]


def test_a_rank_is_late_by_seconds_or_in_proportion() -> None:
    assert table("rank:3:200ms", steps=2) == [[0.0, 0.0, 0.0, 0.2]] * 2
    assert table("rank:0:x2.5", steps=2, base=0.4) == [[pytest.approx(0.6), 0.0, 0.0, 0.0]] * 2
    assert table("rank:0:x1", steps=1) == [[0.0] * 4]


def test_distributions_are_independent_for_ranks_and_steps() -> None:
    rows = table("lognormal:10ms:0.5", steps=1000)
    assert len({delay for row in rows for delay in row}) == 4000
    assert statistics.median(delay for row in rows for delay in row) == pytest.approx(0.01, rel=0.05)
    ranks = list(zip(*rows, strict=True))
    assert abs(statistics.correlation(ranks[0], ranks[1])) < 0.1
    assert abs(statistics.correlation(ranks[0][1:], ranks[0][:-1])) < 0.1
    assert all(0.005 <= delay <= 0.02 for row in table("uniform:5ms:20ms") for delay in row)
    assert statistics.fmean(row[0] for row in table("normal:10ms:2ms")) == pytest.approx(0.01, rel=0.05)


def test_a_published_trace_is_late_by_what_is_above_its_least() -> None:
    delays = [delay for row in table("trace:ucf101-lstm:x0.1", steps=2000) for delay in row]
    assert 0 <= min(delays) < 0.01
    assert max(delays) <= 0.3209
    assert statistics.fmean(delays) == pytest.approx(0.1034, rel=0.03)


def test_a_file_is_late_by_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "late.jsonl"
    path.write_text("\n".join(f'{{"rank": {rank}, "seconds": {rank}}}' for rank in range(4)))
    assert table(f"trace:{path}", steps=2) == [[0.0, 1.0, 2.0, 3.0]] * 2
    with pytest.raises(ConfigurationError, match="no times of rank 4"):
        parse_imbalance(f"trace:{path}", seed=0, size=5)


def test_sums_add_terms_that_are_drawn_independently() -> None:
    both = table("one-of:200ms+ rank:3:x2 ", base=0.5)
    assert both == [
        [a + b for a, b in zip(*rows, strict=True)]
        for rows in zip(table("one-of:200ms"), table("rank:3:x2", base=0.5), strict=True)
    ]
    twice = [sorted(row) for row in table("one-of:1s+one-of:2s")]
    together = sum(row == [0, 0, 0, 3] for row in twice)
    assert together + sum(row == [0, 0, 1, 2] for row in twice) == len(twice)
    assert together / len(twice) == pytest.approx(0.25, abs=0.08)


def test_exponents_and_file_names_may_have_a_plus(tmp_path: Path) -> None:
    assert len(parse_imbalance("lognormal:1e-2s:1e+0+one-of:1s", seed=0, size=2).terms) == 2
    path = tmp_path / "a+b.txt"
    path.write_text("5\n")
    assert table(f"trace:{path}+rank:0:1s", size=2, steps=1) == [[6.0, 5.0]]


def test_the_seed_decides_and_nothing_else_does() -> None:
    text = "one-of:200ms+lognormal:10ms:0.5+trace:wmt16-transformer"
    forwards = parse_imbalance(text, seed=5, size=3)
    backwards = parse_imbalance(text, seed=5, size=3)
    places = [(rank, step) for rank in range(3) for step in range(20)]
    assert [forwards.delay(*place, 1.0) for place in places] == [
        backwards.delay(*place, 1.0) for place in reversed(places)
    ][::-1]
    assert table(text, seed=5) != table(text, seed=6)


def test_draws_are_not_those_of_virtual_computing_with_the_same_seed() -> None:
    computing = Batches(traces.get("ucf101-lstm"), 5)
    delay = parse_imbalance("trace:ucf101-lstm", seed=5, size=1).delay
    places = range(300)
    related = statistics.correlation([computing(0, s) for s in places], [delay(0, s, 1.0) for s in places])
    assert abs(related) < 0.2


def test_it_gives_the_text_back() -> None:
    assert str(parse_imbalance("one-of:200ms+rank:1:x2", seed=0, size=2)) == "one-of:200ms+rank:1:x2"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", '"" is not an imbalance; write one-of:200ms, 3-of:200ms, rank:3:200ms, rank:3:x2, normal'),
        ("200ms", '"200ms" is not an imbalance'),
        ("one-of", '"one-of" is not an imbalance'),
        ("one-of:200ms+slow:1s", '"slow:1s" is not an imbalance'),
        ("one-of:200ms+", '"200ms\\+" in "one-of:200ms\\+" is not a duration'),
        ("one-of:20", '"20" in "one-of:20" has no unit: 20ms or 20s?'),
        ("one-of:0.2", '"0.2" in "one-of:0.2" has no unit: 0.2ms or 0.2s?'),
        ("one-of:fast", '"fast" in "one-of:fast" is not a duration'),
        ("one-of:-1ms", "is not a duration"),
        ("0-of:1ms", "does not say how many workers are late; write one-of, 2-of"),
        ("two-of:1ms", "does not say how many workers are late"),
        ("5-of:1ms", '"5-of:1ms" needs 5 different workers, but there are 4 workers'),
        ("rank:4:1ms", '"rank:4:1ms" is about rank 4, but there are 4 workers, ranks 0 to 3'),
        ("rank:-1:1ms", '"-1" in "rank:-1:1ms" is not a rank'),
        ("rank:a:1ms", '"a" in "rank:a:1ms" is not a rank'),
        ("rank:1:x0.5", "would make a worker faster"),
        ("rank:1:xx", "is not a factor"),
        ("uniform:20ms:5ms", "uniform needs a smaller and then a greater number"),
        ("lognormal:10ms:x", "is not a number"),
        ("trace:ucf", "no trace of this name. Known: cloud-resnet50, ucf101-lstm, wmt16-transformer"),
    ],
)
def test_wrong_imbalance_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        parse_imbalance(text, seed=0, size=4)


@pytest.mark.parametrize(("text", "end"), [("rank:1:1ms", "one worker, rank 0$"), ("2-of:1ms", "there is one worker$")])
def test_one_worker_is_said_in_the_singular(text: str, end: str) -> None:
    with pytest.raises(ConfigurationError, match=end):
        parse_imbalance(text, seed=0, size=1)
