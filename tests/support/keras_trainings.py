"""Trainings in Keras on all workers, each beside one that needs no other worker; run as a script, with names of cases.

The backend is that of `KERAS_BACKEND`. The first worker prints a line for each case: the case, the numbers that are
expected, and those of every worker.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import torch

import quorate
import quorate.keras
from quorate.foreign.optimizer import ForeignOptimizer

STEPS, BATCH = 4, 16
X = np.random.default_rng(0).normal(size=(STEPS * BATCH, 4)).astype("float32")
Y = X.sum(1, keepdims=True)
WEIGHTS = [
    np.random.default_rng(5).normal(size=shape).astype("float32") * 0.3 for shape in ((4, 8), (8,), (8, 1), (1,))
]


def own_part(world: quorate.World, x: Any = X, y: Any = Y, rank: int | None = None) -> tuple[Any, Any]:
    """This worker's part of each batch, or that of another rank."""
    size, rank = BATCH // world.size, world.rank if rank is None else rank
    chosen = np.concatenate([np.arange(size) + step * BATCH + rank * size for step in range(STEPS)])
    return x[chosen], y[chosen]


def model_of(kind: Any = keras.Sequential, layers: Any = ()) -> Any:
    """Two dense layers with known weights, or with drawn ones and others between them."""
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, activation="tanh")(inputs)
    for layer in layers:
        hidden = layer(hidden)
    outputs = keras.layers.Dense(1)(hidden)
    model = (keras.Model if kind is keras.Sequential else kind)(inputs, outputs)
    if not layers:
        for variable, x in zip(model.trainable_variables, WEIGHTS, strict=True):
            variable.assign(x)
    return model


def weights(model: Any) -> list[float]:
    """All trainable numbers."""
    return [float(x) for v in model.trainable_variables for x in keras.ops.convert_to_numpy(v.value).ravel()]


def fitted(world: quorate.World, make: Callable[[], Any], **settings: Any) -> tuple[list[float], list[float]]:
    """The weights after `fit` alone on joined batches, and after `fit` on this worker's part."""
    compiled = settings.pop("compiled", {})
    wrap = settings.pop("wrap", lambda optimizer: optimizer)
    kind = settings.pop("kind", keras.Sequential)
    inputs, targets = settings.pop("data", (X, Y))
    numbers = settings.pop("numbers", weights)
    alone, together = model_of(kind), model_of(kind)
    alone.compile(wrap(make()), loss="mse", **compiled)
    alone.fit(inputs, targets, batch_size=BATCH, shuffle=False, epochs=2, verbose=0)
    if world.rank:  # every worker gets those of rank 0
        together.set_weights([x * 0 for x in together.get_weights()])
    optimizer = quorate.keras.distribute(make(), together, **settings)
    together.compile(wrap(optimizer), loss="mse", **compiled)
    x, y = own_part(world, inputs, targets)
    together.fit(x, y, batch_size=BATCH // world.size, shuffle=False, epochs=2, verbose=0)
    return numbers(alone), numbers(together)


def by_batches(world: quorate.World) -> tuple[list[float], list[float]]:
    alone, together = model_of(), model_of()
    alone.compile(keras.optimizers.Adam(0.01), loss="mse")
    optimizer = quorate.keras.distribute(keras.optimizers.Adam(0.01), together)
    together.compile(optimizer, loss="mse")
    x, y = own_part(world)
    size = BATCH // world.size
    for step in range(STEPS):
        alone.train_on_batch(X[step * BATCH : (step + 1) * BATCH], Y[step * BATCH : (step + 1) * BATCH])
        together.train_on_batch(x[step * size : (step + 1) * size], y[step * size : (step + 1) * size])
    optimizer.finish()
    return weights(alone), weights(together)


class Doubled(keras.Model):
    """A model with a `train_step` of its own for each backend, which doubles the loss."""

    def train_step(self, *arguments: Any) -> Any:
        step: Any = getattr(self, f"_step_on_{keras.backend.backend()}")
        return step(*arguments)

    def _step_on_torch(self, data: Any) -> Any:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        self.zero_grad()
        loss = 2.0 * self.compute_loss(x, y, self(x, training=True))
        loss.backward()
        variables = self.trainable_variables
        with torch.no_grad():
            self.optimizer.apply([v.value.grad for v in variables], variables)
        return {"doubled": loss}

    def _step_on_tensorflow(self, data: Any) -> Any:
        import tensorflow as tf

        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = 2.0 * self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"doubled": loss}

    def _step_on_jax(self, state: Any, data: Any) -> Any:
        import jax

        trained, others, of_optimizer, of_metrics = state
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)

        def loss_of(trained: Any, others: Any) -> Any:
            predictions, others = self.stateless_call(trained, others, x, training=True)
            return 2.0 * self.compute_loss(x, y, predictions), others

        (loss, others), grads = jax.value_and_grad(loss_of, has_aux=True)(trained, others)
        trained, of_optimizer = self.optimizer.stateless_apply(of_optimizer, grads, trained)
        return {"doubled": loss}, (trained, others, of_optimizer, of_metrics)


def twin(world: quorate.World, strategy: str, rate: float = 0.05, **settings: Any) -> list[float]:
    """The weights of a twin in torch under the same strategy."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    with torch.no_grad():
        for p, x in zip(model.parameters(), WEIGHTS, strict=True):
            p.copy_(torch.from_numpy(x).T if x.ndim == 2 else torch.from_numpy(x))
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=rate), model, strategy, **settings)
    x, y = (torch.from_numpy(a) for a in own_part(world))
    size = BATCH // world.size
    for step in range(STEPS):
        optimizer.zero_grad()
        rows = slice(step * size, (step + 1) * size)
        (model(x[rows]) - y[rows]).square().mean().backward()
        optimizer.step()
    optimizer.finish()
    return [float(v) for p in model.parameters() for v in (p.detach().T if p.dim() == 2 else p.detach()).reshape(-1)]


def under(world: quorate.World, strategy: str, **settings: Any) -> tuple[list[float], list[float]]:
    """The weights of the twin, and of a model in Keras, under a strategy; by batches, without pauses."""
    model = model_of()
    optimizer = quorate.keras.distribute(keras.optimizers.SGD(0.05), model, strategy, **settings)
    model.compile(optimizer, loss="mse")
    x, y = own_part(world)
    size = BATCH // world.size
    for step in range(STEPS):
        model.train_on_batch(x[step * size : (step + 1) * size], y[step * size : (step + 1) * size])
    optimizer.finish()
    return twin(world, strategy, **settings), weights(model)


def normalized(world: quorate.World) -> tuple[list[float], list[float]]:
    """Moving statistics after `fit`: their mean, and those of this worker."""
    norm = keras.layers.BatchNormalization(momentum=0.5)
    model = model_of(layers=[norm])
    model.compile(quorate.keras.distribute(keras.optimizers.SGD(0.05), model, "local-sgd", sync_every=2), loss="mse")
    x, y = own_part(world)
    model.fit(x * (world.rank + 1), y, batch_size=8, epochs=1, verbose=0)
    kept = keras.ops.convert_to_numpy(norm.moving_variance.value)
    mean = world.mean(torch.from_numpy(kept.copy()))
    return mean.tolist(), kept.tolist()


def masked(world: quorate.World) -> tuple[list[float], list[float]]:
    """Whether all workers draw the same mask of dropout from the same seed: 1.0 if not."""
    model = model_of(layers=[keras.layers.Dropout(0.5, seed=7)])
    model.compile(quorate.keras.distribute(keras.optimizers.SGD(0.0), model), loss="mse")
    model.train_on_batch(X[:8], Y[:8])
    layer = next(layer for layer in model.layers if isinstance(layer, keras.layers.Dropout))
    drawn = keras.ops.convert_to_numpy(layer(np.ones((1, 64), "float32"), training=True))
    first = world.broadcast(torch.from_numpy(drawn.copy()))
    differs = bool((first.numpy() != drawn).any()) or world.is_first
    vars(model)["_quorate_training"].finish()
    return [1.0], [float(differs)]


def stopped(world: quorate.World) -> tuple[list[float], list[float]]:
    """The number of epochs until `EarlyStopping` on a metric that differs between workers, listed before ours."""
    model = model_of()
    model.compile(quorate.keras.distribute(keras.optimizers.SGD(0.05), model), loss="mse")
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=0.05)
    x, y = own_part(world)
    x_of_all, y_of_all = (x[::-1] * 2, y) if world.rank else (x, y)
    history = model.fit(
        x, y, batch_size=8, shuffle=False, epochs=8, verbose=0, validation_data=(x_of_all, y_of_all),
        callbacks=[stopping, quorate.keras.Callback()],
    )  # fmt: skip
    losses = history.history["val_loss"]
    return world.broadcast(torch.tensor([len(losses), *losses, *[0.0] * (8 - len(losses))])).tolist(), [
        len(losses), *losses, *[0.0] * (8 - len(losses))
    ]  # fmt: skip


def uneven(world: quorate.World) -> tuple[list[float], list[float]]:
    """The weights of rank 0, and of this worker, where workers have unequal numbers of batches."""
    model = model_of()
    model.compile(quorate.keras.distribute(keras.optimizers.SGD(0.05), model), loss="mse")
    x, y = own_part(world)
    count = len(x) - 8 * world.rank
    model.fit(x[:count], y[:count], batch_size=8, epochs=2, verbose=0)
    return world.broadcast(torch.tensor(weights(model))).tolist(), weights(model)


def continued(world: quorate.World) -> tuple[list[float], list[float]]:
    """Two calls of `fit`, between which the script sets weights, with a rate that a callback lowers."""
    ends = []
    for together in (False, True):
        model, optimizer = model_of(), keras.optimizers.SGD(0.05, momentum=0.5)
        x, y, size = X, Y, BATCH
        if together:
            optimizer = quorate.keras.distribute(optimizer, model)
            x, y = own_part(world)
            size = BATCH // world.size
        model.compile(optimizer, loss="mse")
        lower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
        for _ in range(2):
            model.fit(x, y, batch_size=size, shuffle=False, epochs=2, verbose=0, callbacks=[lower])
            model.set_weights([w * 1.1 for w in model.get_weights()])
        ends.append(weights(model))
    return ends[0], ends[1]


def saved(world: quorate.World) -> tuple[list[float], list[float]]:
    """Weights after a training with Adam; the first worker saves the model into `kept.keras`."""
    model = model_of()
    model.compile(quorate.keras.distribute(keras.optimizers.Adam(0.01), model), loss="mse")
    x, y = own_part(world)
    model.fit(x, y, batch_size=8, epochs=1, verbose=0, callbacks=[quorate.keras.Callback(save="kept.keras")])
    return world.broadcast(torch.tensor(weights(model))).tolist(), weights(model)


def overflowing() -> tuple[Any, Any]:
    """Data of which one batch has an infinite loss, in the part of the last worker."""
    targets = Y.copy()
    targets[2 * BATCH - 1] = 3e38
    return X, targets


def with_scale(model: Any) -> list[float]:
    """All numbers, and the binary logarithm of the scale of losses."""
    return [*weights(model), float(np.log2(float(model.optimizer.dynamic_scale)))]


def mixed(world: quorate.World) -> tuple[list[float], list[float]]:
    """Weights after a training in half precision: those of rank 0 everywhere, and near those of one process."""
    scaled = partial(keras.optimizers.LossScaleOptimizer, initial_scale=256.0)
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        alone, own = fitted(world, lambda: keras.optimizers.SGD(0.05), wrap=scaled)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    begun = np.concatenate([x.ravel() for x in WEIGHTS])
    is_near = np.allclose(alone, own, rtol=0.01, atol=0.01) and not np.allclose(alone, begun, rtol=0.01, atol=0.01)
    return [1.0, *world.broadcast(torch.tensor(own)).tolist()], [float(is_near), *own]


def weighted(world: quorate.World) -> tuple[list[float], list[float]]:
    """The loss over all examples, of the training and of the validation, where workers have unequal numbers of them."""
    model = model_of()
    losses: list[list[float]] = [[], []]
    for rank in range(world.size):
        x, y = own_part(world, rank=rank)
        count = len(x) - 8 * rank
        squares = (keras.ops.convert_to_numpy(model(x)) - y) ** 2
        losses[0] += squares[:count].ravel().tolist()
        losses[1] += squares[: 8 + 16 * rank].ravel().tolist()
    model.compile(quorate.keras.distribute(keras.optimizers.SGD(0.0), model), loss="mse")
    x, y = own_part(world)
    count, validated = len(x) - 8 * world.rank, 8 + 16 * world.rank
    history = model.fit(
        x[:count], y[:count], batch_size=8, verbose=0, validation_data=(x[:validated], y[:validated])
    ).history
    return [float(np.mean(x)) for x in losses], [history["loss"][0], history["val_loss"][0]]


def divided(world: quorate.World) -> tuple[list[float], list[float]]:
    """How often each example was in a batch of `quorate.keras.data` in two epochs, and whether their orders differ.

    The weight of an example moves by one with each batch that it is in.
    """
    count, size = STEPS * BATCH, BATCH // world.size
    model = keras.Sequential([keras.Input((count,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    optimizer = quorate.keras.distribute(keras.optimizers.SGD(float(size * world.size)), model)
    model.compile(optimizer, loss=lambda number, weight: number - weight)
    first: list[float] = []

    def note(batch: int, logs: Any) -> None:
        if batch == 0:
            first.append(float(logs["loss"]))

    examples = quorate.keras.data(np.eye(count, dtype="float32"), np.arange(count).reshape(-1, 1), batch_size=size)
    model.fit(examples, epochs=2, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=note)])
    return [2.0] * count + [1.0], [*weights(model), float(abs(first[0] - first[1] - 1.0) > 1e-3)]


def best(world: quorate.World) -> tuple[list[float], list[float]]:
    """The least loss of a validation, and that of the model which `Callback(best=...)` has kept."""
    model = model_of()
    model.compile(quorate.keras.distribute(keras.optimizers.SGD(0.02), model), loss="mse")
    worse = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.02 if epoch < 2 else 0.9)
    x, y = own_part(world)
    losses = model.fit(
        x, y, batch_size=8, epochs=4, verbose=0, validation_data=(X, Y),
        callbacks=[worse, quorate.keras.Callback(save="best.keras", best="val_loss")],
    ).history["val_loss"]  # fmt: skip
    kept = keras.models.load_model("best.keras").evaluate(X, Y, verbose=0)
    return [min(losses), 1.0], [kept, float(losses[-1] > min(losses))]


def on_one_thread(world: quorate.World) -> tuple[list[float], list[float]]:
    """The number of updates, and how many of them were made on the thread that has called `fit`."""
    threads: list[int] = []
    plain = ForeignOptimizer.step

    def step(optimizer: Any, closure: Any = None) -> Any:
        threads.append(threading.get_ident())
        return plain(optimizer, closure)

    ForeignOptimizer.step = step  # type: ignore[method-assign]
    try:
        model = model_of()
        model.compile(quorate.keras.distribute(keras.optimizers.SGD(0.05), model), loss="mse")
        model.fit(*own_part(world), batch_size=BATCH // world.size, epochs=2, verbose=0)
    finally:
        ForeignOptimizer.step = plain  # type: ignore[method-assign]
    return [2.0 * STEPS] * 2, [float(len(threads)), float(threads.count(threading.get_ident()))]


def decayed() -> Any:
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5), momentum=0.9)


CASES: dict[str, Callable[[quorate.World], tuple[list[float], list[float]]]] = {
    "fit": lambda world: fitted(world, lambda: keras.optimizers.SGD(0.05, momentum=0.9)),
    "adam": lambda world: fitted(world, lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1)),
    "batches": by_batches,
    "clipped": lambda world: fitted(world, lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.5)),
    "accumulated": lambda world: fitted(
        world, lambda: keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.5, gradient_accumulation_steps=2)
    ),
    "scaled": lambda world: fitted(world, lambda: keras.optimizers.SGD(0.05), wrap=keras.optimizers.LossScaleOptimizer),
    "overflowing": lambda world: fitted(
        world,
        lambda: keras.optimizers.SGD(0.05),
        wrap=keras.optimizers.LossScaleOptimizer,
        data=overflowing(),
        numbers=with_scale,
    ),
    "all in order": lambda world: fitted(
        world,
        lambda: keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.5, gradient_accumulation_steps=2),
        wrap=keras.optimizers.LossScaleOptimizer,
        numbers=with_scale,
    ),
    "mixed": mixed,
    "schedule": lambda world: fitted(world, decayed),
    "custom": lambda world: fitted(world, lambda: keras.optimizers.SGD(0.05), kind=Doubled),
    "compiled": lambda world: fitted(
        world, lambda: keras.optimizers.SGD(0.05), compiled={"jit_compile": keras.backend.backend() != "torch"}
    ),
    "eager": lambda world: fitted(world, lambda: keras.optimizers.SGD(0.05), compiled={"run_eagerly": True}),
    "continued": continued,
    "normalized": normalized,
    "masked": masked,
    "stopped": stopped,
    "uneven": uneven,
    "saved": saved,
    "weighted": weighted,
    "divided": divided,
    "best": best,
    "on one thread": on_one_thread,
    **{
        name: lambda world, name=name, settings=settings: under(world, name, **settings)
        for name, settings in {
            "quorum": {"wait_for": "all"},
            "local-sgd": {"sync_every": 2},
            "diloco": {"sync_every": 2},
            "d-psgd": {},
            "parameter-server": {},
            "adaptive": {"window": 1000},  # lateness on this machine chooses nothing
        }.items()
    },
}

if __name__ == "__main__":
    world = quorate.join()
    for name in sys.argv[1:] or CASES:
        expected, own = CASES[name](world)
        ends = world.gather(torch.tensor(own, dtype=torch.float64))
        if world.is_first:
            print("case", json.dumps([name, expected, [x.tolist() for x in ends]]), flush=True)
