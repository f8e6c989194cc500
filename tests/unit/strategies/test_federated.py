"""Federated strategies come to the numbers of the papers' algorithms, written out, on any number of workers."""

from __future__ import annotations

import functools
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import quorate
from quorate.core.clients import Turn
from quorate.core.errors import ConfigurationError
from quorate.data.context import data_context
from quorate.data.limit import Limit
from quorate.launch.worker.world import World
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.federated_trainings import (
    BATCH,
    CLIENTS,
    DATA,
    PARTITION,
    RATE,
    X,
    Y,
    flat,
    gradient,
    net,
    rounds_of,
    train,
    trained,
)
from tests.support.joined import joined
from tests.support.kept_trainings import in_world

Turns = dict[int, list[tuple[Turn, list[int]]]]


def by_client(batches: list[tuple[Turn, list[int]]]) -> Turns:
    found: Turns = defaultdict(list)
    for turn, indices in batches:
        found[turn.client].append((turn, indices))
    return found


def averaged(x: Tensor, batches: list[tuple[Turn, list[int]]], *, mu: float = 0.0, equal: bool = False) -> Tensor:
    """The mean way of the clients of a round that began at `x`; of nobody, zeros."""
    ways, weights = [], []
    for own in by_client(batches).values():
        y = x.clone()
        for _, indices in own:
            y -= RATE * (gradient(y, indices) + mu * (y - x))
        if not own[0][0].is_lost:
            ways.append(y - x)
            weights.append(1.0 if equal else float(sum(len(indices) for _, indices in own)))
    if not ways:
        return torch.zeros_like(x)
    return sum(way * weight for way, weight in zip(ways, weights, strict=True)) / sum(weights)  # type: ignore[no-any-return]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)


TERMS: list[dict[str, Any]] = [
    {"sampled": 0.4, "local_epochs": 3},
    {"sampled": 1.0, "local_epochs": 1, "local_steps": 2},
    {"sampled": 0.6, "local_epochs": 4, "stragglers": 0.5},
    {"sampled": 0.6, "local_epochs": 2, "dropouts": 0.5},
]


def of_loader(terms: dict[str, Any]) -> dict[str, Any]:
    names = {"local_epochs": "epochs", "local_steps": "steps"}
    return {names.get(name, name): value for name, value in terms.items()}


@pytest.mark.parametrize(("terms", "size"), [*((terms, 3) for terms in TERMS), (TERMS[2], 1), (TERMS[2], 2)], ids=str)
def test_fed_avg_is_algorithm_1_with_any_number_of_clients_per_worker(terms: dict[str, Any], size: int) -> None:
    x = flat(net())
    for batches in rounds_of(**of_loader(terms)):
        x = x + averaged(x, batches)
    close(trained(size, "fed-avg", **terms), x)


def test_clients_may_count_equally() -> None:
    x = flat(net())
    for batches in rounds_of(**of_loader(TERMS[2])):
        x = x + averaged(x, batches, equal=True)
    close(trained(2, "fed-avg", weigh="equal", **TERMS[2]), x)


def test_fed_prox_holds_clients_near_the_global_model() -> None:
    x = flat(net())
    for batches in rounds_of(**of_loader(TERMS[2])):
        x = x + averaged(x, batches, mu=0.7)
    close(trained(3, "fed-prox", mu=0.7, **TERMS[2]), x)


def test_fed_prox_without_mu_is_fed_avg() -> None:
    assert torch.equal(trained(2, "fed-prox", mu=0.0, **TERMS[0]), trained(2, "fed-avg", **TERMS[0]))


@pytest.mark.parametrize("kind", ["adagrad", "yogi", "adam"])
def test_fed_opt_is_algorithm_2_of_adaptive_federated_optimization(kind: str) -> None:
    x, tau, eta, beta1, beta2 = flat(net()), 1e-2, 0.1, 0.8, 0.9
    m, v = torch.zeros_like(x), torch.full_like(x, tau**2)
    for batches in rounds_of(**of_loader(TERMS[0])):
        delta = averaged(x, batches)
        m = beta1 * m + (1 - beta1) * delta
        v = {
            "adagrad": v + delta**2,
            "yogi": v - (1 - beta2) * delta**2 * torch.sign(v - delta**2),
            "adam": beta2 * v + (1 - beta2) * delta**2,
        }[kind]
        x = x + eta * m / (v.sqrt() + tau)
    server = {"server": kind, "server_rate": eta, "beta1": beta1, "beta2": beta2, "tau": tau}
    close(trained(2, "fed-opt", **server, **TERMS[0]), x)


@pytest.mark.parametrize(("terms", "size"), [(TERMS[0], 1), (TERMS[3], 3)], ids=str)
def test_scaffold_is_algorithm_1_with_option_2(terms: dict[str, Any], size: int) -> None:
    x = flat(net())
    c, own = torch.zeros_like(x), defaultdict(lambda: torch.zeros_like(x))
    for batches in rounds_of(**of_loader(terms)):
        ways, changes = [], []
        for client, mine in by_client(batches).items():
            y = x.clone()
            for _, indices in mine:
                y -= RATE * (gradient(y, indices) - own[client] + c)
            if not mine[0][0].is_lost:
                new = own[client] - c + (x - y) / (len(mine) * RATE)
                ways.append(y - x)
                changes.append(new - own[client])
                own[client] = new
        if ways:
            x = x + 0.9 * sum(ways) / len(ways)
            c = c + sum(changes) / CLIENTS
        torch.testing.assert_close(c, sum(own.values()) / CLIENTS, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(trained(size, "scaffold", server_rate=0.9, **terms), x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3])
def test_where_each_worker_is_a_client_and_makes_one_step_it_is_synchronous(size: int) -> None:
    def task(world: World, strategy: str, **settings: Any) -> Tensor:
        model = net()
        optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=RATE), model, strategy, **settings)
        for step in range(6):
            optimizer.zero_grad()
            mine = slice(3 * (step * size + world.rank), 3 * (step * size + world.rank) + 3)
            (model(X[mine]) - Y[mine]).square().mean().backward()
            optimizer.step()
        optimizer.finish()
        return flat(model)

    def run(strategy: str, **settings: Any) -> Tensor:
        one = functools.partial(task, strategy=strategy, **settings)
        return VirtualWorld(size, seed=0).run(joined(one))[0]

    expected = run("all-reduce")
    for name in ("fed-avg", "fed-prox"):
        close(run(name, sync_every=1), expected)


def test_a_client_begins_with_an_optimizer_that_remembers_nothing() -> None:
    def task(world: World) -> None:
        model = net()
        plain = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
        optimizer: Any = quorate.distribute(plain, model, "fed-avg", with_one_worker="algorithm", sampled=1.0)
        for x, y, _ in quorate.shard(DATA, BATCH, partition=PARTITION, clients=CLIENTS):
            turn = optimizer.__dict__["_quorate_worker"].turn
            assert bool(plain.state) == (clients[-1:] == [turn.client])
            clients.append(turn.client)
            (model(x) - y).square().mean().backward()
            optimizer.step()
        optimizer.finish()

    clients: list[int] = []
    VirtualWorld(1).run(joined(task))
    assert len(set(clients)) == CLIENTS


def test_an_evaluation_in_the_middle_of_a_round_takes_what_clients_have_done() -> None:
    def look(world: World, number: int, step: int) -> None:
        if step == 1:
            with world.evaluate():
                pass

    end = trained(3, "fed-avg", sampled=1.0, local_epochs=2, before=look)
    assert end.isfinite().all()
    assert not torch.allclose(end, trained(3, "fed-avg", sampled=1.0, local_epochs=2))


@pytest.mark.parametrize("strategy", ["fed-avg", "fed-opt", "scaffold"])
def test_what_is_written_while_all_rest_is_where_clients_begin(strategy: str) -> None:
    def task(world: World) -> tuple[Tensor, Tensor]:
        model = net()
        plain = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer: Any = quorate.distribute(plain, model, strategy, sampled=1.0)
        loader = quorate.shard(DATA, BATCH, partition=PARTITION, clients=CLIENTS)
        for number in range(2):
            for x, y, _ in loader:
                (model(x) - y).square().mean().backward()
                optimizer.step()
            if number == 0:
                with world.evaluate(), torch.no_grad():
                    for p in model.parameters():
                        p.fill_(2.0)
        optimizer.finish()
        return flat(model), torch.full_like(flat(model), 2.0)

    for found, expected in VirtualWorld(2, seed=1).run(joined(task)):
        assert torch.equal(found, expected)


@pytest.mark.parametrize(("strategy", "size"), [("fed-avg", 1), ("fed-opt", 2), ("scaffold", 2)])
def test_a_training_that_was_cut_off_goes_on_as_if_it_had_not(strategy: str, size: int, tmp_path: Path) -> None:
    """From the end of a round, and of scaffold with every client's control variate."""
    choice = {"sampled": 0.6, "local_epochs": 2}
    whole = in_world(size, tmp_path / "none", lambda world: kept(world, strategy, 5, **choice))
    in_world(size, tmp_path / "kept", lambda world: kept(world, strategy, 3, saves=True, **choice))
    rest = in_world(size, tmp_path / "kept", lambda world: kept(world, strategy, 5, **choice))
    assert all(torch.equal(one, other) for one, other in zip(whole, rest, strict=True))


@pytest.mark.parametrize("strategy", ["fed-avg", "scaffold"])
def test_it_goes_on_with_more_workers_and_fewer(strategy: str, tmp_path: Path) -> None:
    choice = {"sampled": 0.6, "local_epochs": 2}
    whole = in_world(2, tmp_path / "none", lambda world: kept(world, strategy, 5, **choice))
    in_world(2, tmp_path / "kept", lambda world: kept(world, strategy, 3, saves=True, **choice))
    for size in (1, 3):
        rest = in_world(size, tmp_path / "kept", lambda world: kept(world, strategy, 5, **choice))
        for end in rest:
            torch.testing.assert_close(end, whole[0], rtol=1e-4, atol=1e-5)


def kept(world: World, strategy: str, rounds: int, *, saves: bool = False, **settings: Any) -> Tensor:
    """A training that goes on from a checkpoint, and may keep one after every round."""
    model = net()
    plain = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)
    optimizer: Any = quorate.distribute(plain, model, strategy, with_one_worker="algorithm", **settings)
    loader = quorate.shard(DATA, BATCH, partition=PARTITION, clients=CLIENTS)
    began = quorate.load()
    for _ in range(0 if began is None else loader.epoch, rounds):
        for x, y, _ in loader:
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
        if saves:
            quorate.save()
    optimizer.finish()
    assert saves or began is None or loader.epoch == rounds - 1
    return flat(model)


@pytest.mark.parametrize("strategy", ["fed-avg", "scaffold"])
def test_a_training_that_was_cut_off_in_a_round_goes_on_client_by_client(strategy: str, tmp_path: Path) -> None:
    choice: dict[str, Any] = {"sampled": 1.0, "local_epochs": 2}
    whole = in_world(2, tmp_path / "none", lambda world: cut(world, strategy, **choice))
    in_world(2, tmp_path / "kept", lambda world: cut(world, strategy, saves=5, ends=8, **choice))
    rest = in_world(2, tmp_path / "kept", lambda world: cut(world, strategy, **choice))
    assert rest[0][1] == rest[1][1] == 5
    assert all(torch.equal(one, other) for (one, _), (other, _) in zip(whole, rest, strict=True))


def test_a_round_that_was_cut_off_begins_again_with_other_workers(tmp_path: Path) -> None:
    choice: dict[str, Any] = {"sampled": 1.0, "local_epochs": 2}
    in_world(2, tmp_path / "kept", lambda world: cut(world, "scaffold", saves=5, ends=8, **choice))
    rest = in_world(3, tmp_path / "kept", lambda world: cut(world, "scaffold", **choice))
    assert all(torch.equal(end, rest[0][0]) for end, _ in rest)
    assert rest[0][0].isfinite().all()


def cut(
    world: World, strategy: str, *, saves: int = -1, ends: int = 1000, **settings: Any
) -> tuple[Tensor, int | None]:
    """Two rounds, which may be saved in the middle of one; the model, and the step that it went on from."""
    model = net()
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=RATE), model, strategy, **settings)
    loader = quorate.shard(DATA, BATCH, partition=PARTITION, clients=CLIENTS)
    began = step = quorate.load()
    step = step or 0
    for _ in range(loader.epoch, 2):
        for x, y, _ in loader:
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
            step += 1
            if step == saves:
                quorate.save()
            if step == ends:
                return flat(model), began
    optimizer.finish()
    return flat(model), began


def test_workers_without_clients_keep_the_others_company() -> None:
    found = VirtualWorld(5, seed=1).run(joined(lambda world: train(world, "fed-avg", clients=2, sampled=1.0)))
    assert all(torch.equal(end, found[0]) for end in found)
    alone = VirtualWorld(1, seed=1).run(joined(lambda world: train(world, "fed-avg", clients=2, sampled=1.0)))
    close(found[0], alone[0])


@pytest.mark.parametrize("size", [2, 3])
def test_a_training_by_time_ends_for_all_at_a_round(size: int) -> None:
    """Workers have unequally many batches, and one has none at all."""

    def task(world: World) -> tuple[list[int], Tensor]:
        data_context(current.here()).limit = Limit(world.wire, 3.0)
        model, batches = net(), []
        plain = torch.optim.SGD(model.parameters(), lr=RATE)
        optimizer: Any = quorate.distribute(plain, model, "fed-avg", sampled=1.0)
        loader = quorate.shard(DATA, BATCH, partition="iid", clients=2)
        for _ in range(60):
            batches.append(0)
            for x, y, _ in loader:
                (model(x) - y).square().mean().backward()
                optimizer.step()
                batches[-1] += 1
        optimizer.finish()
        return batches, flat(model)

    found = VirtualWorld(size, seed=1).run(joined(task))
    of_first = found[0][0]
    assert 3 < sum(count > 0 for count in of_first) < 60
    assert set(of_first) == {12, 0}, "a round is begun by all, or by none"
    assert found[1][0] == of_first
    assert all(torch.equal(end, found[0][1]) for _, end in found)


def late_step(world: World) -> None:
    """Step once for several clients."""
    model = net()
    plain = torch.optim.SGD(model.parameters(), lr=RATE)
    optimizer: Any = quorate.distribute(plain, model, "fed-avg", sampled=1.0)
    for number, (x, y, _) in enumerate(quorate.shard(DATA, 90, partition=PARTITION, clients=CLIENTS)):
        (model(x) - y).square().mean().backward()
        if number % 2:
            optimizer.step()


def left_early(world: World) -> None:
    """Leave the loop in the middle of a client's turn."""
    model = net()
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=RATE), model, "fed-avg", sampled=1.0)
    loader = quorate.shard(DATA, 1, partition=PARTITION, clients=CLIENTS)
    for _ in range(2):
        for x, y, _ in loader:
            (model(x) - y).square().mean().backward()
            optimizer.step()
            if optimizer.__dict__["_quorate_worker"].turn.client > 2:
                break


def written_between(world: World) -> None:
    """Write into parameters between two clients."""
    model = net()
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=RATE), model, "fed-avg", sampled=1.0)
    for x, y, _ in quorate.shard(DATA, 90, partition=PARTITION, clients=CLIENTS):
        (model(x) - y).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            next(model.parameters()).add_(1.0)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (late_step, "one step has batches of clients . and .; a step is of one client"),
        (left_early, "a step of client . came before client . had ended"),
        (written_between, r"parameters were changed between two clients.*inside world.evaluate\(\)"),
    ],
)
def test_a_loop_that_mixes_clients_is_told(task: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        VirtualWorld(2, seed=0).run(joined(task))


def test_a_worker_alone_that_leaves_the_strategy_out_says_so() -> None:
    def task(world: World) -> None:
        model = net()
        quorate.distribute(torch.optim.SGD(model.parameters(), lr=RATE), model, "fed-avg")
        list(quorate.shard(DATA, BATCH, partition=PARTITION, clients=CLIENTS))

    with pytest.raises(ConfigurationError, match='give quorate.distribute with_one_worker="algorithm" to play clients'):
        VirtualWorld(1).run(joined(task))


@pytest.mark.parametrize(
    ("strategy", "settings", "message"),
    [
        ("fed-avg", {"sampled": 0.0}, "sampled is 0.0; it must be a share of all clients, above 0 and up to 1"),
        ("fed-avg", {"local_epochs": 0}, "local_epochs is 0; it must be a whole number"),
        ("fed-avg", {"stragglers": 0.6, "dropouts": 0.6}, "they must be shares of at least 0, together at most 1"),
        ("fed-prox", {"mu": -0.1}, "mu is -0.1; it must be a number"),
        ("fed-opt", {"tau": 0.0}, "server_rate and tau must be above 0"),
        ("scaffold", {"weigh": "examples"}, 'scaffold needs "equal"'),
        ("scaffold", {"server_rate": 0.0}, "server_rate is 0.0; it must be a number above 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(strategy: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        trained(2, strategy, **settings)


def test_train_is_the_same_in_every_run() -> None:
    once = VirtualWorld(2, seed=9).run(joined(lambda world: train(world, "scaffold", sampled=0.5)))
    assert all(torch.equal(end, once[0]) for end in once)
    assert torch.equal(once[0], trained(2, "scaffold", sampled=0.5))
