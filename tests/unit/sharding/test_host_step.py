"""The optimizer's step on the host: what a step on the device makes of the same numbers, to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from quorate.core.errors import ConfigurationError
from quorate.replica.plain_step import plain_step
from quorate.sharding.boundary import Boundary, HostMemory
from quorate.sharding.host_step import HostStep

NUMBERS = 7 * 33 + 33 + 33 * 5 + 5
KINDS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "momentum": (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}),
    "adamw": (AdamW, {"lr": 1e-2}),
    "fused": (AdamW, {"lr": 1e-2, "fused": True}),
    "foreach": (Adam, {"lr": 1e-2, "foreach": True, "amsgrad": True}),
    "tensor": (Adam, {"lr": torch.tensor(1e-2)}),
}


class Training:
    """A model, its optimizer, and steps of it, on the host or not."""

    def __init__(
        self, kind: str = "adamw", memory: HostMemory | None = None, dtype: torch.dtype = torch.float32, **how: Any
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 5)).to(dtype)
        self.plain, options = KINDS[kind]
        self.optimizer: Any = self.plain(self.model.parameters(), **copy.deepcopy(options))
        self.boundary, self.dtype, self.steps = Boundary(), dtype, 0
        self.host = None if memory is None else HostStep(self.optimizer, self.plain, self.boundary, memory, **how)

    def backward(self) -> Tensor:
        self.steps += 1
        x = torch.randn(9, 7, generator=torch.Generator().manual_seed(self.steps)).to(self.dtype)
        self.optimizer.zero_grad()
        loss: Tensor = self.model(x).square().mean()
        loss.backward()
        return loss

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        elsewhere = None if self.host is None else self.host.step
        return plain_step(self.optimizer, self.plain, closure, elsewhere=elsewhere)

    def train(self, steps: int, between: Callable[[Training], None] | None = None) -> list[Tensor]:
        for _ in range(steps):
            self.backward()
            self.step()
            if between is not None:
                between(self)
        return self.numbers

    @property
    def numbers(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


def equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_the_same_bits(kind: str, where: str, tmp_path: Path) -> None:
    memory = HostMemory(tmp_path if where == "disk" else None)
    training = Training(kind, memory)
    assert equal(training.train(5), Training(kind).train(5))
    kept = [x for state in training.optimizer.state.values() for x in state.values() if x.dim()]
    assert kept and all(memory.holds(x) for x in kept) and not list(tmp_path.iterdir())


def test_what_crosses_in_a_step() -> None:
    """Each gradient to the host, each parameter back; in the first step parameters to the host as well."""
    training, seen = Training(memory=HostMemory()), []

    def look(state: Training) -> None:
        seen.append((state.boundary.to_host_bytes, state.boundary.to_device_bytes))

    training.train(3, look)
    whole = 4 * NUMBERS
    assert seen == [(2 * whole, whole), (3 * whole, 2 * whole), (4 * whole, 3 * whole)]


def written(training: Training) -> None:
    if training.steps == 2:
        training.model[0].weight.data[0] *= 2  # type: ignore[index,operator]


def test_parameters_that_were_written_to_cross_again() -> None:
    training, plain = Training(memory=HostMemory()), Training()
    assert equal(training.train(4, written), plain.train(4, written))
    assert training.boundary.to_host_bytes == 4 * (5 * NUMBERS + 7 * 33)


def test_parameters_without_a_gradient_stay_on_the_device() -> None:
    trainings = Training(memory=HostMemory()), Training()
    for training in trainings:
        training.model[0].requires_grad_(False)
    assert equal(trainings[0].train(3), trainings[1].train(3))
    assert trainings[0].boundary.to_device_bytes == 3 * 4 * (33 * 5 + 5)


def test_options_are_those_of_the_step() -> None:
    def slower(training: Training) -> None:
        training.optimizer.param_groups[0]["lr"] *= 0.5

    assert equal(Training(memory=HostMemory()).train(4, slower), Training().train(4, slower))


def test_a_closure_is_called_once_and_hooks_see_a_step() -> None:
    training, calls = Training(memory=HostMemory()), list[str]()
    training.optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    training.optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    def closure() -> Tensor:
        calls.append("closure")
        return training.backward()

    loss = training.step(closure)
    assert loss.requires_grad and sorted(calls) == ["after", "before", "closure"] and calls[-1] == "after"


def test_16_bits_have_32_on_the_host() -> None:
    """It equals a training in float32 whose parameters are rounded for each pass; half of the bytes cross."""
    training = Training("momentum", HostMemory(), torch.bfloat16)
    masters = [p.detach().float().requires_grad_() for p in training.model.parameters()]
    optimizer = SGD(masters, **KINDS["momentum"][1])
    for _ in range(5):
        training.backward()
        for x, p in zip(masters, training.model.parameters(), strict=True):
            assert p.grad is not None
            x.grad = p.grad.float()
        optimizer.step()
        training.step()
        assert equal(training.numbers, [x.detach().bfloat16() for x in masters])
    kept = [training.optimizer.state[p]["master"] for p in training.model.parameters()]
    assert equal(kept, [x.detach() for x in masters])
    assert training.boundary.to_device_bytes == 5 * 2 * NUMBERS


def test_a_number_that_was_written_goes_before_its_master() -> None:
    training = Training("momentum", HostMemory(), torch.bfloat16)
    training.train(2)
    weight: Any = training.model[0].weight
    master = training.optimizer.state[weight]["master"].clone()
    with torch.no_grad():
        weight[0] = 3.0
    training.optimizer.param_groups[0].update(lr=0.0, momentum=0.0)
    training.train(1)
    after = training.optimizer.state[weight]["master"]
    assert torch.equal(after[1:], master[1:]) and after[0].tolist() == [3.0] * 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_is_loaded_as_it_was(dtype: torch.dtype, tmp_path: Path) -> None:
    """Also into another optimizer, and where what is kept is in files."""
    whole = Training(memory=HostMemory(), dtype=dtype).train(6)
    first = Training(memory=HostMemory(), dtype=dtype)
    first.train(3)
    second = Training(memory=HostMemory(tmp_path), dtype=dtype)
    second.train(1)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    second.steps = 3
    assert equal(second.train(3), whole)


def test_state_goes_on_without_the_host_and_back() -> None:
    trainings = [Training(memory=HostMemory()), Training(), Training(memory=HostMemory())]
    for number, training in enumerate(trainings):
        if number:
            before = trainings[number - 1]
            training.model.load_state_dict(before.model.state_dict())
            training.optimizer.load_state_dict(copy.deepcopy(before.optimizer.state_dict()))
            training.steps = before.steps
        training.train(2)
    assert equal(trainings[-1].numbers, Training().train(6))


def delayed(steps: int, kind: str = "adamw", *, pauses: Sequence[int] = ()) -> list[list[Tensor]]:
    """The parameters after each step, where a step's gradient is seen one step later, but for pauses behind a step."""
    shown, masters = Training(kind), Training(kind)
    steps_shown = []
    for number in range(steps):
        shown.backward()
        shown.model.load_state_dict(masters.model.state_dict())
        for x, p in zip(masters.model.parameters(), shown.model.parameters(), strict=True):
            x.grad = None if p.grad is None else p.grad.clone()
        masters.step()
        masters.optimizer.param_groups[0]["lr"] *= 0.9
        if number in pauses:
            shown.model.load_state_dict(masters.model.state_dict())
        steps_shown.append(shown.numbers)
    return [*steps_shown, masters.numbers]


@pytest.mark.parametrize("kind", ["momentum", "adamw", "fused"])
def test_a_delayed_update_is_one_gradient_behind(kind: str) -> None:
    training = Training(kind, HostMemory(), delays=True)
    shown = []
    for number in range(5):
        training.backward()
        training.step()
        training.optimizer.param_groups[0]["lr"] *= 0.9
        training.optimizer.zero_grad()
        if number == 2:
            training.host.catch_up()  # type: ignore[union-attr]
        shown.append(training.numbers)
        if number == 3:
            assert next(iter(training.optimizer.state_dict()["state"].values())), "it waits for the step under way"
    training.host.catch_up()  # type: ignore[union-attr]
    shown.append(training.numbers)
    wanted = delayed(5, kind, pauses=[2])
    assert [equal(a, b) for a, b in zip(shown, wanted, strict=True)] == [True] * 6
    assert not equal(shown[0], shown[1]) and training.boundary.to_device_bytes == 5 * 4 * NUMBERS


def test_writing_while_a_step_is_under_way_is_refused() -> None:
    training = Training(memory=HostMemory(), delays=True)
    training.train(2, written)
    training.backward()
    with pytest.raises(ConfigurationError, match="while delayed_update was still running the previous step"):
        training.step()


def test_what_a_delayed_step_raises_is_raised_in_the_training() -> None:
    training = Training(memory=HostMemory(), delays=True)
    training.train(1)
    training.optimizer.param_groups[0]["betas"] = "none"
    training.train(1)
    with pytest.raises(ValueError, match="unpack"):
        training.host.catch_up()  # type: ignore[union-attr]
