"""`optimizer.weight(count)`: a mean of all in a step is that of the joined batch.

Elsewhere the sum of weight times gradient that is applied is what was produced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.processes import run_real_world
from tests.support.scene import flat, net

PASSES, STEPS, FULL, IGNORED = 3, 4, 8, -100
JOINED: dict[str, tuple[str, dict[str, Any]]] = {
    "all-reduce": ("all-reduce", {}),
    "ring": ("all-reduce", {"reduce": "ring"}),
    "half": ("all-reduce", {"compress": "half", "dense_below": 0}),
    "survivors": ("all-reduce", {"on_death": "continue"}),
    "quorum of all": ("quorum", {"wait_for": "all"}),
    "quorum of all that arrived": ("quorum", {"wait_for": "all", "divide_by": "arrived"}),
    "synchronous servers": ("parameter-server", {}),
    "replicas": ("local-sgd", {"sync_every": 1}),
    "synchronous phase": ("post-local-sgd", {"after": 100}),
}
"""Strategies under which each step is that of the joined batch; one of replicas only without momentum."""


def batch(step: int, rank: int, number: int) -> tuple[Tensor, Tensor]:
    """Rows and their labels, of which some are ignored; the second worker's second batch has no valid label."""
    draw = torch.Generator().manual_seed(100 * step + 10 * rank + number)
    count = int(torch.randint(1, 7, (1,), generator=draw))
    labels = torch.randint(0, 3, (count,), generator=draw)
    labels[torch.rand(count, generator=draw) < (1.0 if (rank, number) == (1, 1) else 0.3)] = IGNORED
    return torch.randn(count, 4, generator=draw, dtype=torch.float64), labels


def model_of(seed: int = 0) -> nn.Module:
    return net(4, 6, 3, seed=seed).double()


def optimizer_of(model: nn.Module, name: str) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.0 if name == "replicas" else 0.9)


def in_one_process(name: str, size: int, *, absent: bool = False) -> Tensor:
    """The parameters after steps on the joined batches, in every other step without the second worker's if `absent`."""
    model = model_of()
    optimizer = optimizer_of(model, name)
    for step in range(STEPS):
        ranks = [rank for rank in range(size) if not (absent and (rank, step % 2) == (1, 1))]
        rows, labels = zip(*(batch(step, rank, k) for rank in ranks for k in range(PASSES)), strict=True)
        optimizer.zero_grad()
        F.cross_entropy(model(torch.cat(rows)), torch.cat(labels), ignore_index=IGNORED).backward()
        optimizer.step()
    return flat(model)


def mean_of_valid(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """A loss whose gradient is NaN where no label is valid; and the number of valid labels."""
    valid = labels != IGNORED
    losses = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
    return (losses * valid).sum() / valid.sum(), valid.sum()


def accumulated(optimizer: Any, model: nn.Module, step: int, rank: int) -> None:
    for k in range(PASSES):
        rows, labels = batch(step, rank, k)
        loss, count = mean_of_valid(model(rows), labels)
        optimizer.weight(count, full=FULL)
        if k < PASSES - 1:
            with optimizer.accumulate():
                loss.backward()
        else:
            loss.backward()


def each_agreed(optimizer: Any, model: nn.Module, step: int, rank: int) -> None:
    for k in range(PASSES):
        rows, labels = batch(step, rank, k)
        loss, count = mean_of_valid(model(rows), labels)
        optimizer.weight(int(count), full=FULL)
        loss.backward()


def in_two_losses(optimizer: Any, model: nn.Module, step: int, rank: int) -> None:
    """Each loss in two summands, with a backward pass each."""
    for k in range(PASSES):
        rows, labels = batch(step, rank, k)
        loss, count = mean_of_valid(model(rows), labels)
        optimizer.weight(float(count), full=FULL)
        (0.25 * loss).backward(retain_graph=True)
        (0.75 * loss).backward()


LOOPS: dict[str, Callable[..., None]] = {
    "accumulated": accumulated,
    "each agreed": each_agreed,
    "in two losses": in_two_losses,
}


def absent(optimizer: Any, model: nn.Module, step: int, rank: int) -> None:
    """As `accumulated`, where the second worker has no batch in every other step, and says no count."""
    if (rank, step % 2) != (1, 1):
        accumulated(optimizer, model, step, rank)


def trained(name: str, loop: str, world: quorate.World) -> Tensor:
    strategy, settings = JOINED[name]
    model = model_of(world.rank)
    optimizer: Any = quorate.distribute(optimizer_of(model, name), model, strategy, **settings)
    optimizer.register_step_pre_hook(lambda *_: None)  # a hook that looks changes nothing
    for step in range(STEPS):
        optimizer.zero_grad()
        LOOPS.get(loop, absent)(optimizer, model, step, world.rank)
        optimizer.step()
    optimizer.finish()
    return flat(model)


@pytest.mark.covering(("name", "loop", "size"), product(JOINED, LOOPS, [1, 2, 3]))
def test_a_mean_of_all_is_that_of_the_joined_batch(name: str, loop: str, size: int) -> None:
    within = 1e-3 if name == "half" else 1e-9
    for parameters in VirtualWorld(size).run(joined(partial(trained, name, loop))):
        torch.testing.assert_close(parameters, in_one_process(name, size), atol=within, rtol=0)


@pytest.mark.parametrize("name", ["all-reduce", "survivors", "quorum of all"])
def test_a_worker_without_a_batch_needs_no_count(name: str) -> None:
    for parameters in VirtualWorld(2).run(joined(partial(trained, name, "absent"))):
        torch.testing.assert_close(parameters, in_one_process(name, 2, absent=True), atol=1e-9, rtol=0)


def with_scaler(name: str, world: quorate.World) -> Tensor:
    """Steps of a `GradScaler`, whose scale doubles after each of them; the second overflows once, and is repeated."""
    strategy, settings = JOINED[name]
    model, scaler = model_of(world.rank), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    optimizer: Any = quorate.distribute(optimizer_of(model, name), model, strategy, **settings)
    step = overflows = 0
    while step < STEPS:
        optimizer.zero_grad()
        for k in range(PASSES):
            rows, labels = batch(step, world.rank, k)
            loss, count = mean_of_valid(model(rows), labels)
            optimizer.weight(count, full=FULL)
            with optimizer.accumulate() if k < PASSES - 1 else nullcontext():
                scaler.scale(loss).backward()
        if (step, overflows) == (1, 0) and name not in ROUNDS:
            overflows += 1
            next(model.parameters()).grad.fill_(math.inf)  # type: ignore[union-attr]
            step -= 1
        scaler.step(optimizer)
        scaler.update()
        step += 1
    optimizer.finish()
    return flat(model)


ROUNDS = ("quorum of all", "quorum of all that arrived", "synchronous servers")
"""Strategies that are given the gradient of a step that overflows."""


@pytest.mark.covering(("name", "size"), product([name for name in JOINED if name != "half"], [1, 2, 3]))
def test_losses_are_scaled_beside_their_counts(name: str, size: int) -> None:
    for parameters in VirtualWorld(size).run(joined(partial(with_scaler, name))):
        torch.testing.assert_close(parameters, in_one_process(name, size), atol=1e-9, rtol=0)


def compiled(world: quorate.World) -> Tensor:
    model = model_of(world.rank)
    optimizer: Any = quorate.distribute(optimizer_of(model, "all-reduce"), model)
    fast: Any = torch.compile(model, backend="aot_eager", dynamic=True)
    for step in range(STEPS):
        optimizer.zero_grad()
        accumulated(optimizer, fast, step, world.rank)
        optimizer.step()
    optimizer.finish()
    return flat(model)


def test_a_compiled_model_has_counts() -> None:
    for parameters in run_real_world(2, compiled, 120.0):
        torch.testing.assert_close(parameters, in_one_process("all-reduce", 2), atol=1e-9, rtol=0)


CONSERVING: dict[str, tuple[str, dict[str, Any]]] = {
    "eager-solo": ("eager-solo", {}),
    "eager-majority": ("eager-majority", {}),
    "late ones": ("quorum", {"wait_for": 1, "overlap": True}),
    "bounded-staleness": ("bounded-staleness", {}),
    "asynchronous servers": ("parameter-server", {"mode": "async"}),
    "several steps a push": ("parameter-server", {"mode": "async", "push_every": 2, "pull_every": 2}),
    "ssp": ("ssp", {}),
    "d-psgd": ("d-psgd", {}),
    "sgp": ("sgp", {}),
    "osgp": ("osgp", {}),
    "ad-psgd": ("ad-psgd", {}),
    "choco-sgd": ("choco-sgd", {}),
    "hogwild": ("hogwild", {}),
}
RATE = 0.01


def linear(name: str, passes: int, world: quorate.World) -> Tensor:
    """The parameters after steps whose gradients are the same everywhere; each worker is slower than the one before."""
    model = nn.Linear(4, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    strategy, settings = CONSERVING[name]
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), RATE), model, strategy, **settings)
    optimizer.register_step_pre_hook(lambda *_: None)  # a hook that looks changes nothing
    for step in range(6):
        world.wire.clock.sleep(0.01 * (1 + 1.7 * world.rank))
        for k in range(passes):
            rows, labels = batch(step, world.rank, k)
            rows = rows[labels != IGNORED]
            optimizer.weight(len(rows), full=FULL)
            with optimizer.accumulate():
                model(rows).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.finish()
    return flat(model)


@pytest.mark.covering(("name", "passes", "size"), product(CONSERVING, [1, 2], [2, 3]))
def test_what_is_applied_is_what_was_produced_times_its_weight(name: str, passes: int, size: int) -> None:
    produced = torch.zeros(4, dtype=torch.float64)
    for step, rank, k in product(range(6), range(size), range(passes)):
        rows, labels = batch(step, rank, k)
        produced += rows[labels != IGNORED].sum(0) / FULL
    workers = VirtualWorld(size).run(joined(partial(linear, name, passes)))
    applied = torch.stack(workers).mean(0) * (1 if name == "hogwild" else size)
    torch.testing.assert_close(applied, -RATE * produced, atol=1e-15, rtol=0)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (-1, "-1"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        ("many", "'many'"),
        (True, "True"),
        (None, "None"),
        (torch.ones(2), "a tensor of the shape"),
        (torch.tensor(-2.0), "-2.0"),
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_a_count_is_a_number(count: Any, shown: str, size: int) -> None:
    def script(world: quorate.World) -> None:
        model = model_of()
        quorate.distribute(optimizer_of(model, ""), model).weight(count)

    with pytest.raises(ConfigurationError, match=f"at least 0; it is {shown}"):
        VirtualWorld(size).run(joined(script))


def refused(sentence: str, script: Callable[[Any, nn.Module], None], strategy: str = "all-reduce", **more: Any) -> None:
    def live(world: quorate.World) -> None:
        model = model_of()
        script(quorate.distribute(optimizer_of(model, ""), model, strategy, **more), model)

    with pytest.raises(ConfigurationError, match=sentence):
        VirtualWorld(2).run(joined(live))


def backward(model: nn.Module) -> None:
    model(torch.ones(1, 4, dtype=torch.float64)).mean().backward()


def forgets(optimizer: Any, model: nn.Module) -> None:
    for step in range(2):
        if not step:
            optimizer.weight(3, full=FULL)
        backward(model)
        optimizer.step()
        optimizer.zero_grad()


def counts(optimizer: Any, model: nn.Module) -> None:
    optimizer.weight(3)
    backward(model)
    optimizer.step()


@pytest.mark.parametrize("strategy", ["all-reduce", "eager-solo", "parameter-server", "local-sgd", "d-psgd"])
def test_a_forgotten_count_is_named(strategy: str) -> None:
    refused("was called before the backward pass of an earlier step, and not in this one", forgets, strategy)


@pytest.mark.parametrize("strategy", ["eager-solo", "parameter-server", "d-psgd", "ad-psgd", "hogwild"])
def test_a_full_batch_is_asked_for_where_no_mean_of_all_is_formed(strategy: str) -> None:
    refused(r"as in optimizer\.weight\(tokens, full=4096\)", counts, strategy)


def test_what_takes_no_weights_says_so() -> None:
    refused(r"optimizer\.weight\(\) weighs means, and reduce=\"median\" forms none", counts, reduce="median")
    refused("both give weights to the steps", counts, weight="examples")
    refused("whose code needs gradients of one weight", counts, "gradient-coding")


def with_closures(optimizer: Any, model: nn.Module, ranks: list[int]) -> Tensor:
    """Steps that ask for the loss several times, and clear gradients to zeros in between."""
    for step in range(STEPS):
        rows, labels = (torch.cat(x) for x in zip(*(batch(step, rank, 0) for rank in ranks), strict=True))

        def closure(rows: Tensor = rows, labels: Tensor = labels) -> Any:
            optimizer.zero_grad(set_to_none=False)
            loss, count = mean_of_valid(model(rows), labels)
            if hasattr(optimizer, "weight"):
                optimizer.weight(count)
            loss.backward()
            return loss

        optimizer.step(closure)
    return flat(model)


def test_a_loss_that_is_asked_for_again_counts_again() -> None:
    def plain(model: nn.Module) -> Any:
        return torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")

    def script(world: quorate.World) -> Tensor:
        model = model_of()
        return with_closures(quorate.distribute(plain(model), model), model, [world.rank])

    model = model_of()
    expected = with_closures(plain(model), model, [0, 1])
    for parameters in VirtualWorld(2).run(joined(script)):
        torch.testing.assert_close(parameters, expected, atol=1e-6, rtol=0)


class Layers(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(4, 160), nn.Linear(160, 3)
        self.blocks = nn.ModuleList(nn.Linear(160, 160) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.last(x)  # type: ignore[no-any-return]


def losses_of(model: nn.Module, step: int, rank: int, k: int) -> tuple[Tensor, Tensor]:
    rows, labels = batch(step, rank, k)
    valid = (labels != IGNORED).sum()
    loss = F.cross_entropy(model(rows.float()), labels, ignore_index=IGNORED, reduction="sum")
    return loss / valid.clamp(min=1), valid


def in_shards(zero: int, replicas: int, strategy: str, world: quorate.World) -> Tensor:
    """The parameters after steps of clipped gradients; not in rounds, where a script clips its own ones."""
    model: Any = quorate.parallelize(Layers(world.rank), world.mesh(replicas=replicas), zero=zero)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    settings = {} if strategy == "all-reduce" else {"wait_for": "all"}
    optimizer: Any = quorate.distribute(plain, model, strategy, **settings)
    for step in range(STEPS):
        optimizer.zero_grad()
        for k in range(PASSES):
            loss, count = losses_of(model, step, world.rank, k)
            optimizer.weight(count, full=FULL)
            if k < PASSES - 1:
                with optimizer.accumulate():
                    loss.backward()
            else:
                loss.backward()
        if strategy == "all-reduce":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    optimizer.finish()
    return flat([p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()])


def in_shards_of(cases: list[tuple[int, int, str]], world: quorate.World) -> list[Tensor]:
    return [in_shards(zero, replicas, strategy, world) for zero, replicas, strategy in cases]


def whole(size: int, *, clips: bool = True) -> Tensor:
    model = Layers(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        rows, labels = zip(*(batch(step, rank, k) for rank in range(size) for k in range(PASSES)), strict=True)
        F.cross_entropy(model(torch.cat(rows).float()), torch.cat(labels), ignore_index=IGNORED).backward()
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return flat(model)


@pytest.mark.parametrize(
    ("size", "cases"),
    [
        (2, [(1, 1, "all-reduce"), (2, 1, "all-reduce"), (3, 1, "all-reduce"), (3, 2, "all-reduce")]),
        (4, [(3, 2, "all-reduce"), (1, 2, "all-reduce"), (3, 2, "quorum")]),
    ],
)
def test_in_shards_it_is_that_of_the_joined_batch(size: int, cases: list[tuple[int, int, str]]) -> None:
    for worker in run_real_world(size, partial(in_shards_of, cases), 120.0):
        for (_, _, strategy), parameters in zip(cases, worker, strict=True):
            expected = whole(size, clips=strategy == "all-reduce")
            torch.testing.assert_close(parameters, expected, atol=1e-6, rtol=0)


def for_real(names: list[str], world: quorate.World) -> list[Tensor]:
    return [trained(name, "accumulated", world) for name in names]


def test_processes_make_the_same_steps() -> None:
    names = ["all-reduce", "quorum of all", "synchronous servers"]
    for worker in run_real_world(2, partial(for_real, names), 60.0):
        for name, parameters in zip(names, worker, strict=True):
            torch.testing.assert_close(parameters, in_one_process(name, 2), atol=1e-9, rtol=0)
