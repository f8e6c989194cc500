"""JAX and optax under strategies, beside twins in torch."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.interop.test_keras import check
from tests.support.libraries import (
    PYTHON,
    check_death,
    check_refused,
    needs,
    result_of,
    results,
    run,
    script_of,
    skipped,
)

pytestmark = needs("jax", "optax")
TRAININGS = ROOT / "tests" / "support" / "jax_trainings.py"
VIRTUAL = (
    "all-reduce",
    "compressed",
    "quorum",
    "diloco",
    "d-psgd",
    "parameter-server",
    "adaptive",
    "moments averaged",
)
STATES = ("scheduled", "scheduled in rounds", "rates of the script", "not copied", "shown", "keyed")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "cases", [VIRTUAL, STATES, ("resumed",), ("joined late",)], ids=["trainings", "states", "resumed", "joined"]
)
def test_trainings_are_those_of_a_twin_in_a_virtual_world(cases: tuple[str, ...], tmp_path: Path) -> None:
    path = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        [str(PYTHON), str(TRAININGS), *cases],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300, env=path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check(done.stdout, at_least=len(cases))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", ["2", pytest.param("3", id="forked")])
def test_trainings_in_processes_are_those_of_a_twin(size: str, tmp_path: Path) -> None:
    """Of three processes two are forked, from one that has not imported JAX."""
    check(run(tmp_path, "-n", size, str(TRAININGS), "all-reduce", "diloco"), at_least=2)


@pytest.mark.timeout(240)
def test_the_script_of_the_how_to_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of("inside-jax.md"))
    result_of(tmp_path, "first", "train.py")
    run(tmp_path, "--virtual", "2", "--strategy", "local-sgd", "train.py")
    arms = [word for name in ("all-reduce", "diloco", "quorum") for word in ("--strategy", name)]
    run(tmp_path, "-n", "2", *arms, "--seeds", "2", "--metric", "loss", "--name", "c", "train.py", verb="compare")
    assert (tmp_path / "runs" / "c" / "report.html").exists()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("flax_nnx", ["-n", "2", "--strategy", "local-sgd"], marks=skipped("flax", "sklearn")),
        pytest.param("flax_linen", ["--virtual", "2"], marks=skipped("flax", "sklearn")),
        pytest.param("equinox_mlp", ["-n", "2"], marks=skipped("equinox", "sklearn")),
    ],
)
def test_examples_train(name: str, options: list[str], tmp_path: Path) -> None:
    script = ROOT / "examples" / "jax" / f"{name}.py"
    output = run(tmp_path, *options, "--name", "run", str(script))
    assert float(re.findall(r"accuracy ([\d.]+)", output)[-1]) >= 0.85
    first, second = (results((tmp_path / f"runs/run/rank-{rank}.log").read_text()) for rank in (0, 1))
    assert first == second and len(first) == 1


def test_no_example_is_left_out() -> None:
    names = {path.stem for path in (ROOT / "examples" / "jax").glob("*.py")}
    assert names == {"flax_nnx", "flax_linen", "equinox_mlp"}


SCRIPT = """
import jax, jax.numpy as jnp, optax, quorate, quorate.jax
world = quorate.join()
"""


def test_the_death_of_a_worker_ends_the_run_with_its_name(tmp_path: Path) -> None:
    lines = """
import os, signal
state = quorate.jax.distribute({"w": jnp.ones(3)}, optax.sgd(0.1))
for step in range(1000):
    state.step({"w": jnp.ones(3)})
    if world.rank and step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    check_death(tmp_path, SCRIPT + lines)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("quorate.jax.distribute({'w': jnp.ones(3)}, 'adam')", "takes an optax transformation, not str"),
        ("quorate.jax.distribute({'w': jnp.ones(3), 'n': 3}, optax.sgd(1.0))", "params['n'] is no array"),
        ("quorate.jax.distribute({'w': jnp.ones(3)}, optax.sgd(1.0)).step({})", "got gradients"),
        (
            "quorate.jax.distribute({'w': jnp.ones(3)}, optax.adam(1.0), 'quorum', momentum='worker')",
            'quorum with momentum="worker" lets each worker keep the momentum of its gradients',
        ),
        ("quorate.jax.distribute({'w': jnp.ones(3)}, optax.sgd(1.0), 'dana')", 'dana with momentum="worker"'),
        (
            "state = quorate.jax.distribute({'w': jnp.ones(3)}, optax.sgd(1.0))\n"
            "jax.jit(lambda grads: state.step(grads))({'w': jnp.ones(3)})",
            "inside a function that jax.jit or another transformation of JAX traces",
        ),
    ],
)
def test_mistakes_are_one_sentence(lines: str, words: str, tmp_path: Path) -> None:
    check_refused(tmp_path, SCRIPT + lines + "\n", words)
