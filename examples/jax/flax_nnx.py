"""Digits by a network of Flax NNX with batch norm and dropout, on all workers there are.

quorate run -n 2 examples/jax/flax_nnx.py
quorate run --virtual 4 --strategy local-sgd examples/jax/flax_nnx.py
"""

import jax
import jax.numpy as jnp
import optax
import torch
from flax import nnx
from sklearn.datasets import load_digits

import quorate
import quorate.jax


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, 32, rngs=rngs)
        self.norm = nnx.BatchNorm(32, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.1)
        self.out = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        return self.out(self.dropout(jax.nn.relu(self.norm(self.hidden(x))), rngs=rngs))


world = quorate.join()
digits = load_digits()
images, labels = (digits.images.reshape(-1, 64) / 16).astype("float32"), digits.target
held_out = jnp.asarray(images[1500:]), jnp.asarray(labels[1500:])
loader = quorate.loader(
    torch.utils.data.TensorDataset(torch.from_numpy(images[:1500]), torch.from_numpy(labels[:1500])), batch_size=32
)

graph, params, statistics = nnx.split(Net(nnx.Rngs(world.seed)), nnx.Param, nnx.BatchStat)


@jax.jit
def compute(params, statistics, x, y, key):
    """Return the loss, the newest statistics, and the gradients."""

    def loss_of(params):
        model = nnx.merge(graph, params, statistics, copy=True)
        model.train()
        loss = optax.softmax_cross_entropy_with_integer_labels(model(x, nnx.Rngs(dropout=key)), y).mean()
        return loss, nnx.state(model, nnx.BatchStat)

    (loss, newest), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    return loss, newest, grads


state = quorate.jax.distribute(params, optax.adam(0.01), "all-reduce", statistics=statistics)
for epoch in range(5):
    for step, (x, y) in enumerate(loader):
        key = state.own_key(jax.random.fold_in(jax.random.key(epoch), step))
        loss, statistics, grads = compute(state.params, statistics, jnp.asarray(x.numpy()), jnp.asarray(y.numpy()), key)
        state.step(grads, loss=loss, statistics=statistics)
    with world.evaluate():
        model = nnx.merge(graph, state.params, state.statistics)
        model.eval()
        accuracy = float((model(held_out[0]).argmax(1) == held_out[1]).mean())
        quorate.log(accuracy=accuracy)
        if world.is_first:
            print(f"epoch {epoch}: accuracy {accuracy:.3f}", flush=True)
params = state.finish()
print("result", [float(leaf.sum()) for leaf in jax.tree.leaves((params, state.statistics))])
