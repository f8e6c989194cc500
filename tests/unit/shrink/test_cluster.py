"""Weights that share values: k-means, the gradients of the values, trainings, checkpoints, and wrong input."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.replica.forms import forms_in, give_forms
from quorate.replica.groups import KINDS, clustered, shared
from tests.support.scene import Scene, Trainer, net, virtual

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def test_k_means_of_few_values_finds_them() -> None:
    values = torch.tensor([-1.0, 0.25, 2.0])
    weight = values[torch.randint(3, (7, 9), generator=torch.Generator().manual_seed(0))]
    weight[2:4] = 0.0
    found, groups = clustered(weight, 16)
    assert torch.equal(found, values) and torch.equal(shared(found, groups), weight)
    assert not groups[2:4].any() and bool(groups[:2].all())


def test_k_means_ends_at_a_local_optimum() -> None:
    """Each value is the mean of its group, and each number is in the group of the nearest value."""
    weight = torch.randn(40, 50, generator=torch.Generator().manual_seed(0))
    values, groups = clustered(weight, 16)
    assert len(values) == 16 and bool((values.diff() > 0).all())
    for place, value in enumerate(values, 1):
        assert float(weight[groups == place].mean()) == pytest.approx(float(value), abs=1e-5)
    nearest = (weight[..., None] - values).abs().argmin(-1) + 1
    assert float((nearest == groups).float().mean()) > 0.999
    uniform = torch.linspace(float(weight.min()), float(weight.max()), 16)
    of_uniform = (weight[..., None] - uniform).abs().min(-1)[0].square().mean()
    assert (weight - shared(values, groups)).square().mean() < of_uniform


@pytest.mark.parametrize("weight", [torch.zeros(3, 4), torch.ones(3, 4), torch.tensor([[1.0, 2.0], [0.0, 2.0]])])
def test_few_numbers(weight: torch.Tensor) -> None:
    assert torch.equal(shared(*clustered(weight, 16)), weight)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_compute_with_shared_values(kind: Any) -> None:
    torch.manual_seed(0)
    sizes = {nn.Embedding: (11, 4), nn.Linear: (6, 4), nn.LSTM: (6, 4), nn.GRU: (6, 4)}
    layer = kind(*sizes.get(kind, (3, 4, 2)))
    shape = (2, 3, *([5] * int(kind.__name__[4]))) if kind.__name__.startswith("Conv") else (2, 5, 6)
    x = torch.randint(11, (2, 5)) if kind is nn.Embedding else torch.randn(shape)
    counts = quorate.shrink.cluster(layer, 4)
    assert set(counts.values()) == {4}
    y = layer(x)
    (y[0] if isinstance(y, tuple) else y).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())
    plain = kind(*sizes.get(kind, (3, 4, 2)))
    weights = {name: getattr(layer, name).detach() for name in plain._parameters}
    plain.load_state_dict(weights)
    assert torch.allclose(plain(x)[0], y[0], atol=1e-6)
    fresh = kind(*sizes.get(kind, (3, 4, 2)))
    assert set(give_forms(fresh, forms_in(layer.state_dict()))) == set(counts)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh(x)[0], y[0])


def test_the_gradient_of_a_value_is_the_mean_of_its_group() -> None:
    layer = nn.Linear(30, 20)
    quorate.shrink.cluster(layer, 5)
    weight = layer.weight.detach().clone().requires_grad_()
    x = torch.randn(8, 30)
    layer(x).square().sum().backward()
    nn.functional.linear(x, weight, layer.bias.detach()).square().sum().backward()
    assert weight.grad is not None and layer.weight_values.grad is not None
    for place in range(5):
        of_group = weight.grad[layer.weight_groups == place + 1].mean()
        assert float(layer.weight_values.grad[place]) == pytest.approx(float(of_group), rel=1e-4, abs=1e-3)


def test_a_step_is_the_mean_of_the_steps_of_the_group() -> None:
    """The projection of SGD's steps on the full weight, with momentum and weight decay, at the same learning rate."""
    layer, x = nn.Linear(30, 20), torch.randn(8, 30)
    quorate.shrink.cluster(layer, 5)
    full = layer.weight.detach().clone().requires_grad_()
    groups = [layer.weight_groups == place + 1 for place in range(5)]
    ours, plain = (torch.optim.SGD([p], lr=0.01, momentum=0.9, weight_decay=0.1) for p in (layer.weight_values, full))
    for _ in range(3):
        ours.zero_grad()
        plain.zero_grad()
        nn.functional.linear(x, layer.weight).square().mean().backward()
        nn.functional.linear(x, full).square().mean().backward()
        ours.step()
        plain.step()
        with torch.no_grad():
            for group in groups:
                full[group] = full[group].mean()
        assert torch.allclose(layer.weight, full, atol=1e-6)


def clustering(trainer: Trainer) -> None:
    if trainer.step == 5:
        trainer.seen.append(quorate.shrink.cluster(trainer.optimizer, 4))


def loss(trainer: Trainer) -> torch.Tensor:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * trainer.step + trainer.rank))
    return (trainer.model(x) - x[:, :3]).square().mean()


def scene(name: str = "all-reduce", **fields: Any) -> Scene:
    given: dict[str, Any] = {"model": lambda: net(6, 8, 8, 3), "make": SGD, "loss": loss, "before": clustering}
    return Scene(name, 3, **{**given, "steps": 12, **fields})


@pytest.mark.parametrize("name", ["all-reduce", "diloco", "quorum", "d-psgd", "parameter-server"])
def test_all_workers_share_the_same_values(name: str) -> None:
    trainers = scene(name).run()
    assert trainers[0].seen == [{"0.weight": 4, "2.weight": 4, "4.weight": 4}]
    assert all(torch.equal(trainer.parameters, trainers[0].parameters) for trainer in trainers)
    groups = [trainer.model[2].weight_groups for trainer in trainers]
    assert torch.equal(groups[0], groups[2]) and len(groups[0].unique()) == 4


def test_a_guard_takes_the_change_back() -> None:
    """Then the training has the bits of one without it."""

    def guarded(trainer: Trainer) -> None:
        if trainer.step == 5:
            losses = iter([1.0, 1.4])
            trainer.seen.append(quorate.shrink.cluster(trainer.optimizer, 4, evaluate=lambda: next(losses), guard=0.3))

    trainers = scene(before=guarded).run()
    assert trainers[0].seen == [{}]
    assert torch.equal(trainers[0].parameters, scene(before=lambda t: None).run()[0].parameters)


def test_few_numbers_travel() -> None:
    """4 of each of three weights, and 19 biases, where 147 numbers did."""
    sent: dict[int, int] = {}

    def after(trainer: Trainer) -> None:
        sent[trainer.step] = trainer.bytes_out

    trainers = scene(after=after).run()
    assert len(trainers[0].parameters) == 3 * 4 + 19
    assert sent[12] - sent[11] < (sent[5] - sent[4]) / 2


def test_momentum_goes_on_as_means_over_groups() -> None:
    def task(world: quorate.World) -> None:
        layer = nn.Linear(6, 4)
        optimizer: Any = quorate.distribute(SGD(layer.parameters()), layer)
        layer(torch.ones(1, 6)).square().sum().backward()
        optimizer.step()
        before = optimizer.state[layer.weight]["momentum_buffer"].clone()
        quorate.shrink.cluster(optimizer, 3)
        now = optimizer.state[layer.weight_values]["momentum_buffer"]
        means = [before[layer.weight_groups == place].mean() for place in (1, 2, 3)]
        assert torch.allclose(now, torch.stack(means))

    virtual(1, task)


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    whole = scene().run()[0]
    scene(steps=8, saves=[8], root=tmp_path).run()
    rest = scene(root=tmp_path, loads=True).run()[0]
    assert torch.equal(rest.parameters, whole.parameters)
    assert torch.equal(rest.model[2].weight_groups, whole.model[2].weight_groups)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"groups": 1}, "groups is a whole number from 2 to 255, not 1"),
        ({"groups": 256}, "groups is a whole number from 2 to 255, not 256"),
        ({"layers": ["9"]}, 'layers has "9", and the layers that it may name are: 0, 2'),
        ({"layers": "0"}, "layers is a list of names or patterns"),
        ({"evaluate": lambda: 0.0, "guard": 0.1}, "guard undoes a change of all workers"),
    ],
)
def test_wrong_input(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        quorate.shrink.cluster(net(2, 3, 1), **arguments)


def test_what_shares_values_already_is_refused() -> None:
    model = net(2, 3, 1)
    quorate.shrink.cluster(model)
    with pytest.raises(ConfigurationError, match="no weight to replace"):
        quorate.shrink.cluster(model)
