"""Digits by a network of Flax linen with dropout, and a schedule of optax, on all workers there are.

quorate run -n 2 examples/jax/flax_linen.py
quorate run --virtual 4 --strategy eager-majority examples/jax/flax_linen.py
"""

import jax
import jax.numpy as jnp
import optax
import torch
from flax import linen
from sklearn.datasets import load_digits

import quorate
import quorate.jax


class Net(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array, *, is_training: bool) -> jax.Array:
        x = linen.relu(linen.Conv(8, (3, 3))(x))
        x = linen.max_pool(x, (2, 2), strides=(2, 2)).reshape(len(x), -1)
        x = linen.Dropout(0.1, deterministic=not is_training)(x)
        return linen.Dense(10)(x)


world = quorate.join()
digits = load_digits()
images, labels = (digits.images[..., None] / 16).astype("float32"), digits.target
held_out = jnp.asarray(images[1500:]), jnp.asarray(labels[1500:])
loader = quorate.loader(
    torch.utils.data.TensorDataset(torch.from_numpy(images[:1500]), torch.from_numpy(labels[:1500])), batch_size=32
)

model = Net()
params = model.init(jax.random.key(world.seed), held_out[0][:1], is_training=False)["params"]


@jax.jit
@jax.value_and_grad
def compute(params, x, y, key):
    logits = model.apply({"params": params}, x, is_training=True, rngs={"dropout": key})
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


rate = optax.cosine_decay_schedule(0.01, decay_steps=5 * len(loader), alpha=0.1)
state = quorate.jax.distribute(params, optax.inject_hyperparams(optax.adam)(learning_rate=rate), "all-reduce")
for epoch in range(5):
    for step, (x, y) in enumerate(loader):
        key = state.own_key(jax.random.fold_in(jax.random.key(epoch), step))
        loss, grads = compute(state.params, jnp.asarray(x.numpy()), jnp.asarray(y.numpy()), key)
        state.step(grads, loss=loss)
    with world.evaluate():
        logits = model.apply({"params": state.params}, held_out[0], is_training=False)
        accuracy = float((logits.argmax(1) == held_out[1]).mean())
        quorate.log(accuracy=accuracy)
        if world.is_first:
            print(f"epoch {epoch}: accuracy {accuracy:.3f}", flush=True)
params = state.finish()
print("result", [float(leaf.sum()) for leaf in jax.tree.leaves(params)])
