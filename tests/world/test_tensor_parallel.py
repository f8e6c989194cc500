"""Models whose layers several workers compute together, on real workers: the numbers of one process."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.support.processes import run_real_world
from tests.support.sampled import Few
from tests.support.tensor_trainings import MODELS, Case, End, cut, kept, whole_replicas

NAMES = [name for name in MODELS if name not in ("mlp", "tied", "sparse")]
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed; make test-interop installs it",
)


def all_of(cases: Sequence[Case], world: Any) -> list[End]:
    return [cut(case, world) for case in cases]


def far(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The greatest difference in a tensor, by the norm of it; and of very small ones by that of the greatest."""
    assert {name: x.shape for name, x in found.items()} == {name: x.shape for name, x in wanted.items()}
    least = 1e-3 * max(float(x.norm()) for x in wanted.values())
    return max(float((found[name] - x).norm()) / max(least, float(x.norm())) for name, x in wanted.items())


def check(cases: Sequence[Case], workers: int) -> None:
    for case, *found in zip(cases, *run_real_world(workers, partial(all_of, cases), 300.0), strict=True):
        wanted = whole_replicas(case, workers)
        for rank, end in enumerate(found):
            same = wanted[rank * len(wanted) // workers]
            if rank * len(wanted) % workers == 0:
                assert end.losses[0] == pytest.approx(same.losses[0], rel=1e-5), case
            assert far(end.gradients, same.gradients) < 1e-5, case
            assert end.norms == pytest.approx(same.norms, rel=1e-5), case
            assert far(end.parameters, same.parameters) < 1e-5, case


def test_two_workers_compute_an_mlp() -> None:
    check([Case(), Case(clip=None)], 2)


def test_heads_of_sparse_attention_keep_their_random_blocks() -> None:
    check([Case("sparse")], 2)


def test_a_vocabulary_that_does_not_divide() -> None:
    check([Case("tied"), Case("tied", clip=None)], 2)
    check([Case("tied", mesh={"tensor": 4})], 4)


def test_a_vocabulary_that_does_not_divide_in_shards_and_replicas(few: Few) -> None:
    across = [Case("tied", mesh=APART, strategy=name, settings=settings) for name, settings in STRATEGIES.items()]
    check(few([*(Case("tied", mesh=BOTH, zero=zero) for zero in (1, 2, 3)), *across]), 4)


@pytest.mark.slow
@needs_transformers
def test_two_workers_compute_models_of_transformers() -> None:
    check([Case(name, sequence=sequence) for name in NAMES for sequence in (False, True)], 2)


BOTH = {"shards": 2, "tensor": 2}
APART = {"replicas": 2, "tensor": 2}
STRATEGIES: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "local-sgd": {"sync_every": 2, "momentum": "average"},
    "diloco": {"sync_every": 2},
    "d-psgd": {},
}


def test_an_mlp_on_four_workers(few: Few) -> None:
    across = [Case(mesh=APART, strategy=name, settings=settings) for name, settings in STRATEGIES.items()]
    check(few([*(Case(mesh=BOTH, zero=zero) for zero in (1, 2, 3)), *across]), 4)


@pytest.mark.slow
@needs_transformers
def test_models_of_transformers_on_four_workers() -> None:
    check([Case(name, mesh=mesh) for name in NAMES for mesh in (BOTH, APART)], 4)


LAYOUTS = [(2, {"tensor": 2}), (1, {}), (4, BOTH), (2, {"shards": 2}), (4, APART), (2, {}), (2, {"tensor": 2})]
"""Workers, and their mesh; without one each holds the whole model."""


def in_turn(name: str, root: Path, layouts: Sequence[tuple[int, dict[str, int]]]) -> list[dict[str, Tensor]]:
    """Two steps more in each layout, and the parameters at the end."""
    ends = []
    for number, (workers, mesh) in enumerate(layouts):
        task = partial(kept, Case(name, mesh=mesh), root, 2 * number + 2)
        ends = run_real_world(workers, task, 100.0)
    return ends


def check_layouts(name: str, root: Path, layouts: Sequence[tuple[int, dict[str, int]]]) -> None:
    ends = in_turn(name, root / "cut", layouts)
    (wanted,) = run_real_world(1, partial(kept, Case(name, mesh={}), root / "whole", 2 * len(layouts)), 100.0)
    assert max(far(end, wanted) for end in ends) < 1e-4


def test_checkpoints_are_loaded_in_other_layouts(tmp_path: Path, few: Few) -> None:
    check_layouts("mlp", tmp_path, few(LAYOUTS))
    check_layouts("tied", tmp_path / "tied", few(LAYOUTS))


@pytest.mark.slow
@needs_transformers
def test_checkpoints_are_loaded_in_any_layout(tmp_path: Path) -> None:
    check_layouts("gpt2", tmp_path, [LAYOUTS[0], LAYOUTS[2], LAYOUTS[1], LAYOUTS[0]])
