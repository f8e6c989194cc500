"""Scripts that register operators with `torch.library`, in virtual workers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import WorkerFailed

KEPT: list[Any] = []
"""Libraries that outlive the call that has made them, as globals of a script do."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def by_library(namespace: str, factor: int) -> list[float]:
    """Results of an operator of this worker's, while other workers have theirs."""
    world = quorate.join()
    library = torch.library.Library(namespace, "DEF")
    KEPT.append(library)
    library.define("scaled(Tensor x) -> Tensor")
    library.impl("scaled", lambda x: (world.rank + factor) * x, "CPU")
    operator = getattr(torch.ops, namespace).scaled
    results = []
    for _ in range(3):
        world.barrier()
        results.append(float(operator(torch.ones(()))))
    return results


def by_decorator(namespace: str, factor: int) -> list[float]:
    """The same, with the gradient, and an operator that writes into its argument."""
    world = quorate.join()

    @torch.library.custom_op(f"{namespace}::scaled", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return (world.rank + factor) * x

    @torch.library.custom_op(f"{namespace}::marked", mutates_args=("seen",))
    def marked(seen: torch.Tensor) -> None:
        seen.fill_(world.rank)

    scaled.register_fake(lambda x: torch.empty_like(x))
    scaled.register_autograd(lambda ctx, gradient: (world.rank + factor) * gradient)
    KEPT.extend((scaled, marked))
    results = []
    for _ in range(3):
        world.barrier()
        x, seen = torch.ones((), requires_grad=True), torch.zeros(())
        y: Any = scaled(x)
        y.backward()
        marked(seen)
        assert x.grad is not None and float(x.grad) == float(y.detach()) and float(seen) == world.rank
        results.append(float(y.detach()))
    return results


@pytest.mark.parametrize("train", [by_library, by_decorator])
def test_each_worker_has_the_operators_of_its_script(train: Any) -> None:
    for factor in (2, 5):  # the second world finds what the first has left
        launched = quorate.launch(train, virtual=3, args=(f"quorate_{train.__name__}", factor), progress=False)
        assert launched.results == [[float(rank + factor)] * 3 for rank in range(3)]


def import_broken() -> None:
    quorate.join()
    __import__("operators_without_their_library")


def test_a_failed_import_fails_with_its_own_error_again(tmp_path: Path) -> None:
    source = (
        "import torch\n"
        'library = torch.library.Library("quorate_broken", "DEF")\n'
        'library.define("scaled(Tensor x) -> Tensor")\n'
        "import a_module_that_is_not_there\n"
    )
    (tmp_path / "operators_without_their_library.py").write_text(source)
    errors = []
    for _ in range(2):
        with pytest.raises(WorkerFailed, match="No module named 'a_module_that_is_not_there'") as failed:
            quorate.launch(import_broken, virtual=2, progress=False)
        errors.append(failed.value)  # whose frames keep the library
    assert "operators_without_their_library" not in sys.modules
    assert [error.ranks for error in errors] == [(0,), (0,)]
