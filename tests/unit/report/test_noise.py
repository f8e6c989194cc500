"""Gradient noise in figures, and in words."""

from __future__ import annotations

import pytest

from quorate.records.rows import Noise, Step
from quorate.report.page import page
from quorate.report.topics.noise import advice, noise_figures, noise_summary
from tests.support.made_summaries import made_summary
from tests.support.parsed_pages import parsed


def made(step: int, signal: float, noise: float = 8.0, optimizer: str = "1", gradients: int = 4) -> Noise:
    return Noise(
        step=step, time=100.0 + step, optimizer=optimizer, gradients=gradients, own=10.0, mean=4.0, signal=signal,
        noise=noise,
    )  # fmt: skip


def step(examples: int | None) -> Step:
    return Step(step=1, optimizer="1", round=1, begin=0.0, arrive=1.0, end=2.0, examples=examples)


def test_the_end_of_all_runs_together_counts() -> None:
    rows = [made(16, 4.0), made(32, 1.0), made(32, 9.0, optimizer="2"), made(48, 2.0), made(64, -1.0), made(80, 1.0)]
    first = noise_figures(rows, [step(32), step(None), step(32), step(8)], lambda time: time - 100.0)
    other = noise_figures([made(16, 3.0)], [], float)
    assert first is not None and other is not None and noise_figures([], [], float) is None
    assert [(point.seconds, point.scale) for point in first.points] == [(16, 2.0), (32, 8.0), (48, 4.0), (80, 8.0)]
    noise = noise_summary([first, other])
    assert noise is not None and noise_summary([]) is None
    assert (noise.count, noise.gradients, noise.examples, noise.scale) == (6, 4.0, 32.0, 4.0)
    assert (noise.step_factor, noise.example_factor, noise.gain) == (2.0, 2.0, pytest.approx(2 / 1.5))
    assert noise.diversity == 10 / (4 * 4)
    assert noise.advice.startswith("6 measurements are too few to judge the batch of ")
    many = noise_summary([first, other, other, other, other])
    assert many is not None and many.count == 9 and "; the batch of 128 examples takes" in many.advice
    many = noise_summary([first, first])
    assert many is not None and many.advice.endswith("more workers are worth having")


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (None, "no signal is seen"),
        (100.0, "doubling the workers would save 48% of the steps: more workers are worth having"),
        (4.0, "doubling the workers would save 25% of the steps: more workers bring diminishing returns"),
        (0.4, "doubling the workers would save 4.5% of the steps: more workers bring almost nothing"),
        (0.0, "about 0 gradients; the batch of 4.00 gradients takes 1.00 times the minimum number of steps; doubling"),
    ],
)
def test_what_follows_in_words(scale: float | None, words: str) -> None:
    assert words in advice(scale, 4.0, None)


def test_it_is_on_the_page() -> None:
    figures = noise_figures([made(16 * n, 4.0 / n) for n in range(1, 9)], [step(32)], float)
    few = noise_figures([made(16 * n, 4.0 / n) for n in range(1, 6)], [step(32)], float)
    assert figures is not None and few is not None
    summary = made_summary()
    arms = [arm.model_copy(update={"noise": noise_summary([figures])}) for arm in summary.arms[:2]]
    root = parsed(page(summary.model_copy(update={"arms": (*arms, summary.arms[2])})))
    section = root.one("section", id="noise")
    assert "more workers are worth having" in section.text and "512 examples" in section.text
    assert section.all("svg")
    arms = [arm.model_copy(update={"noise": noise_summary([few])}) for arm in summary.arms[:2]]
    text = parsed(page(summary.model_copy(update={"arms": (*arms, summary.arms[2])}))).one("section", id="noise").text
    assert "5 measurements are too few" in text and "too few measurements" in text and "320 examples" not in text
