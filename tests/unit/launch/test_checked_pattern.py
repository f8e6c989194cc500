"""A pattern whose loss is held against that of dense attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quorate
from quorate.attention import Dense, Window
from quorate.core.errors import ConfigurationError
from quorate.launch.worker import checked_pattern
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined


def loss_of(pattern: quorate.CheckedPattern, worse: float) -> Any:
    """A loss that depends on the pattern, and on drawn numbers."""

    def loss() -> torch.Tensor:
        noise = float(torch.rand(()))
        return torch.tensor(2.0 + noise + (0.0 if isinstance(pattern.in_force, Dense) else worse))

    return loss


def test_a_pattern_thins_out_and_is_saved() -> None:
    pattern = quorate.CheckedPattern({0: "dense", 2: "window:width=9", 4: "window"}, every=100)
    widths = []
    for _ in range(5):
        widths.append(getattr(pattern.in_force, "width", None))
        pattern.step(lambda: 1.0)
    assert widths == [None, None, 9, 9, 3]
    resumed = quorate.CheckedPattern({0: "dense", 2: "window:width=9", 4: "window"})
    resumed.load_state_dict(pattern.state_dict())
    assert resumed.in_force == Window(width=3)
    with pattern.dense():
        assert pattern.in_force == Dense()


def test_a_check_draws_no_numbers_of_the_training() -> None:
    pattern = quorate.CheckedPattern("window", every=1, limit=None)
    state = torch.get_rng_state()
    assert pattern.step(loss_of(pattern, 0.5))
    assert torch.equal(torch.get_rng_state(), state)
    assert pattern.gap == pytest.approx(0.5 / (2.0 + float(torch.rand(()))))


def test_attention_follows_it() -> None:
    q = torch.randn(1, 1, 200, 4)
    pattern = quorate.CheckedPattern("window:width=1")
    network = quorate.attention.SparseMultiheadAttention(4, 1, pattern=pattern, batch_first=True)
    x = q[:, 0]
    sparse, through = quorate.sparse_attention(q, q, q, pattern), network(x, x, x)[0]
    assert torch.equal(sparse, quorate.sparse_attention(q, q, q, Window(width=1)))
    pattern.is_taken_back = True
    assert torch.equal(quorate.sparse_attention(q, q, q, pattern), quorate.sparse_attention(q, q, q, "dense"))
    assert not torch.equal(network(x, x, x)[0], through)


@pytest.mark.parametrize(("worse", "is_taken_back"), [((0.1, 0.1), True), ((0.3, -0.3), False)])
def test_all_workers_take_it_back_together(
    worse: tuple[float, float], is_taken_back: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the mean gap of all; one worker alone would have decided otherwise."""
    logged: list[dict[str, float]] = []
    monkeypatch.setattr(checked_pattern, "log", lambda **values: logged.append(values))

    def task(world: Any) -> tuple[bool, float]:
        pattern = quorate.CheckedPattern("window", every=3, limit=0.02)
        counts = [pattern.step(loss_of(pattern, worse[world.rank])) for _ in range(7)]
        assert counts == [True, True] + [not is_taken_back] * 5
        assert pattern.gap is not None
        return pattern.is_taken_back, pattern.gap

    ends = VirtualWorld(2).run(joined(task))
    assert ends[0] == ends[1]
    assert ends[0][0] == is_taken_back
    assert len(logged) == (2 if is_taken_back else 4), "after it is taken back nothing is checked"
    assert logged[0]["attention_gap"] == ends[0][1]
    assert ("sparse attention is taken back after step 3" in capfd.readouterr().err) == is_taken_back


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: quorate.CheckedPattern({5: "window"}), "the first must begin at step 0"),
        (lambda: quorate.CheckedPattern("window", every=0), "every is 0"),
        (lambda: quorate.CheckedPattern("window", limit=-0.1), "limit is -0.1"),
        (lambda: quorate.CheckedPattern("windy"), 'unknown attention pattern "windy"'),
    ],
)
def test_wrong_arguments(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()
