"""JAX and optax under strategies, beside twins in torch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.interop.test_keras import check
from tests.support.libraries import PYTHON, check_refused, needs, result_of, run, script_of

pytestmark = needs("jax", "optax")
TRAININGS = ROOT / "tests" / "support" / "jax_trainings.py"
VIRTUAL = ("all-reduce", "compressed", "quorum", "diloco", "d-psgd", "parameter-server", "adaptive", "shown", "keyed")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("cases", [VIRTUAL, ("resumed",)], ids=["trainings", "resumed"])
def test_trainings_are_those_of_a_twin_in_a_virtual_world(cases: tuple[str, ...], tmp_path: Path) -> None:
    path = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        [str(PYTHON), str(TRAININGS), *cases],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300, env=path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check(done.stdout, at_least=len(cases))


@pytest.mark.timeout(240)
def test_trainings_in_processes_are_those_of_a_twin(tmp_path: Path) -> None:
    check(run(tmp_path, "-n", "2", str(TRAININGS), "all-reduce", "diloco"), at_least=2)


@pytest.mark.timeout(240)
def test_the_script_of_the_how_to_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of("inside-jax.md"))
    result_of(tmp_path, "first", "train.py")
    run(tmp_path, "--virtual", "2", "--strategy", "local-sgd", "train.py")


SCRIPT = """
import jax.numpy as jnp, optax, quorate, quorate.jax
world = quorate.join()
"""


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("quorate.jax.distribute({'w': jnp.ones(3)}, 'adam')", "takes an optax transformation, not str"),
        ("quorate.jax.distribute({'w': jnp.ones(3), 'n': 3}, optax.sgd(1.0))", "params['n'] is no array"),
        ("quorate.jax.distribute({'w': jnp.ones(3)}, optax.sgd(1.0)).step({})", "got gradients"),
    ],
)
def test_mistakes_are_one_sentence(lines: str, words: str, tmp_path: Path) -> None:
    check_refused(tmp_path, SCRIPT + lines + "\n", words)
