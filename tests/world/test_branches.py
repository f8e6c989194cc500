"""Models whose branches lie on different workers, on real workers: the numbers of one process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from tests.support.branched_trainings import Case, End, Inception, Siamese, in_one, kept, on_workers
from tests.support.processes import WorkersFailed, run_real_world


def all_of(cases: Sequence[Case], world: Any) -> list[End]:
    return [on_workers(case, world) for case in cases]


def check(cases: Sequence[Case], workers: int) -> None:
    for case, *found in zip(cases, *run_real_world(workers, partial(all_of, cases), 100.0), strict=True):
        wanted = in_one(case)
        for rank, end in enumerate(found):
            same = wanted[rank * len(wanted) // workers]
            if rank < case.mesh["tensor"]:
                assert end.losses == pytest.approx(same.losses, rel=1e-9), case
            assert end.norms == pytest.approx(same.norms, rel=1e-9), case
            assert torch.allclose(end.output, same.output, rtol=1e-9, atol=1e-12), case
            assert end.numbers < same.numbers or case.make is Siamese, case  # which shares nearly all


def test_two_workers_have_branches_of_their_own() -> None:
    check([Case(Inception), Case(Siamese)], 2)


def test_four_workers_with_shards_with_replicas_and_with_none() -> None:
    """Of four that share three branches one has none."""
    both, apart = {"shards": 2, "tensor": 2}, {"replicas": 2, "tensor": 2}
    check(
        [Case(Siamese, both), Case(Siamese, apart), Case(Siamese, apart, "local-sgd"), Case(Siamese, {"tensor": 4})], 4
    )


def test_checkpoints_are_for_the_same_workers(tmp_path: Path) -> None:
    first = run_real_world(2, partial(kept, tmp_path / "there", 2, 2), 60.0)
    second = run_real_world(2, partial(kept, tmp_path / "there", 2, 4), 60.0)
    whole = run_real_world(1, partial(kept, tmp_path / "one", 1, 4), 60.0)[0]
    for before, after in zip(first, second, strict=True):
        assert [*before, *after] == pytest.approx(whole, rel=1e-9)
    with pytest.raises(WorkersFailed, match="in the checkpoint|the script's has none|the checkpoint's has none"):
        run_real_world(1, partial(kept, tmp_path / "there", 1, 5), 60.0)


def refused() -> list[tuple[nn.Module, dict[str, str], str]]:
    """Branches, a plan, and what is said to them."""
    frozen, norm = nn.Linear(4, 4).requires_grad_(False), nn.BatchNorm1d(4)
    return [
        (quorate.branches([frozen, nn.Linear(4, 4)]), {}, "parameters that are not trained"),
        (quorate.branches([nn.GRU(4, 4), nn.Linear(4, 4)]), {}, "a recurrent module of torch"),
        (quorate.branches([nn.Linear(4, 4).double(), nn.Linear(4, 4)]), {}, "parameters of several dtypes"),
        (quorate.branches([norm, norm]), {}, "branches of 1 share buffers"),
        (quorate.branches([nn.Linear(4, 4)]), {"1.items.0": "columns"}, "1.items.0 is in a branch"),
    ]


def ends_of(world: Any) -> tuple[list[str], int, int, float]:
    """What was said to those, the bytes sent forward and backward, and what is drawn behind branches that draw."""
    mesh, said = world.mesh(tensor=2), list[str]()
    for module, plan, _ in refused():
        try:
            quorate.parallelize(nn.Sequential(nn.Linear(4, 4), module), mesh, tensor=plan)
            said.append("it was not refused")
        except ConfigurationError as error:
            said.append(str(error))
    both = quorate.branches([nn.Linear(4, 8), nn.Linear(4, 8)], "sum")
    model = quorate.parallelize(nn.Sequential(nn.Linear(4, 4), both), mesh, tensor={})
    assert both.dealt is not None
    sent = both.dealt.together.traffic.meter.bytes_out
    middle = model[0](torch.ones(16, 4))
    before = sent.copy()
    output = both(middle)
    forward = sent["send"] - before["send"]
    output.sum().backward()
    backward = sent["all_reduce"] - before["all_reduce"]
    some = quorate.branches([nn.Sequential(nn.Linear(4, 8), nn.Dropout()), nn.Linear(4, 8)])
    quorate.parallelize(nn.Sequential(some), mesh, tensor={})(torch.ones(3, 4))
    return said, forward, backward, torch.rand(()).item()


def test_what_is_refused_and_what_is_sent() -> None:
    found = run_real_world(2, ends_of, 60.0)
    assert found[0][-1] == found[1][-1]
    for said, forward, backward, _ in found:
        for told, (_, _, words) in zip(said, refused(), strict=True):
            assert words in told
        assert (forward, backward) == (16 * 8 * 4, 16 * 4 * 4)
