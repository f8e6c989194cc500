"""Convolutions that several workers compute together, by filters: the numbers of one process."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from tests.support.convolution_trainings import Case, Trained, cut, kept, kept_for_backward, whole
from tests.support.processes import run_real_world
from tests.support.sampled import Few
from tests.world.test_tensor_parallel import far


def all_of(cases: Sequence[Case], world: Any) -> list[Trained]:
    return [cut(case, world) for case in cases]


def check(cases: Sequence[Case], workers: int) -> None:
    for case, *found in zip(cases, *run_real_world(workers, partial(all_of, cases), 200.0), strict=True):
        wanted, near = whole(case), 1e-9 if case.dtype is torch.float64 else 1e-4
        for rank, one in enumerate(found):
            same = wanted[rank * len(wanted) // workers]
            if rank < case.mesh["tensor"]:
                assert one.end.losses == pytest.approx(same.end.losses, rel=near), case
            assert one.end.norms == pytest.approx(same.end.norms, rel=near), case
            assert far(one.end.gradients, same.end.gradients) < near, case
            assert far(one.end.parameters, same.end.parameters) < near, case
            if workers == case.mesh["tensor"]:  # else each shard has seen images of its own
                assert far(one.buffers, same.buffers) < near, case
                assert far({"": one.given}, {"": same.given}) < near, case


def test_two_workers_share_filters(few: Few) -> None:
    names = ("residual", "bottleneck", "plain", "groups", "recalculated")
    check(few([*(Case(name) for name in names), Case("plain", dtype=torch.float32, clip=0.05)]), 2)


BOTH, APART = {"shards": 2, "tensor": 2}, {"replicas": 2, "tensor": 2}


def test_four_workers_share_filters_with_shards_and_replicas(few: Few) -> None:
    local = {"sync_every": 2, "momentum": "average"}
    sharded = [Case("plain", BOTH, clip=0.05), Case("bottleneck", BOTH, zero=2)]
    check(few([*sharded, Case("groups", APART), Case("plain", APART, strategy="local-sgd", settings=local)]), 4)


def test_checkpoints_of_cut_filters_are_loaded_in_other_layouts(tmp_path: Path, few: Few) -> None:
    """And running statistics with them."""
    layouts = few([(2, {"tensor": 2}), (1, {}), (2, {"tensor": 2}), (2, {"tensor": 2})])
    ends = []
    for number, (workers, mesh) in enumerate(layouts):
        task = partial(kept, Case("plain", mesh), tmp_path / "cut", 2 * number + 2)
        ends = run_real_world(workers, task, 100.0)
    (wanted,) = run_real_world(1, partial(kept, Case("plain", {}), tmp_path / "whole", 2 * len(layouts)), 100.0)
    assert max(far(end, wanted) for end in ends) < 1e-9


def sent(world: Any) -> list[dict[str, int]]:
    """Bytes of one step of three convolutions and a norm, forward and backward; parameters are not trained."""
    torch.set_num_threads(1)
    layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Conv2d(4, 6, 3), nn.Conv2d(6, 2, 3)]
    model: Any = quorate.parallelize(nn.Sequential(*layers), world.mesh(tensor=2))
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    meter = optimizer.__dict__["_quorate_worker"].coordinates.traffic.meter
    x = torch.ones(1, 2, 16, 8, requires_grad=True)
    for _ in range(2):  # the first calls look at batches
        model(x)
    counts = [dict(meter.bytes_out)]
    found = model(x)
    counts.append(dict(meter.bytes_out))
    torch.autograd.grad(found.sum(), x)
    counts.append(dict(meter.bytes_out))
    return [
        {key: more for key, n in later.items() if (more := n - earlier.get(key, 0))}
        for earlier, later in itertools.pairwise(counts)
    ]


def test_what_filters_send() -> None:
    """Of two workers: half of what the layer in the middle gives, all that the last one gives, and statistics."""
    middle, last, first = 4 * 6 * 12 * 4, 4 * 2 * 10 * 2, 4 * 2 * 16 * 8
    forward, backward = run_real_world(2, sent, 60.0)[0]
    assert forward == {"reduce_scatter": middle // 2, "all_reduce": last, "all_gather": 2 * 2 * 4}
    assert backward == {"all_gather": middle // 2, "all_reduce": first}


def refused(world: Any) -> str:
    """The sentence for a layer that is given something else."""
    torch.set_num_threads(1)
    pairs = [nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)]
    model = quorate.parallelize(nn.Sequential(*pairs), world.mesh(tensor=2), tensor={"0": "columns", "2": "rows"})
    with pytest.raises(ConfigurationError) as raised:
        model(torch.ones(1, 4, 5, 5))
    return str(raised.value)


def test_inputs_of_another_width_are_refused() -> None:
    for sentence in run_real_world(2, refused, 60.0):
        assert '0 is cut by "columns" and takes 2 numbers here, not 4' in sentence


def kept_by_filters(world: Any) -> list[float]:
    return [
        kept_for_backward(name, world, is_cut=True) / kept_for_backward(name, world) for name in ("residual", "plain")
    ]


def test_activations_are_divided() -> None:
    """Those inside of chains."""
    for worker in run_real_world(2, kept_by_filters, 60.0):
        assert worker == pytest.approx([0.9, 0.53], abs=0.03)
