"""The worst examples near a batch: what they are, and what looking for them leaves alone."""

from __future__ import annotations

import copy
import itertools
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import quorate
from quorate.core.errors import ConfigurationError

draw = torch.Generator().manual_seed(0)
X = torch.rand(6, 1, 4, 4, generator=draw)
LABELS = torch.randint(0, 3, (6,), generator=draw)


class Images(NamedTuple):
    images: Tensor
    labels: Tensor


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def loss(model: nn.Module, batch: Images) -> Tensor:
    return cross_entropy(model(batch.images), batch.labels)


def gradient_of(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    loss(copy.deepcopy(model), Images(x, LABELS)).backward()
    assert x.grad is not None
    return x.grad


def seen(**settings: Any) -> tuple[list[Tensor], Tensor]:
    """The inputs that the loss is computed on in one call, the last ones outside of the search; and its value."""
    inputs: list[Tensor] = []

    def spied(model: nn.Module, batch: Images) -> Tensor:
        inputs.append(batch.images.detach().clone())
        return loss(model, batch)

    return inputs, quorate.adversarial(spied, **settings)(net(), Images(X, LABELS))


def test_fgsm_is_one_step_along_the_sign_and_half_of_the_loss_is_clean() -> None:
    inputs, value = seen(epsilon=0.1, attack="fgsm")
    worst = X + 0.1 * gradient_of(net(), X).sign()
    assert torch.equal(inputs[0], X)
    assert torch.equal(inputs[1], X)
    torch.testing.assert_close(inputs[2], worst)
    model = net()
    expected = 0.5 * loss(model, Images(X, LABELS)) + 0.5 * loss(model, Images(worst, LABELS))
    torch.testing.assert_close(value, expected)


def test_pgd_is_projected_after_each_step_and_starts_at_random() -> None:
    inputs, _ = seen(epsilon=0.1, steps=4, step_size=0.06, bounds=(0.0, 1.0))
    first, *_ = inputs
    assert len(inputs) == 5
    assert 0 < float((first - X).abs().max()) <= 0.1
    for x, then in itertools.pairwise(inputs):
        there = x + 0.06 * gradient_of(net(), x).sign()
        torch.testing.assert_close(then, torch.max(torch.min(there, X + 0.1), X - 0.1).clamp(0.0, 1.0))
    assert not torch.equal(seen(epsilon=0.1)[0][0], seen(epsilon=0.1)[0][1])


def test_in_the_length_of_what_is_added_examples_are_projected_one_by_one() -> None:
    inputs, _ = seen(epsilon=0.3, steps=5, norm="2")
    lengths = [(x - X).flatten(1).norm(dim=1) for x in inputs]
    assert all(float(each.max()) <= 0.3 + 1e-6 for each in lengths)
    assert float(lengths[0].max()) < 0.2999, "it starts inside, not at the edge"
    assert float(lengths[-1].min()) == pytest.approx(0.3, rel=1e-3), "the worst is at the edge"
    g = gradient_of(net(), inputs[0])
    there = inputs[0] + 0.15 * g / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    way = there - X
    way = way * (0.3 / way.flatten(1).norm(dim=1)).clamp(max=1.0).view(-1, 1, 1, 1)
    torch.testing.assert_close(inputs[1], X + way)


def test_the_worst_is_worse() -> None:
    model = net()
    plain = loss(model, Images(X, LABELS))
    assert quorate.adversarial(loss, epsilon=0.2)(model, Images(X, LABELS)) > 1.05 * plain


def test_the_search_touches_no_gradient_no_hook_and_no_statistics() -> None:
    model, twin = net(), net()
    fired: list[str] = []
    for name, p in model.named_parameters():
        p.grad = torch.full_like(p, 7.0)
        p.register_post_accumulate_grad_hook(lambda p, name=name: fired.append(name))
        p.register_hook(lambda g, name=name: fired.append(name))
    worst = quorate.adversarial(loss, epsilon=0.1, steps=3)
    torch.manual_seed(2)
    value = worst(model, Images(X, LABELS))
    assert not fired
    assert all(bool((p.grad == 7.0).all()) for p in model.parameters() if p.grad is not None)
    changed = []

    def spied(model: nn.Module, batch: Images) -> Tensor:
        changed.append(batch.images.detach())
        return loss(model, batch)

    torch.manual_seed(2)
    quorate.adversarial(spied, epsilon=0.1, steps=3)(copy.deepcopy(twin), Images(X, LABELS))
    loss(twin, Images(changed[-1], LABELS))
    assert all(torch.equal(x, y) for x, y in zip(model.buffers(), twin.buffers(), strict=True))
    value.backward()
    assert len(fired) == 2 * len(list(model.parameters()))


def test_without_gradients_it_measures_robustness() -> None:
    with torch.no_grad():
        value = quorate.adversarial(loss, epsilon=0.1)(net(), Images(X, LABELS))
    assert not value.requires_grad


@pytest.mark.parametrize(
    ("args", "of"),
    [
        ((X, LABELS), None),
        (([X, LABELS],), None),
        (({"pixels": X, "labels": LABELS},), "pixels"),
        (({"weights": torch.ones(6), "pixels": X, "labels": LABELS},), "pixels"),
        (((LABELS, X),), 1),
    ],
)
def test_the_input_is_found(args: tuple[Any, ...], of: Any) -> None:
    kinds = []

    def spied(model: nn.Module, *rest: Any) -> Tensor:
        kinds.append(type(rest[0]))
        batch = rest if len(rest) > 1 else rest[0]
        items = list(batch.values()) if isinstance(batch, dict) else list(batch)
        (x,) = [item for item in items if item.dim() == 4]
        (labels,) = [item for item in items if not item.is_floating_point()]
        return cross_entropy(model(x), labels)

    model = net()
    value = quorate.adversarial(spied, epsilon=0.2, of=of)(model, *args)
    assert value > loss(model, Images(X, LABELS))
    assert set(kinds) == {type(args[0])}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.0}, "epsilon and step_size must be above 0"),
        ({"epsilon": 0.1, "attack": "cw"}, 'unknown attack "cw"'),
        ({"epsilon": 0.1, "norm": "1"}, 'unknown norm "1"'),
        ({"epsilon": 0.1, "attack": "fgsm", "steps": 3}, '"fgsm" is one step of length epsilon'),
        ({"epsilon": 0.1, "clean": 1.5}, "clean is 1.5; it must be a share of the loss, from 0 to 1"),
        ({"epsilon": 0.1, "bounds": (1.0, 0.0)}, "bounds are"),
        ({}, "epsilon"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        quorate.adversarial(loss, **settings)


def test_without_an_input_to_change_it_says_so() -> None:
    worst = quorate.adversarial(lambda model, words: model(words), epsilon=0.1)
    with pytest.raises(ConfigurationError, match="there is no floating-point tensor to change behind the model"):
        worst(net(), torch.tensor([1, 2]))
    with pytest.raises(ConfigurationError, match="does not depend on the input"):
        quorate.adversarial(lambda model, x, y: model(y).sum(), epsilon=0.1)(net(), X, X.clone())
