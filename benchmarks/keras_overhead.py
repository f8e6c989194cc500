"""The cost of strategies on a model of Keras beside a twin in torch, and the time until a death is named.

Both have the same network, batch, strategy and two workers, on each backend of Keras that is installed.

Level 1 is all-reduce, whose update is one call a step; level 2 is local-sgd, whose parameters live in the mirror. Both
trainings make steps in turn (A B A B) in the same workers, without data loading. The overhead is the difference of the
medians of a step, less that of the same trainings without Quorate.

Then one worker of two kills itself (SIGKILL) in a training: `fit` on each backend, and loops in JAX and in TensorFlow.
The figure is the time from then until the launcher has printed the sentence that names it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WIDTHS = {"quick": 760, "full": 1580}
"""Of the two hidden layers: 0.6 and 5 million parameters."""
BARS = {"all-reduce": 5.0, "local-sgd": 8.0}
SENTENCE = 1.0
"""The bar in seconds from the death of a worker to the sentence that names it."""
BACKENDS = ("torch", "jax", "tensorflow")
LOOPS = {"JAX loop": "jax", "TensorFlow loop": "tensorflow"}
_QUORATE = "import sys; from quorate.cli.main import main; sys.exit(main())"


def worker(backend: str, strategy: str, width: int, repeats: int, steps: int) -> None:
    """Print medians of milliseconds a step, and of CPU time, by repeat."""
    os.environ["KERAS_BACKEND"] = backend
    import keras
    import numpy as np
    import torch

    import quorate
    import quorate.keras

    world = quorate.join()
    settings: dict[str, Any] = {"sync_every": 8} if strategy == "local-sgd" else {}
    batch = 64
    x = np.random.default_rng(world.rank).normal(size=(batch, 64)).astype("float32")
    y = x.sum(1, keepdims=True)

    def in_keras(distributed: bool) -> Any:
        layers = [keras.layers.Dense(width, activation="tanh") for _ in range(3)]
        model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(1e-3)
        if distributed:
            optimizer = quorate.keras.distribute(optimizer, model, strategy, **settings)
        model.compile(optimizer, loss="mse")
        return lambda: model.train_on_batch(x, y)

    def in_torch(distributed: bool) -> Any:
        parts: list[Any] = []
        for before in (64, width, width):
            parts += [torch.nn.Linear(before, width), torch.nn.Tanh()]
        model = torch.nn.Sequential(*parts, torch.nn.Linear(width, 1))
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-3)
        if distributed:
            optimizer = quorate.distribute(optimizer, model, strategy, **settings)
        inputs, targets = torch.from_numpy(x), torch.from_numpy(y)

        def step() -> None:
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()

        return step

    arms = {
        "keras": in_keras(True),
        "torch": in_torch(True),
        "keras alone": in_keras(False),
        "torch alone": in_torch(False),
    }
    for step in arms.values():
        for _ in range(3):
            step()
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name, step in arms.items():
            world.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(steps):
                step()
            rows[name].append(((time.perf_counter() - wall) / steps * 1e3, (time.process_time() - cpu) / steps * 1e3))
    if world.is_first:
        print("rows", json.dumps(rows), flush=True)


def dying(kind: str) -> None:
    """One worker of two: rank 1 notes the time and kills itself at its fourth step."""
    import numpy as np

    import quorate

    world = quorate.join()
    x = np.random.default_rng(world.rank).normal(size=(256, 8)).astype("float32")
    y = x.sum(1, keepdims=True)

    def after(step: int) -> None:
        if world.rank == 1 and step == 3:
            Path("killed").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)

    if kind == "JAX loop":
        import jax
        import jax.numpy as jnp
        import optax

        import quorate.jax

        compute = jax.jit(jax.value_and_grad(lambda w: ((jnp.asarray(x) @ w - jnp.asarray(y)) ** 2).mean()))
        state = quorate.jax.distribute(jnp.zeros((8, 1)), optax.sgd(0.01))
        for step in range(10_000):
            loss, grads = compute(state.params)
            state.step(grads, loss=loss)
            after(step)
    elif kind == "TensorFlow loop":
        import tensorflow as tf

        import quorate.tf

        w = tf.Variable(tf.zeros([8, 1]))

        @tf.function
        def compute() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ w - y) ** 2)
            (grad,) = quorate.tf.gradients(tape).gradient(loss, [w])
            w.assign_sub(0.01 * grad)
            return loss

        for step in range(10_000):
            compute()
            after(step)
    else:
        import keras

        import quorate.keras

        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(quorate.keras.distribute(keras.optimizers.SGD(0.01), model), loss="mse")
        note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: after(batch))
        model.fit(x, y, batch_size=4, epochs=1000, verbose=0, callbacks=[note])


def seconds_to_sentence(kind: str) -> float:
    """Return the time from the death of a worker until the launcher names it."""
    backend = LOOPS.get(kind, kind)
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", "-n", "2", os.path.abspath(__file__), "--dying", kind]
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", _QUORATE, *words],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )  # fmt: skip
        assert process.stderr is not None
        lines: list[str] = []
        seconds = None
        for line in process.stderr:
            lines.append(line)
            if seconds is None and "rank 1" in line and "SIGKILL" in line:
                seconds = time.time() - float(Path(folder, "killed").read_text())
        process.wait()
    if seconds is None:
        raise SystemExit("".join(lines)[-3000:])
    return seconds


def measure(backend: str, strategy: str, size: str, repeats: int, steps: int) -> dict[str, list[tuple[float, float]]]:
    """Return milliseconds of wall and CPU time a step, by training."""
    words = [__file__, "--worker", backend, strategy, str(WIDTHS[size]), str(repeats), str(steps)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _QUORATE, "run", "-n", "2", *map(os.path.abspath, words[:1]), *words[1:]],
            cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "KERAS_BACKEND": backend},
        )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("rows ")]
    if not lines:
        raise SystemExit(done.stderr[-3000:])
    rows: dict[str, list[tuple[float, float]]] = json.loads(lines[0].removeprefix("rows "))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one backend, small layers, three repeats, one death")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, help="those that are installed, if none are named")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--dying", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.dying:
        dying(chosen.dying)
        return 0
    if chosen.worker:
        backend, strategy, width, repeats, steps = chosen.worker
        worker(backend, strategy, int(width), int(repeats), int(steps))
        return 0
    size = "quick" if chosen.quick else "full"
    repeats, steps = (3, 5) if chosen.quick else (5, 20)
    rows, bars = [], []
    backends = chosen.backends or [name for name in BACKENDS if importlib.util.find_spec(name)]
    for backend in backends[: 1 if chosen.quick else None]:
        for strategy, bar in BARS.items():
            measured = measure(backend, strategy, size, repeats, steps)
            for name, pairs in measured.items():
                walls, cpus = zip(*pairs, strict=True)
                print(
                    f"{backend:10} {strategy:10} {name:12} {statistics.median(walls):7.2f} ms a step", file=sys.stderr
                )
                rows += [
                    {"name": f"{backend}, {strategy}, {name}, {kind} ms", "median": statistics.median(values),
                     "low": min(values), "high": max(values), "n": len(values)}
                    for kind, values in (("wall", walls), ("CPU", cpus))
                ]  # fmt: skip
            for place, kind in enumerate(("wall", "CPU")):
                own, twin, alone, plain = (
                    statistics.median(pair[place] for pair in measured[name])
                    for name in ("keras", "torch", "keras alone", "torch alone")
                )
                over = (own - alone) - (twin - plain)
                is_measured = None if chosen.quick else over
                holds = None if chosen.quick else over <= bar
                bars.append(
                    {"name": f"{backend}, {strategy}: {kind} ms a step over the twin", "measured": is_measured,
                     "at_most": bar, "holds": holds}
                )  # fmt: skip
                print(f"{backend:10} {strategy:10} over the twin {over:7.2f} ms {kind}", file=sys.stderr)
    kinds = [*backends, *(loop for loop, backend in LOOPS.items() if backend in backends)]
    for kind in kinds[: 1 if chosen.quick else None]:
        times = [seconds_to_sentence(kind) for _ in range(1 if chosen.quick else 5)]
        print(f"{kind:16} a death is named after {statistics.median(times):5.2f} s", file=sys.stderr)
        median, worst = statistics.median(times), max(times)
        rows.append(
            {"name": f"{kind}, s to the sentence", "median": median, "low": min(times), "high": worst, "n": len(times)}
        )
        bars.append(
            {"name": f"{kind}: s to the sentence, the slowest of {len(times)}",
             "measured": None if chosen.quick else worst, "at_most": SENTENCE,
             "holds": None if chosen.quick else worst <= SENTENCE}
        )  # fmt: skip
    import torch

    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    result = {
        "benchmark": "keras_overhead",
        "machine": {"cores": os.cpu_count(), "torch": torch.__version__, "commit": commit, "system": platform.system()},
        "settings": {"size": size, "repeats": repeats, "steps": steps, "workers": 2},
        "rows": rows,
        "bars": bars,
    }
    if chosen.json:
        chosen.json.write_text(json.dumps(result))
    print(json.dumps(result))
    return int(chosen.strict and any(bar["holds"] is False for bar in bars))


if __name__ == "__main__":
    sys.exit(main())
