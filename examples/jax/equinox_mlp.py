"""Digits by a network of Equinox, whose parameters are the leaves that can be trained, on all workers there are.

quorate run -n 2 examples/jax/equinox_mlp.py
quorate run --virtual 4 --strategy diloco examples/jax/equinox_mlp.py
"""

import equinox
import jax
import jax.numpy as jnp
import optax
import torch
from sklearn.datasets import load_digits

import quorate
import quorate.jax

world = quorate.join()
digits = load_digits()
images, labels = (digits.images.reshape(-1, 64) / 16).astype("float32"), digits.target
held_out = jnp.asarray(images[1500:]), jnp.asarray(labels[1500:])
loader = quorate.loader(
    torch.utils.data.TensorDataset(torch.from_numpy(images[:1500]), torch.from_numpy(labels[:1500])), batch_size=32
)

model = equinox.nn.MLP(64, 10, width_size=32, depth=2, key=jax.random.key(world.seed))
params, static = equinox.partition(model, equinox.is_inexact_array)


@jax.jit
@jax.value_and_grad
def compute(params, x, y):
    logits = jax.vmap(equinox.combine(params, static))(x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


state = quorate.jax.distribute(params, optax.adamw(0.01), "all-reduce")
for epoch in range(5):
    for x, y in loader:
        loss, grads = compute(state.params, jnp.asarray(x.numpy()), jnp.asarray(y.numpy()))
        state.step(grads, loss=loss)
    with world.evaluate():
        logits = jax.vmap(equinox.combine(state.params, static))(held_out[0])
        accuracy = float((logits.argmax(1) == held_out[1]).mean())
        quorate.log(accuracy=accuracy)
        if world.is_first:
            print(f"epoch {epoch}: accuracy {accuracy:.3f}", flush=True)
params = state.finish()
print("result", [float(leaf.sum()) for leaf in jax.tree.leaves(params)])
