"""Steps on pieces as plain tensors: the bits of steps on DTensors, and everything is a DTensor again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from quorate.replica.by_tensors import is_by_numbers
from quorate.sharding.optimizer_steps import OnPieces


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


KINDS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "AdamW": {"lr": 0.1, "amsgrad": True},
    "Adam": {"lr": torch.tensor(0.1)},
    "Adagrad": {"lr": 0.1},
    "Adadelta": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "ASGD": {},
}


def made(mesh: DeviceMesh, kind: str) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    draw = torch.Generator().manual_seed(1)
    some = [nn.Parameter(distribute_tensor(torch.randn(shape, generator=draw), mesh, [Shard(0)])) for shape in SHAPES]
    plain = nn.Parameter(torch.randn(2, generator=draw))
    optimizer = getattr(torch.optim, kind)([{"params": some}, {"params": [plain], "weight_decay": 0.1}], **KINDS[kind])
    return [*some, plain], optimizer


SHAPES = [(4, 3), (1,), (5,)]


def gradients(mesh: DeviceMesh, parameters: list[nn.Parameter], step: int) -> None:
    """The last sharded parameter has none in the first step."""
    draw = torch.Generator().manual_seed(step)
    for number, p in enumerate(parameters):
        g = torch.randn(p.shape, generator=draw)
        p.grad = distribute_tensor(g, mesh, [Shard(0)]) if isinstance(p, DTensor) else g
        if number == 2 and step == 0:
            p.grad = None


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_bits_of_steps_on_dtensors(mesh: DeviceMesh, kind: str) -> None:
    ends = []
    for is_on_pieces in (False, True):
        parameters, optimizer = made(mesh, kind)
        assert is_by_numbers(type(optimizer))
        for step in range(3):
            gradients(mesh, parameters, step)
            kept = {p: dict(state) for p, state in optimizer.state.items()}
            if is_on_pieces:
                OnPieces().step(optimizer, lambda on_pieces: type(on_pieces).step(on_pieces) and None)
                for p, state in kept.items():
                    same = [key for key, x in state.items() if isinstance(x, DTensor) and optimizer.state[p][key] is x]
                    assert same == [key for key, x in state.items() if isinstance(x, DTensor)]
            else:
                optimizer.step()
        assert [p for group in optimizer.param_groups for p in group["params"]] == parameters
        state = optimizer.state_dict()["state"]
        kinds = {(n, key): type(x) for n, some in state.items() for key, x in some.items()}
        numbers = [p.full_tensor() if isinstance(p, DTensor) else p.detach() for p in parameters]
        held = {
            (n, key): x.full_tensor() if isinstance(x, DTensor) else x
            for n, some in sorted(state.items())
            for key, x in some.items()
        }
        ends.append((numbers, held, kinds))
    (numbers, held, kinds), (others, kept_there, kinds_there) = ends
    assert kinds == kinds_there
    assert all(torch.equal(a, b) for a, b in zip(numbers, others, strict=True))
    assert all(torch.equal(torch.as_tensor(held[key]), torch.as_tensor(kept_there[key])) for key in held)


def test_a_step_that_raises_leaves_everything_in_its_place(mesh: DeviceMesh) -> None:
    parameters, optimizer = made(mesh, "AdamW")
    gradients(mesh, parameters, 1)
    optimizer.step()

    def fails(_: torch.optim.Optimizer) -> None:
        raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        OnPieces().step(optimizer, fails)
    assert set(optimizer.state) == set(parameters)
    assert all(isinstance(optimizer.state[p]["exp_avg"], DTensor) for p in parameters[:3])
    assert all(p.grad is not None for p in parameters)
