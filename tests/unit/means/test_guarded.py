"""The watch over ordinary means: what is absurd is left out of them, by all alike; else nothing changes, to the bit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from tests.support.scene import Scene, Trainer, ones, parameters, zeros

SIZE = 5


Wrong = Callable[[Tensor], Tensor]


def ends(wrong: Wrong | None = None, steps: int = 30, dies: int = -1, **settings: Any) -> list[Tensor]:
    """The parameters at the end; rank 3's gradients are what `wrong` makes of them from the fifth step on, and rank
    `dies` dies before the seventh."""

    def begin(trainer: Trainer) -> None:
        for p in trainer.model.parameters():
            if wrong is not None and trainer.rank == 3:
                p.register_hook(lambda g: wrong(g) if trainer.step >= 4 else g)

    chosen = {"strategy": "all-reduce", "model": (4, 8, 1), "heavy": 0.9, "steps": steps, **settings}
    return list(Scene(size=SIZE, dies={dies: 6}, begin=begin, **chosen).survivors(parameters).values())


@pytest.mark.parametrize("on_death", ["stop", "continue"])
def test_where_nobody_is_absurd_nothing_changes(on_death: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain = ends(on_death=on_death)
    assert torch.equal(ends(on_death=on_death, on_anomaly="skip")[0], plain[0])
    assert "absurd" not in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [lambda g: 1e5 * g, lambda g: torch.full_like(g, torch.nan), lambda g: g + 1e6])
@pytest.mark.parametrize(("on_death", "dies"), [("stop", -1), ("continue", -1), ("continue", 1)])
def test_who_is_absurd_is_left_out_of_the_mean(
    wrong: Callable[[Tensor], Tensor], on_death: str, dies: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parameters are near those of correct training, and far from those of training with absurd gradients."""
    guarded = ends(wrong, 12, dies, on_death=on_death, on_anomaly="skip", on_nonfinite="ignore")
    assert all(torch.equal(parameters, guarded[0]) for parameters in guarded)
    broken = ends(lambda g: 1e6 * g, 12, dies, on_death=on_death, on_nonfinite="ignore")
    free = ends(None, 12, dies, on_death=on_death)
    assert (guarded[0] - free[0]).abs().max() < 0.5 and not (broken[0] - free[0]).abs().max() < 100
    assert "quorate: rank 3's gradient in update 5 is far out of proportion to the other gradients; it is left out" in (
        capsys.readouterr().err
    )


def test_the_mean_is_that_of_the_others() -> None:
    """One step with a gradient of 1 from each: the mean without the absurd one is 1, and not 4/5."""
    loss = lambda trainer: ones(trainer) * (1e6 if trainer.rank == 3 else 1.0)  # noqa: E731
    scene = Scene(size=SIZE, model=zeros(), rate=1.0, steps=1, loss=loss, on_anomaly="skip")
    assert scene.ends() == [-1.0] * SIZE


def test_it_may_only_be_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert torch.equal(ends(lambda g: 1000 * g, 8, on_anomaly="warn")[0], ends(lambda g: 1000 * g, 8)[0])
    lines = [line for line in capsys.readouterr().err.splitlines() if "it counts like any other" in line]
    assert (
        sum("rank 3's gradient" in line for line in lines) == 1
    )  # it breaks the training, and with it others' gradients


def test_after_many_times_the_worker_is_to_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    ends(lambda g: 10000 * g, on_anomaly="skip")
    said = capsys.readouterr().err
    assert said.count("it is left out") == 1
    # A gradient that is near 0 for once is not absurd.
    assert (
        len(re.findall(r"quorate: rank 3's gradients were absurd in 20 of 2\d updates; look at that worker, or", said))
        == 1
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strategy": "quorum"}, 'on_anomaly="skip" cannot be combined with quorum'),
        ({"strategy": "local-sgd"}, 'on_anomaly="skip" cannot be combined with local-sgd'),
        ({"reduce": "median"}, "a rule finds what is wrong by itself"),
        ({"compress": "half"}, "watches plain means"),
        ({"on_anomaly": "stop"}, "on_anomaly"),
    ],
)
def test_what_it_does_not_go_with(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ends(**{"on_anomaly": "skip", **settings})
