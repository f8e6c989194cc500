"""Inside `fit` of Keras 3 on torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.libraries import check_cases, check_refused, needs, result_of, run, script_of

pytestmark = needs("keras")


@pytest.mark.timeout(240)
def test_parameters_are_those_of_a_loop_by_hand(tmp_path: Path) -> None:
    check_cases("keras", tmp_path)


@pytest.mark.timeout(180)
def test_the_script_of_the_how_to_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of("inside-keras.md"))
    result_of(tmp_path, "first", "train.py")
    assert (tmp_path / "kept.weights.h5").exists()


SCRIPT = """
import keras, torch, quorate
world = quorate.join()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", loss="mse")
"""


def test_its_own_optimizers_are_refused(tmp_path: Path) -> None:
    lines = "quorate.distribute(model.optimizer, model)\n"
    check_refused(tmp_path, SCRIPT + lines, "SGD is an optimizer of Keras")


def test_a_fit_with_its_own_optimizer_is_noticed(tmp_path: Path) -> None:
    lines = "optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)\n"
    lines += "model.fit(torch.randn(64, 4), torch.randn(64, 1), batch_size=4, verbose=0)\noptimizer.finish()\n"
    check_refused(tmp_path, SCRIPT + lines, "its step() was never called, so workers train apart")


def test_its_loop_runs_on_virtual_workers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of("inside-keras.md"))
    run(tmp_path, "--virtual", "2", "--strategy", "local-sgd", "train.py")
