"""A loop of its own in TensorFlow on all workers, beside one on the joined batch; run as a script."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tensorflow as tf
import torch

import quorate
import quorate.tf

STEPS, BATCH = 4, 16
X = np.random.default_rng(0).normal(size=(STEPS * BATCH, 4)).astype("float32")
Y = X.sum(1, keepdims=True)


def trained(world: Any, *, is_compiled: bool, together: bool) -> list[float]:
    """The variables after four steps of SGD."""
    w, b = tf.Variable(tf.fill([4, 1], 0.1 * (1 + (world.rank if together else 0)))), tf.Variable(tf.zeros([1]))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w + b - y) ** 2)
        chosen = quorate.tf.gradients(tape) if together else tape
        grads = chosen.gradient(loss, [w, b])
        for variable, grad in zip((w, b), grads, strict=True):
            variable.assign_sub(0.1 * grad)
        return loss

    if together and not is_compiled:
        quorate.tf.begin([w, b])
    run = tf.function(step) if is_compiled else step
    size = BATCH // world.size if together else BATCH
    for number in range(STEPS):
        begin = number * BATCH + (world.rank * size if together else 0)
        run(tf.constant(X[begin : begin + size]), tf.constant(Y[begin : begin + size]))
    return [float(x) for v in (w, b) for x in v.numpy().ravel()]


if __name__ == "__main__":
    world = quorate.join()
    for is_compiled in (False, True):
        expected = trained(world, is_compiled=is_compiled, together=False)
        ends = world.gather(torch.tensor(trained(world, is_compiled=is_compiled, together=True)))
        if world.is_first:
            print("case", json.dumps([str(is_compiled), expected, [x.tolist() for x in ends]]), flush=True)
