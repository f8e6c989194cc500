"""Injected pace: how long a step takes at least, and how it is written."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from quorate.core.errors import ConfigurationError
from quorate.inject.imbalance import parse_imbalance
from quorate.inject.pace import parse_pace


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("280ms", 0.28),
        ("0.5s", 0.5),
        ("50us/token", 0.05),
        ("2ms+50us/token", 0.052),
        ("50us/token + 2ms", 0.052),
        ("1ms+1ms", 0.002),
        ("1e-3s+1e+0ms", 0.002),
    ],
)
def test_durations_and_durations_per_token(text: str, seconds: float) -> None:
    assert parse_pace(text, seed=0, size=2).seconds(1, 7, 1000) == pytest.approx(seconds)


def test_tokens_are_needed_only_where_they_count() -> None:
    assert parse_pace("280ms", seed=0, size=1).seconds(0, 0, None) == 0.28
    paced = parse_pace("2ms+50us/token", seed=0, size=1)
    assert paced.needs_tokens
    with pytest.raises(ConfigurationError, match="counts tokens, but the batches do not say .* attribute `tokens`"):
        paced.seconds(0, 0, None)
    assert paced.seconds(0, 0, 0) == 0.002


def test_published_traces_are_drawn_for_every_rank_and_step() -> None:
    paced = parse_pace("trace:wmt16-transformer:x0.1", seed=1, size=4)
    assert not paced.needs_tokens
    seconds = [paced.seconds(rank, step, None) for rank in range(4) for step in range(2000)]
    assert statistics.fmean(seconds) == pytest.approx(0.0475, rel=0.02)
    assert min(seconds) >= 0.0179
    assert len(set(seconds)) == 8000
    again = parse_pace("trace:wmt16-transformer:x0.1", seed=1, size=4)
    assert again.seconds(3, 5, None) == paced.seconds(3, 5, None)
    other = parse_pace("trace:wmt16-transformer:x0.1", seed=2, size=4)
    assert other.seconds(3, 5, None) != paced.seconds(3, 5, None)


def test_two_traces_and_the_imbalance_are_drawn_independently() -> None:
    both = parse_pace("trace:ucf101-lstm+trace:ucf101-lstm", seed=0, size=1)
    first = parse_pace("trace:ucf101-lstm", seed=0, size=1)
    imbalance = parse_imbalance("trace:ucf101-lstm", seed=0, size=1)
    seconds = [first.seconds(0, step, None) for step in range(300)]
    others = [both.seconds(0, step, None) - a for step, a in enumerate(seconds)]
    late = [imbalance.delay(0, step, 1.0) for step in range(300)]
    assert abs(statistics.correlation(seconds, others)) < 0.2
    assert abs(statistics.correlation(seconds, late)) < 0.2


def test_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "pace.txt"
    path.write_text("1\n2\n")
    paced = parse_pace(f"trace:{path}+1s", seed=0, size=2)
    assert [paced.seconds(0, step, None) for step in range(3)] == [2.0, 3.0, 2.0]
    path.write_text('{"rank": 0, "seconds": 1}\n')
    with pytest.raises(ConfigurationError, match="no times of rank 1, only of rank 0"):
        parse_pace(f"trace:{path}", seed=0, size=2)


def test_it_gives_the_text_back() -> None:
    assert str(parse_pace("2ms+50us/token", seed=0, size=1)) == "2ms+50us/token"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", '"" is not a minimum step time; write 280ms, 50us/token, trace:FILE or trace:NAME'),
        ("fast", '"fast" is not a minimum step time'),
        ("one-of:200ms", '"one-of:200ms" is not a minimum step time'),
        ("-1ms", '"-1ms" is not a minimum step time'),
        ("10week", '"10week" is not a duration'),
        ("50us/word", '"50us/word" is not a duration'),
        ("2ms+5x/token", '"5x" in "2ms\\+5x/token" is not a duration'),
        ("trace:slow", "no file slow, and no trace of this name"),
        ("trace:", '"trace:" is not a minimum step time'),
    ],
)
def test_wrong_paces_are_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        parse_pace(text, seed=0, size=2)
