"""Loops of one's own in TensorFlow: `quorate.tf.gradients`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.interop.test_keras import check
from tests.support.libraries import TENSORFLOW, needs, run

pytestmark = needs("tensorflow")
TRAININGS = ROOT / "tests" / "support" / "tf_trainings.py"


@pytest.mark.timeout(400)
def test_gradients_are_means_inside_and_outside_of_a_function(tmp_path: Path) -> None:
    check(run(tmp_path, "-n", "2", str(TRAININGS), paths=[TENSORFLOW], backend="tensorflow"), at_least=2)


@pytest.mark.timeout(240)
def test_a_function_of_a_virtual_worker_is_refused(tmp_path: Path) -> None:
    words = run(tmp_path, "--virtual", "2", str(TRAININGS), paths=[TENSORFLOW], backend="tensorflow", status=2)
    assert "inside tf.function needs workers that are processes" in words
