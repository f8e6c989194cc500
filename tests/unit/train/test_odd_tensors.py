"""Parameters, gradients and buffers of unusual kinds, under every strategy: they work, or one sentence refuses them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.core.strategy import sparse_gradients_of
from quorate.strategies import strategies
from quorate.wire import current
from tests.support.every_strategy import NAMES, OF_ADAM, OF_ONE_TENSOR
from tests.support.scene import Scene, Trainer, flat, pause, virtual

EXCHANGES_GRADIENTS = [
    name
    for name in NAMES
    if strategies.get(name).replicas == "equal"
    or (strategies.get(name).meets, strategies.get(name).replicas) == ("servers", "meet")
    or name in ("auto", "post-local-sgd", "fed-prox", "scaffold", "zero-one-adam")
]  # one begins with synchronous steps, the others add something dense to each gradient


def refused(task: Callable[[quorate.World], Any], words: str) -> None:
    def caught(world: quorate.World) -> None:
        with pytest.raises(ConfigurationError, match=words):
            task(world)
        current.here().leaving.clear()

    virtual(2, caught, timeout=5.0)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


# -- optimizers and gradients


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("all-reduce", *OF_ADAM)])
def test_an_optimizer_that_needs_a_closure_is_refused_by_distribute(name: str) -> None:
    class Searches(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        def step(self, closure: Callable[[], float]) -> float:  # type: ignore[override]
            return closure()

    def task(kind: Any) -> Callable[[quorate.World], Any]:
        return Scene(name, model=(3, 1), make=kind).trainer

    refused(task(torch.optim.LBFGS), "^LBFGS asks for the loss several times a step, in a closure, and .* all-reduce$")
    refused(task(Searches), "^Searches asks for the loss several times a step")


@pytest.mark.parametrize("name", NAMES)
def test_sparse_gradients_are_refused_where_vectors_of_gradients_are_formed_and_work_elsewhere(name: str) -> None:
    kind: Any = sgd if name in ("d2", "dana") else lambda parameters: torch.optim.SparseAdam(list(parameters))
    kind = None if name in OF_ADAM else kind

    is_elastic = name in ("eamsgd", "easgd", "symmetric-easgd")  # else their centre has not moved yet
    often = {"sync_every": 1} if is_elastic else OF_ONE_TENSOR.get(name, {})
    model = lambda: nn.Embedding(6, 3, sparse=True, _weight=torch.ones(6, 3))  # noqa: E731
    loss = lambda t: t.model(torch.tensor([1, 2, t.rank])).square().mean()  # noqa: E731
    scene = Scene(name, 2, model=model, make=kind, steps=4, loss=loss, settings=often)
    exchanges_gradients = sparse_gradients_of(strategies.get(name)()) in ("rows", "both", "refused")
    assert exchanges_gradients == (name in EXCHANGES_GRADIENTS)
    if sparse_gradients_of(strategies.get(name)()) == "refused":
        refused(scene.trainer, f"^the gradient of weight is sparse, and {re.escape(scene.strategy)} forms vectors of")
        return
    end = scene.end().view(6, 3)
    assert bool((end[:3] < 1).all())
    assert bool((end[3:] == 1).all())


# -- parameters


def complex_net(dtype: torch.dtype) -> nn.Linear:
    model = nn.Linear(3, 2, dtype=dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(2), dtype=dtype))
    return model


def complex_loss(model: nn.Linear, dtype: torch.dtype, rank: int, step: int) -> torch.Tensor:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + rank), dtype=dtype)
    loss: torch.Tensor = model(x).abs().square().mean()
    return loss


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("all-reduce", torch.complex128), *((name, torch.complex64) for name in NAMES if name not in OF_ADAM)],
)
def test_complex_parameters_are_trained(name: str, dtype: torch.dtype) -> None:
    model, loss = (lambda: complex_net(dtype)), (lambda t: complex_loss(t.model, dtype, t.rank, t.step))
    end = Scene(name, 2, model=model, make=sgd, steps=4, loss=loss, last=pause).end()
    assert bool(torch.isfinite(end.abs()).all())
    if name == "all-reduce":
        model = complex_net(dtype)
        optimizer = sgd(model.parameters())
        for step in range(4):
            optimizer.zero_grad()
            (sum(complex_loss(model, dtype, rank, step) for rank in (0, 1)) / 2).backward()  # type: ignore[union-attr]
            optimizer.step()
        torch.testing.assert_close(end, flat(model))


@pytest.mark.parametrize("name", OF_ADAM)
def test_complex_momenta_are_refused(name: str) -> None:
    refused(Scene(name, 2, model=lambda: complex_net(torch.complex64)).trainer, "^momenta of complex parameters")


PARAMETERS = {
    "expanded": (lambda: torch.zeros(3, 1).expand(3, 4), "^p is expanded, so that several of its elements are one"),
    "float8": (lambda: torch.zeros(4).to(torch.float8_e4m3fn), "^p is torch.float8_e4m3fn, which cannot be averaged"),
    "half complex": (lambda: torch.zeros(4, dtype=torch.complex32), "^p is torch.complex32, which cannot be averaged"),
    "meta": (lambda: torch.zeros(4, device="meta"), "^p is on the meta device; only dense tensors with values"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "^p has the layout torch.sparse_coo; only dense tensors"),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", ["all-reduce", "quorum", "d-psgd"])
@pytest.mark.parametrize("kind", PARAMETERS)
def test_parameters_without_numbers_of_their_own_are_refused_by_distribute(kind: str, name: str) -> None:
    make, words = PARAMETERS[kind]

    refused(Scene(name, model=lambda: nn.ParameterDict({"p": nn.Parameter(make())})).trainer, words)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_parameters_of_lazy_modules_are_refused_before_they_have_a_shape() -> None:
    model = lambda: nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2))  # noqa: E731
    refused(Scene(model=model).trainer, "^1.bias has no shape yet; run its lazy module once before")


# -- buffers


BUFFERS = {
    "float8": lambda rank: torch.full((4,), float(rank)).to(torch.float8_e4m3fn),
    "complex": lambda rank: torch.full((4,), complex(0, rank)),
    "half complex": lambda rank: torch.full((4,), complex(0, rank)).to(torch.complex32),
    "expanded": lambda rank: torch.full((1,), float(rank)).expand(4),
    "integers": lambda rank: torch.full((4,), 2 * rank, dtype=torch.int16),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", NAMES)
def test_buffers_are_the_mean_or_rank_0s_where_they_have_none(name: str) -> None:
    def model() -> nn.Module:
        layer = nn.Linear(3, 1)
        for kind, make in BUFFERS.items():
            layer.register_buffer(kind, make(0))
        return layer

    def begin(trainer: Trainer) -> None:
        for kind, make in BUFFERS.items():
            setattr(trainer.model, kind, make(2 * trainer.rank))

    has_mean = strategies.get(name)().buffers == "mean"
    scene = Scene(name, 2, model=model, make=None if name in OF_ADAM else sgd, steps=1, begin=begin)
    for buffers in scene.run(lambda trainer: dict(trainer.model.named_buffers())):
        for kind, make in BUFFERS.items():
            wanted = make(1 if has_mean and kind != "integers" else 0)
            assert buffers[kind].dtype == wanted.dtype
            assert torch.equal(buffers[kind].to(torch.complex64), wanted.to(torch.complex64)), kind
