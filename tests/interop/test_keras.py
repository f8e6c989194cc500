"""Keras 3 on its three backends: `quorate.keras`, Horovod's names, and a loop of its own with a torch optimizer."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from quorate import horovod
from tests.architecture.tree import ROOT
from tests.support.libraries import (
    PYTHON,
    TENSORFLOW,
    check_cases,
    check_death,
    check_refused,
    needs,
    result_of,
    results,
    run,
    script_of,
    skipped,
)

pytestmark = needs("keras")
TRAININGS = ROOT / "tests" / "support" / "keras_trainings.py"
BACKENDS = [
    "torch",
    pytest.param("jax", marks=skipped("jax")),
    pytest.param("tensorflow", marks=skipped("tensorflow")),
]


def check(text: str, at_least: int) -> None:
    """Each worker has the numbers that are expected of each case."""
    cases = [json.loads(line.removeprefix("case ")) for line in text.splitlines() if line.startswith("case ")]
    assert len(cases) >= at_least
    for name, expected, ends in cases:
        for own in ends:
            torch.testing.assert_close(torch.tensor(own), torch.tensor(expected), rtol=1e-5, atol=1e-5, msg=name)


def where(backend: str) -> dict[str, Any]:
    """The settings of `run` for a backend of Keras."""
    return {"backend": backend, "paths": [TENSORFLOW] if backend == "tensorflow" else []}


def run_on(backend: str, folder: Path, *words: str, status: int = 0, verb: str = "run") -> str:
    return run(folder, *words, status=status, verb=verb, **where(backend))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", BACKENDS)
def test_trainings_are_those_of_one_process_or_of_a_twin_in_torch(backend: str, tmp_path: Path) -> None:
    check(run_on(backend, tmp_path, "-n", "2", str(TRAININGS)), at_least=20)
    program = (
        "import keras, sys; model = keras.models.load_model('kept.keras'); print(type(model.optimizer).__module__)"
    )
    loaded = subprocess.run(
        [str(PYTHON), "-c", program + "; print([name for name in sys.modules if name.startswith('quorate')])"],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=200, env={"KERAS_BACKEND": "torch"},
    )  # fmt: skip
    module, imported = loaded.stdout.splitlines()[-2:]
    assert module.startswith("keras.") and imported == "[]"


@pytest.mark.timeout(240)
def test_its_loop_runs_on_virtual_workers(tmp_path: Path) -> None:
    check(run_on("torch", tmp_path, "--virtual", "4", str(TRAININGS), "batches", "diloco", "adaptive"), at_least=3)


CHANGED = (
    ("import horovod.", "import quorate.horovod."),
    ("    experimental_run_tf_function=False,\n", ""),
    ("checkpoint-{epoch}.h5", "checkpoint-{epoch}.keras"),
)
"""The three lines of a script for Horovod that change: the import, and those which Keras 3 has changed."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_script_for_horovod_trains_with_three_lines_changed(backend: str, tmp_path: Path) -> None:
    text = (ROOT / "tests" / "support" / "horovod_scripts" / "keras_mnist.py").read_text()
    for before, after in CHANGED:
        assert text.count(before) == 1
        text = text.replace(before, after)
    (tmp_path / "train.py").write_text(text)
    for options in ([], ["--strategy", "local-sgd"]):
        output = run_on(backend, tmp_path, "-n", "2", *options, "train.py")
        assert float(re.findall(r"accuracy: ([\d.]+)", output)[-1]) >= 0.9
    assert (tmp_path / "checkpoint-6.keras").exists()
    assert Path(horovod.__file__).parent.joinpath("alias", "horovod", "keras").exists()


@pytest.mark.timeout(240)
def test_the_script_of_the_how_to_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of("inside-keras.md"))
    result_of(tmp_path, "first", "train.py")
    assert (tmp_path / "kept.keras").exists()
    run(tmp_path, "--virtual", "2", "--strategy", "local-sgd", "train.py")
    strategies = ["--strategy", "all-reduce", "--strategy", "local-sgd", "--strategy", "quorum"]
    run(
        tmp_path,
        "-n",
        "2",
        *strategies,
        "--seeds",
        "2",
        "--metric",
        "val_loss",
        "--name",
        "c",
        "train.py",
        verb="compare",
    )
    assert (tmp_path / "runs" / "c" / "report.html").exists()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_its_strategies_are_compared_on_the_other_backends(backend: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of("inside-keras.md"))
    arms = [word for name in ("all-reduce", "local-sgd", "quorum") for word in ("--strategy", name)]
    run_on(backend, tmp_path, "-n", "2", *arms, "--metric", "val_loss", "--name", "c", "train.py", verb="compare")
    assert (tmp_path / "runs" / "c" / "report.html").exists()
    for records in (tmp_path / "runs" / "c").rglob("rank-*.jsonl"):
        steps = [row for row in map(json.loads, records.read_text().splitlines()) if row["kind"] == "step"]
        assert {row["examples"] for row in steps} == {16}


@pytest.mark.timeout(240)
def test_parameters_are_those_of_a_loop_by_hand(tmp_path: Path) -> None:
    check_cases("keras", tmp_path)


SCRIPT = """
import os, signal, keras, numpy as np, torch, quorate, quorate.keras
world = quorate.join()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
x, y = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_death_of_a_worker_ends_the_run_with_its_name(backend: str, tmp_path: Path) -> None:
    lines = SCRIPT + 'model.compile(quorate.keras.distribute(keras.optimizers.SGD(), model), loss="mse")\n'
    lines += "kill = lambda batch, logs: os.kill(os.getpid(), signal.SIGKILL) if world.rank and batch == 3 else None\n"
    lines += "model.fit(x, y, batch_size=4, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=kill)])\n"
    check_death(tmp_path, lines, **where(backend))


RESUMED = """
import sys
draw = np.random.default_rng(0)
x = draw.normal(size=(96, 4)).astype("float32")
hidden = keras.layers.Dense(8, activation="tanh", kernel_initializer="ones")(model.inputs[0])
hidden = keras.layers.BatchNormalization()(hidden)
model = keras.Model(model.inputs, keras.layers.Dense(1, kernel_initializer="ones")(hidden))
model.compile(quorate.keras.distribute(keras.optimizers.Adam(0.01), model), loss="mse")
save = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: quorate.save())
history = model.fit(
    quorate.keras.data(x, x.sum(1, keepdims=True), batch_size=8), epochs=int(sys.argv[1]), verbose=0,
    callbacks=[quorate.keras.Callback(resume=True), save],
)
print("result", [*(float(keras.ops.convert_to_numpy(v).sum()) for v in model.variables), *history.epoch])
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("backend", BACKENDS)
def test_fit_continues_with_the_epoch_after_a_checkpoint(backend: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT + RESUMED)
    ends = {}
    for name, words in {
        "unbroken": ["-n", "2", "--seed", "5", "--name", "unbroken", "train.py", "4"],
        "ended": ["-n", "2", "--seed", "5", "--name", "ended", "train.py", "2"],
        "resumed": ["--resume", "ended", "train.py", "4"],
    }.items():
        (ends[name],) = results(run_on(backend, tmp_path, *words))
    assert ends["unbroken"][-4:] == [0, 1, 2, 3] and ends["resumed"][-2:] == [2, 3]
    torch.testing.assert_close(
        torch.tensor(ends["resumed"][:-2]), torch.tensor(ends["unbroken"][:-4]), rtol=1e-5, atol=1e-5
    )


FIT = "model.fit(x, y, batch_size=4)"
SGD = "keras.optimizers.SGD()"
TWICE = """
class Twice(keras.Model):
    def train_step(self, *arguments):
        optimizer = self.optimizer
        if keras.backend.backend() == "jax":
            trained, others, of_optimizer, of_metrics = arguments[0]
            for _ in range(2):
                trained, of_optimizer = optimizer.stateless_apply(of_optimizer, trained, trained)
            return {}, (trained, others, of_optimizer, of_metrics)
        for _ in range(2):
            optimizer.apply([v.value for v in self.trainable_variables], self.trainable_variables)
        return {}
model = Twice(model.inputs, model.outputs)
model.compile(quorate.keras.distribute(keras.optimizers.SGD(), model), loss="mse")
"""
MISTAKES = [
    ("torch", f"quorate.distribute({SGD}, model)", "call quorate.keras.distribute"),
    ("torch", "quorate.keras.distribute('sgd', model)", "takes an optimizer object of Keras, not str"),
    ("torch", f"o = {SGD}\nquorate.keras.distribute(quorate.keras.distribute(o, model), model)", "already"),
    (
        "torch",
        f"quorate.keras.distribute({SGD}, model)\nmodel.compile('sgd', 'mse')\n{FIT}",
        "compiled with another optimizer",
    ),
    (
        "torch",
        "model.compile('sgd', loss='mse')\nmodel.fit(x, y, callbacks=[quorate.keras.Callback()])",
        "no distributed",
    ),
    (
        "torch",
        "import quorate.horovod.tensorflow.keras as hvd\nhvd.init()\n"
        f"model.compile(hvd.DistributedOptimizer({SGD}), loss='mse')\n{FIT}",
        "has no model yet",
    ),
    ("torch", "quorate.keras.data(x, y[:3], batch_size=4)", "different lengths"),
    (
        "torch",
        f"model.compile(quorate.keras.distribute({SGD}, model), loss='mse', jit_compile=True)\n{FIT}",
        "on the torch backend jit_compile=True",
    ),
    (
        "torch",
        f"quorate.keras.distribute({SGD}, model, 'quorum', momentum='worker')",
        'quorum with momentum="worker"',
    ),
    ("jax", TWICE + FIT, "applied gradients 2 times a batch"),
    ("tensorflow", TWICE + FIT, "applied gradients 2 times a batch"),
    (
        "jax",
        f"import jax\no = quorate.keras.distribute({SGD}, model)\nvariables = model.trainable_variables\n"
        "jax.jit(lambda values: o.apply(values, variables))([v.value for v in variables])",
        "inside a compiled function",
    ),
    (
        "jax",
        f"o = quorate.keras.distribute({SGD}, model)\nvalues = [v.value for v in model.trainable_variables]\n"
        "o.stateless_apply([v.value for v in o.variables], values, values)",
        "optimizer.stateless_apply was called in a loop",
    ),
    (
        "tensorflow",
        f"import tensorflow as tf\no = quorate.keras.distribute({SGD}, model)\n"
        "tf.function(lambda: o.apply([v.value for v in model.trainable_variables], model.trainable_variables))()",
        "inside a compiled function",
    ),
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("backend", "lines", "words"),
    [pytest.param(*mistake, marks=skipped(*{"torch": ()}.get(mistake[0], mistake[:1]))) for mistake in MISTAKES],
)
def test_mistakes_are_one_sentence(backend: str, lines: str, words: str, tmp_path: Path) -> None:
    check_refused(tmp_path, SCRIPT + lines + "\n", words, **where(backend))
