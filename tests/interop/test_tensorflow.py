"""Loops of one's own in TensorFlow: `quorate.tf.gradients`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.interop.test_keras import check
from tests.support.libraries import TENSORFLOW, check_death, check_refused, needs, run

pytestmark = needs("tensorflow")
TRAININGS = ROOT / "tests" / "support" / "tf_trainings.py"


@pytest.mark.timeout(400)
def test_gradients_are_means_inside_and_outside_of_a_function(tmp_path: Path) -> None:
    check(run(tmp_path, "-n", "2", str(TRAININGS), paths=[TENSORFLOW], backend="tensorflow"), at_least=2)


@pytest.mark.timeout(240)
def test_a_function_of_a_virtual_worker_is_refused(tmp_path: Path) -> None:
    words = run(tmp_path, "--virtual", "2", str(TRAININGS), paths=[TENSORFLOW], backend="tensorflow", status=2)
    assert "inside tf.function needs workers that are processes" in words


SCRIPT = """
import os, signal, tensorflow as tf, quorate, quorate.tf
world = quorate.join()
w = tf.Variable(tf.ones([3]))

@tf.function
def compute():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * w)
    w.assign_sub(0.1 * quorate.tf.gradients(tape).gradient(loss, [w])[0])

for step in range(1000):
    compute()
    if world.rank and step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("decorator", ["@tf.function\n", ""])
def test_the_death_of_a_worker_ends_the_run_with_its_name(decorator: str, tmp_path: Path) -> None:
    check_death(tmp_path, SCRIPT.replace("@tf.function\n", decorator), paths=[TENSORFLOW])


@pytest.mark.timeout(240)
def test_a_function_for_xla_is_refused(tmp_path: Path) -> None:
    script = SCRIPT.replace("@tf.function\n", "@tf.function(jit_compile=True)\n")
    check_refused(tmp_path, script, "works in a tf.function without jit_compile=True", paths=[TENSORFLOW])


@pytest.mark.timeout(240)
def test_a_strategy_without_means_of_gradients_is_refused(tmp_path: Path) -> None:
    lines = "import tensorflow as tf, quorate, quorate.tf\nquorate.join()\n"
    lines += "quorate.tf.begin([tf.Variable(tf.ones([3]))], 'local-sgd', sync_every=2)\n"
    check_refused(tmp_path, lines, "which this strategy does not make", paths=[TENSORFLOW])
