"""Models whose layers several workers compute together, on real workers: the numbers of one process."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from torch import Tensor

from tests.support.processes import run_real_world
from tests.support.tensor_trainings import MODELS, Case, End, alone, cut

NAMES = [name for name in MODELS if name != "mlp"]
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed; pip install transformers"
)


def all_of(cases: Sequence[Case], world: Any) -> list[End]:
    return [cut(case, world) for case in cases]


def far(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The greatest difference in a tensor, by the norm of it; and of very small ones by that of the greatest."""
    assert {name: x.shape for name, x in found.items()} == {name: x.shape for name, x in wanted.items()}
    least = 1e-3 * max(float(x.norm()) for x in wanted.values())
    return max(float((found[name] - x).norm()) / max(least, float(x.norm())) for name, x in wanted.items())


def check(cases: Sequence[Case], workers: int) -> None:
    for ends in zip(cases, *run_real_world(workers, partial(all_of, cases), 300.0), strict=True):
        case, found = ends[0], ends[1:]
        wanted = alone(case, range(workers // case.mesh["tensor"]))
        assert found[0].losses[0] == pytest.approx(wanted.losses[0], rel=1e-5), case
        for end in found:
            assert far(end.gradients, wanted.gradients) < 1e-5, case
            assert end.norms == pytest.approx(wanted.norms, rel=1e-5), case
            assert far(end.parameters, wanted.parameters) < 1e-5, case


def test_two_workers_compute_an_mlp() -> None:
    check([Case(), Case(clip=None)], 2)


@needs_transformers
def test_two_workers_compute_models_of_transformers() -> None:
    check([Case(name) for name in NAMES], 2)
