"""Keras 3 on its three backends: `quorate.keras`, Horovod's names, and a loop of its own with a torch optimizer."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch

from quorate import horovod
from tests.architecture.tree import ROOT
from tests.support.libraries import (
    PYTHON,
    TENSORFLOW,
    check_cases,
    check_refused,
    needs,
    result_of,
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


def run_on(backend: str, folder: Path, *words: str, status: int = 0, verb: str = "run") -> str:
    paths = [TENSORFLOW] if backend == "tensorflow" else []
    return run(folder, *words, status=status, paths=paths, backend=backend, verb=verb)


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
    check(run_on("torch", tmp_path, "--virtual", "3", str(TRAININGS), "batches", "diloco", "adaptive"), at_least=3)


@pytest.mark.timeout(240)
def test_a_script_for_horovod_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = ROOT / "tests" / "support" / "horovod_scripts" / "keras_mnist.py"
    (tmp_path / "train.py").write_text(script.read_text().replace("horovod.keras", "quorate.horovod.tensorflow.keras"))
    for words in (["train.py"], ["--strategy", "local-sgd", "train.py"]):
        text = run_on("torch", tmp_path, "-n", "2", *words)
        assert float(re.findall(r"accuracy: ([\d.]+)", text)[-1]) >= 0.9
    assert (tmp_path / "checkpoint-4.keras").exists()
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
    (tmp_path / "train.py").write_text(lines)
    assert re.search(r"rank 1.*(SIGKILL|died|killed)", run_on(backend, tmp_path, "-n", "2", "train.py", status=1))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("quorate.distribute(keras.optimizers.SGD(), model)", "call quorate.keras.distribute"),
        ("quorate.keras.distribute('sgd', model)", "takes an optimizer object of Keras, not str"),
        ("o = keras.optimizers.SGD()\nquorate.keras.distribute(quorate.keras.distribute(o, model), model)", "already"),
        (
            "quorate.keras.distribute(keras.optimizers.SGD(), model)\nmodel.compile('sgd', 'mse')\nmodel.fit(x, y)",
            "compiled with another optimizer",
        ),
        ("model.compile('sgd', loss='mse')\nmodel.fit(x, y, callbacks=[quorate.keras.Callback()])", "no distributed"),
        (
            "import quorate.horovod.tensorflow.keras as hvd\nhvd.init()\n"
            "model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), loss='mse')\nmodel.fit(x, y)",
            "has no model yet",
        ),
        ("quorate.keras.data(x, y[:3], batch_size=4)", "different lengths"),
    ],
)
def test_mistakes_are_one_sentence(lines: str, words: str, tmp_path: Path) -> None:
    check_refused(tmp_path, SCRIPT + lines + "\n", words)
