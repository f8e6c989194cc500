"""Trainings in JAX and optax beside twins in torch; run as a script with names of cases.

Under `quorate run` it trains with the workers of the run, else in a virtual world of three. The first worker prints a
line for each case: the case, the numbers that are expected, and those of every worker.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import torch

import quorate
import quorate.jax
from quorate.checkpoint.participants import CheckpointContext
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

STEPS, BATCH = 6, 4
X = torch.randn(200, 4, generator=torch.Generator().manual_seed(3))
Y = X.sum(1, keepdim=True)
WEIGHTS = [torch.randn(shape, generator=torch.Generator().manual_seed(1)) / 2 for shape in ((8, 4), (8,), (1, 8), (1,))]
Case = Callable[[quorate.World], tuple[list[float], list[float]]]


def batch(rank: int, step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of a worker."""
    begin = (step * size + rank) * BATCH % 192
    return X[begin : begin + BATCH], Y[begin : begin + BATCH]


def numbers(tensors: Any) -> list[float]:
    return [float(x) for tensor in tensors for x in tensor.detach().reshape(-1)]


def in_torch(world: quorate.World, make: Any, strategy: str, **settings: Any) -> list[float]:
    """The parameters of the twin after the training."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    with torch.no_grad():
        for p, x in zip(model.parameters(), WEIGHTS, strict=True):
            p.copy_(x)
    rate_of = settings.pop("rate_of", None)
    optimizer = quorate.distribute(make(model.parameters()), model, strategy, **settings)
    for step in range(STEPS):
        x, y = batch(world.rank, step, world.size)
        if rate_of is not None:
            optimizer.param_groups[0]["lr"] = rate_of(step)
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    optimizer.finish()
    return numbers(model.parameters())


def params() -> dict[str, Any]:
    w, b, v, c = (jnp.array(x.numpy()) for x in WEIGHTS)
    return {"hidden": {"a_weight": w, "bias": b}, "out": {"a_weight": v, "bias": c}}


def loss_of(p: Any, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(x @ p["hidden"]["a_weight"].T + p["hidden"]["bias"])
    return ((hidden @ p["out"]["a_weight"].T + p["out"]["bias"] - y) ** 2).mean()


value_and_grad = jax.jit(jax.value_and_grad(loss_of))


def tensors_of(p: Any) -> list[torch.Tensor]:
    return [torch.from_dlpack(x).clone() for x in (*p["hidden"].values(), *p["out"].values())]


def steps(world: quorate.World, state: Any, begin: int = 0, end: int = STEPS) -> None:
    for step in range(begin, end):
        x, y = (jnp.array(part.numpy()) for part in batch(world.rank, step, world.size))
        loss, grads = value_and_grad(state.params, x, y)
        state.step(grads, loss=loss)


def beside(world: quorate.World, tx: Any, make: Any, strategy: str, **settings: Any) -> tuple[list[float], list[float]]:
    expected = in_torch(world, make, strategy, **settings)
    state = quorate.jax.distribute(params(), tx, strategy, **settings)
    steps(world, state)
    return expected, numbers(tensors_of(state.finish()))


def sgd(strategy: str, **settings: Any) -> Case:
    """Plain SGD, in both."""
    return lambda world: beside(world, optax.sgd(0.05), lambda ps: torch.optim.SGD(ps, lr=0.05), strategy, **settings)


def adam(strategy: str, **settings: Any) -> Case:
    tx = optax.inject_hyperparams(optax.adam)(learning_rate=0.01)
    return lambda world: beside(world, tx, lambda ps: torch.optim.Adam(ps, lr=0.01), strategy, **settings)


def resumed(world: quorate.World) -> tuple[list[float], list[float]]:
    """An unbroken training, and one that is saved with its optax state after three steps, and loaded again."""
    tx = optax.inject_hyperparams(optax.adam)(learning_rate=0.01)
    unbroken = quorate.jax.distribute(params(), tx, name="unbroken")
    steps(world, unbroken)
    expected = numbers(tensors_of(unbroken.finish()))
    root = Path(world.broadcast(tempfile.mkdtemp() if world.is_first else ""))
    current.here().context(CheckpointContext).root = root
    state = quorate.jax.distribute(params(), tx, name="kept")
    steps(world, state, 0, 3)
    quorate.save()
    steps(world, state, 3, 5)
    quorate.load()
    steps(world, state, 3)
    return expected, numbers(tensors_of(state.finish()))


def shown(world: quorate.World) -> tuple[list[float], list[float]]:
    """The mean of the replicas, and the parameters inside an evaluation."""
    state = quorate.jax.distribute(params(), optax.sgd(0.05), "local-sgd", sync_every=100)
    steps(world, state)
    own = torch.tensor(numbers(tensors_of(state.params)))
    mean = world.mean(own)
    with world.evaluate():
        seen = numbers(tensors_of(state.params))
    state.finish()
    return mean.tolist(), seen


def keyed(world: quorate.World) -> tuple[list[float], list[float]]:
    """Whether workers draw different numbers from one key: 1.0."""
    state = quorate.jax.distribute(params(), optax.sgd(0.05))
    drawn = torch.tensor(float(jax.random.uniform(state.own_key(jax.random.key(0)))))
    state.finish()
    everywhere = [float(x) for x in world.gather(drawn)]
    return [1.0], [float(len(set(everywhere)) == world.size)]


def halved(step: int) -> float:
    """A rate that is halved every two steps."""
    return 0.05 * 0.5 ** (step // 2)


def scheduled(strategy: str, **settings: Any) -> Case:
    """A schedule of optax, whose rate is an option of the distributed optimizer; beside rates that the script sets."""
    tx = optax.inject_hyperparams(optax.sgd)(learning_rate=optax.exponential_decay(0.05, 2, 0.5, staircase=True))

    def ends(world: quorate.World) -> tuple[list[float], list[float]]:
        make = lambda ps: torch.optim.SGD(ps, lr=0.05)  # noqa: E731
        expected = in_torch(world, make, strategy, rate_of=halved, **settings)
        state = quorate.jax.distribute(params(), tx, strategy, **settings)
        steps(world, state)
        rate = state.optimizer.param_groups[0]["lr"]
        return [*expected, halved(STEPS - 1)], [*numbers(tensors_of(state.finish())), rate]

    return ends


def rates_of_the_script(world: quorate.World) -> tuple[list[float], list[float]]:
    """Rates that the script sets in the state of optax, and then as an option of the distributed optimizer."""
    expected = in_torch(world, lambda ps: torch.optim.SGD(ps, lr=0.05), "all-reduce", rate_of=halved)
    state = quorate.jax.distribute(params(), optax.inject_hyperparams(optax.sgd)(learning_rate=0.05))
    for step in range(STEPS):
        if step < STEPS // 2:
            state.opt_state.hyperparams["learning_rate"] = jnp.asarray(halved(step))
        else:
            state.optimizer.param_groups[0]["lr"] = halved(step)
        steps(world, state, step, step + 1)
    return expected, numbers(tensors_of(state.finish()))


def not_copied(world: quorate.World) -> tuple[list[float], list[float]]:
    """How many gradients lie in the memory of the arrays that were passed to `state.step`: all."""
    state = quorate.jax.distribute(params(), optax.sgd(0.05), "local-sgd", sync_every=100)
    x, y = (jnp.array(part.numpy()) for part in batch(world.rank, 0, world.size))
    _, grads = value_and_grad(state.params, x, y)
    places = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(grads)]
    state.step(grads)
    shared = [p.grad is not None and p.grad.data_ptr() == at
              for p, at in zip(state.training.parameters, places, strict=True)]  # fmt: skip
    state.finish()
    return [4.0], [float(sum(shared))]


def joined_late(world: quorate.World) -> list[float]:
    """The parameters, and the numbers of the optax state, of workers of which one joins."""
    state = quorate.jax.distribute(params(), optax.adam(0.01), "quorum")
    loader = quorate.loader(torch.utils.data.TensorDataset(torch.arange(192.0)), 2, share="dynamic")
    for _ in range(loader.epoch, 2):
        for step, _batch in enumerate(loader):
            steps(world, state, step, step + 1)
            current.here().wire.clock.sleep(0.01)
        with world.evaluate():
            pass
    own = numbers(tensors_of(state.finish()))
    return [*own, *(float(x.sum()) for x in jax.tree.leaves(state.opt_state))]


def play_late() -> None:
    def live(wire: Any) -> list[float]:
        if wire.is_newcomer:
            wire.clock.sleep(0.1)
        return joined(joined_late)(wire)

    first, *ends = VirtualWorld(2, joiners=1, seed=3, timeout=60.0).run(live)
    print("case", json.dumps(["joined late", first, ends]), flush=True)


CASES: dict[str, Case] = {
    "all-reduce": adam("all-reduce"),
    "compressed": sgd("all-reduce", compress="half"),
    "quorum": sgd("quorum", wait_for=1),
    "diloco": adam("diloco", sync_every=2),
    "d-psgd": sgd("d-psgd"),
    "parameter-server": adam("parameter-server"),
    "adaptive": sgd("adaptive"),
    "moments averaged": adam("d-psgd", momentum="average"),
    "scheduled": scheduled("all-reduce"),
    "scheduled in rounds": scheduled("quorum", wait_for="all"),
    "rates of the script": rates_of_the_script,
    "not copied": not_copied,
    "resumed": resumed,
    "shown": shown,
    "keyed": keyed,
}


def play(world: quorate.World, names: list[str]) -> None:
    for name in names:
        expected, own = CASES[name](world)
        ends = world.gather(torch.tensor(own, dtype=torch.float64))
        if world.is_first:
            print("case", json.dumps([name, expected, [x.tolist() for x in ends]]), flush=True)


if __name__ == "__main__":
    names = sys.argv[1:] or list(CASES)
    if "joined late" in names:
        play_late()
    elif any(name.startswith("QUORATE_") for name in os.environ):  # under `quorate run`
        play(quorate.join(), names)
    else:
        VirtualWorld(3, timeout=60.0).run(joined(lambda world: play(world, names)))
