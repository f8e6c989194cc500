"""Federated strategies come to the numbers of the papers' algorithms, written out, on any number of workers."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import quorate
from quorate.core.clients import Turn
from quorate.core.errors import ConfigurationError
from quorate.data.context import DataContext
from quorate.data.limit import Limit
from quorate.launch.worker.world import World
from quorate.wire import current
from tests.support.federated_trainings import (
    CLIENTS,
    RATE,
    ROUNDS,
    X,
    Y,
    gradient,
    net,
    rounds_of,
    scene,
    trained,
)
from tests.support.scene import Scene, Trainer, flat, virtual

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
    def loss(trainer: Trainer) -> Tensor:
        begin = 3 * (trainer.step * size + trainer.rank)
        return (trainer.model(X[begin : begin + 3]) - Y[begin : begin + 3]).square().mean()

    expected = Scene("all-reduce", size, model=net, loss=loss).end()
    for name in ("fed-avg", "fed-prox"):
        close(Scene(name, size, model=net, loss=loss, sync_every=1).end(), expected)


def test_a_client_begins_with_an_optimizer_that_remembers_nothing() -> None:
    clients: list[int] = []

    def before(trainer: Trainer) -> None:
        client = trainer.worker.turn.client
        assert bool(trainer.optimizer.state) == (clients[-1:] == [client])
        clients.append(client)

    scene("fed-avg", 1, rounds=1, heavy=0.9, before=before, sampled=1.0).run()
    assert len(set(clients)) == CLIENTS


def test_an_evaluation_in_the_middle_of_a_round_takes_what_clients_have_done() -> None:
    def look(trainer: Trainer) -> None:
        if trainer.place == 1:
            with trainer.world.evaluate():
                pass

    end = trained(3, "fed-avg", sampled=1.0, local_epochs=2, before=look)
    assert end.isfinite().all()
    assert not torch.allclose(end, trained(3, "fed-avg", sampled=1.0, local_epochs=2))


@pytest.mark.parametrize("strategy", ["fed-avg", "fed-opt", "scaffold"])
def test_what_is_written_while_all_rest_is_where_clients_begin(strategy: str) -> None:
    def play(trainer: Trainer) -> Tensor:
        trainer.train_epoch()
        with trainer.world.evaluate(), torch.no_grad():
            for p in trainer.model.parameters():
                p.fill_(2.0)
        trainer.train_epoch()
        return trainer.finish().parameters

    for end in scene(strategy, rate=0.0, sampled=1.0).act(play):
        assert torch.equal(end, torch.full_like(end, 2.0))


@pytest.mark.parametrize(("strategy", "size"), [("fed-avg", 1), ("fed-opt", 2), ("scaffold", 2)])
def test_a_training_that_was_cut_off_goes_on_as_if_it_had_not(strategy: str, size: int, tmp_path: Path) -> None:
    """From the end of a round, and of scaffold with every client's control variate."""
    choice = {"sampled": 0.6, "local_epochs": 2}
    fields: Any = {"heavy": 0.5, **choice}
    whole = scene(strategy, size, **fields).ends()
    scene(strategy, size, rounds=3, root=tmp_path, **fields).act(saving_rounds)
    rest = scene(strategy, size, root=tmp_path, loads=True, **fields).run()
    assert all(trainer.loader.epoch == ROUNDS - 1 for trainer in rest)
    assert all(torch.equal(trainer.parameters, end) for trainer, end in zip(rest, whole, strict=True))


@pytest.mark.parametrize("strategy", ["fed-avg", "scaffold"])
def test_it_goes_on_with_more_workers_and_fewer(strategy: str, tmp_path: Path) -> None:
    choice = {"sampled": 0.6, "local_epochs": 2}
    fields: Any = {"heavy": 0.5, **choice}
    whole = scene(strategy, **fields).end()
    scene(strategy, rounds=3, root=tmp_path, **fields).act(saving_rounds)
    for size in (1, 3):
        for end in scene(strategy, size, root=tmp_path, loads=True, **fields).ends():
            torch.testing.assert_close(end, whole, rtol=1e-4, atol=1e-5)


def saving_rounds(trainer: Trainer) -> None:
    """Keep a checkpoint after every round."""
    for _ in range(trainer.scene.epochs):
        trainer.train_epoch()
        quorate.save()
    trainer.finish()


@pytest.mark.parametrize("strategy", ["fed-avg", "scaffold"])
def test_a_training_that_was_cut_off_in_a_round_goes_on_client_by_client(strategy: str, tmp_path: Path) -> None:
    two_rounds = scene(strategy, rounds=2, sampled=1.0, local_epochs=2)
    whole = two_rounds.ends()
    two_rounds.but(root=tmp_path, saves=[5]).act(lambda trainer: trainer.train(8))
    rest = two_rounds.but(root=tmp_path, loads=True).run()
    assert [trainer.began for trainer in rest] == [5, 5]
    assert all(torch.equal(trainer.parameters, end) for trainer, end in zip(rest, whole, strict=True))


def test_a_round_that_was_cut_off_begins_again_with_other_workers(tmp_path: Path) -> None:
    two_rounds = scene("scaffold", rounds=2, root=tmp_path, sampled=1.0, local_epochs=2)
    two_rounds.but(saves=[5]).act(lambda trainer: trainer.train(8))
    assert two_rounds.but(size=3, loads=True).end().isfinite().all()


def test_workers_without_clients_keep_the_others_company() -> None:
    ends = [scene("fed-avg", size, shard={"clients": 2}, sampled=1.0).end() for size in (5, 1)]
    close(*ends)


@pytest.mark.parametrize("size", [2, 3])
def test_a_training_by_time_ends_for_all_at_a_round(size: int) -> None:
    """Workers have unequally many batches, and one has none at all."""

    limited = scene("fed-avg", size, shard={"partition": "iid", "clients": 2}, sampled=1.0)

    def task(world: World) -> tuple[list[int], Tensor]:
        current.here().context(DataContext).limit = Limit(world.wire, 3.0)
        trainer = limited.trainer(world)
        return [trainer.train_epoch() for _ in range(60)], trainer.finish().parameters

    found = virtual(size, task, seed=1)
    of_first = found[0][0]
    assert 3 < sum(count > 0 for count in of_first) < 60
    assert set(of_first) == {12, 0}, "a round is begun by all, or by none"
    assert found[1][0] == of_first
    assert all(torch.equal(end, found[0][1]) for _, end in found)


def late_step(trainer: Trainer) -> None:
    """Step once for several clients."""
    for number, batch in enumerate(trainer.loader):
        trainer.batch = batch
        trainer.backward()
        if number % 2:
            trainer.optimizer.step()


def left_early(trainer: Trainer) -> None:
    """Leave the loop in the middle of a client's turn."""
    for _ in range(2):
        for batch in trainer.loader:
            trainer.batch = batch
            trainer.make_step()
            if trainer.worker.turn.client > 2:
                break


def written_between(trainer: Trainer) -> None:
    """Write into parameters between two clients."""
    for batch in trainer.loader:
        trainer.batch = batch
        trainer.make_step()
        with torch.no_grad():
            next(trainer.model.parameters()).add_(1.0)


@pytest.mark.parametrize(
    ("script", "size", "message"),
    [
        (late_step, 90, "one step has batches of clients . and .; a step is of one client"),
        (left_early, 1, "a step of client . came before client . had ended"),
        (written_between, 90, r"parameters were changed between two clients.*inside world.evaluate\(\)"),
    ],
)
def test_a_loop_that_mixes_clients_is_told(script: Any, size: int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        scene("fed-avg", shard={"batch_size": size}, sampled=1.0).act(script)


def test_a_worker_alone_that_leaves_the_strategy_out_says_so() -> None:
    with pytest.raises(ConfigurationError, match='give quorate.distribute with_one_worker="algorithm" to play clients'):
        scene("fed-avg", 1, with_one_worker="bypass").run()


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
    once = trained(2, "scaffold", sampled=0.5, world={"seed": 9})
    assert torch.equal(once, trained(2, "scaffold", sampled=0.5))
