"""The end of the outermost backward is told once, whatever runs inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from quorate.observe.backward import observe_backward
from quorate.observe.step_observer import NEVER, StepObserver
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld


class Told(StepObserver):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def backward_begins(self) -> None:
        self.heard.append("begins")

    def forward_ended(self, losses: object) -> None:
        assert isinstance(losses, torch.Tensor)
        self.heard.append("forward ended")

    def backward_ended(self) -> None:
        self.heard.append("ended")


def heard(passes: Callable[[Told], object]) -> list[str]:
    """Return the calls of an observer while `passes` run."""

    def task(wire: object) -> list[str]:
        observer = Told()
        observe_backward(current.enter(wire, thread_only=True)).add(observer)  # type: ignore[arg-type]
        passes(observer)
        return observer.heard

    return VirtualWorld(1).run(task)[0]


@pytest.mark.parametrize("kind", ["none", "non-reentrant", "reentrant"])
def test_once_per_outermost_backward(kind: str) -> None:
    """In two backward passes through three segments."""

    def passes(observer: Told) -> None:
        layers = [nn.Linear(3, 3) for _ in range(3)]
        for _ in range(2):
            x = torch.ones(2, 3, requires_grad=True)
            for layer in layers:
                x = layer(x) if kind == "none" else checkpoint(layer, x, use_reentrant=kind == "reentrant")
            x.sum().backward()

    assert heard(passes) == ["begins", "forward ended", "ended"] * 2


def test_a_backward_inside_a_hook_is_part_of_the_outer_one() -> None:
    y = torch.ones(2, requires_grad=True)

    def inner(grad: torch.Tensor) -> None:
        with torch.enable_grad():
            y.sum().backward()

    def passes(observer: Told) -> None:
        x = torch.ones(2, requires_grad=True)
        x.register_hook(inner)
        x.sum().backward()

    assert heard(passes) == ["begins", "forward ended", "ended"]
    assert y.grad is not None


def test_a_backward_that_raises_is_not_told_as_ended() -> None:
    def passes(observer: Told) -> None:
        with pytest.raises(RuntimeError):
            torch.ones(1).sum().backward()
        torch.ones(1, requires_grad=True).sum().backward()

    assert heard(passes) == ["begins", "forward ended", "begins", "forward ended", "ended"]


def test_an_observer_with_nothing_to_do_is_not_called() -> None:
    def passes(observer: Told) -> None:
        for due in (NEVER, 0, NEVER):
            observer.due = due
            torch.ones(1, requires_grad=True).sum().backward()

    assert heard(passes) == ["begins", "forward ended", "ended"]


@pytest.fixture(autouse=True)
def _no_place_is_left() -> Iterator[None]:
    yield
    current.forget(thread_only=True)
