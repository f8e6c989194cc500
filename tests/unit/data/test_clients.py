"""Clients on workers: who is drawn for a round, who plays whom, and which batches are computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import quorate
from quorate.core.clients import ClientTerms
from quorate.core.errors import ConfigurationError
from quorate.data.clients import ClientShare, drawn
from quorate.data.context import DataContext
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.every_strategy import OF_THE_SAME_BATCHES
from tests.support.joined import joined
from tests.support.scene import Scene, sums


def terms(**settings: Any) -> ClientTerms:
    return ClientTerms(**{"sampled": 0.3, "epochs": 1, **settings})


def share(rank: int, size: int, said: ClientTerms | None, *, batch_size: int = 4, **choices: Any) -> ClientShare:
    own = tuple(np.arange(10 * client, 10 * client + client + 1) for client in range(10))
    return ClientShare(rank=rank, size=size, examples_of=own, batch_size=batch_size, terms=lambda: said, **choices)


def batches(client_share: ClientShare) -> list[list[int]]:
    return [indices for _, indices in client_share.batches(torch.arange(100), client_share.batch_size)]


def test_as_many_are_drawn_as_sampled_says_and_rounds_differ() -> None:
    rounds = [[client.client for client in drawn(terms(), 10, seed=3, round=number)] for number in range(50)]
    assert {len(own) for own in rounds} == {3}
    assert rounds == [[client.client for client in drawn(terms(), 10, seed=3, round=number)] for number in range(50)]
    assert len({tuple(own) for own in rounds}) > 30
    assert {client for own in rounds for client in own} == set(range(10))
    assert len(drawn(terms(sampled=0.01), 10, seed=3, round=0)) == 1


def test_independent_draws_are_of_another_number_each_time() -> None:
    counts = [len(drawn(terms(is_independent=True), 100, seed=0, round=number)) for number in range(200)]
    assert len(set(counts)) > 10
    assert np.mean(counts) == pytest.approx(30, abs=1.5)
    assert np.var(counts) == pytest.approx(100 * 0.3 * 0.7, rel=0.3)


def test_those_that_drop_out_are_those_that_would_be_late() -> None:
    late = [drawn(terms(sampled=1.0, stragglers=0.5), 40, seed=0, round=number) for number in range(20)]
    lost = [drawn(terms(sampled=1.0, dropouts=0.5), 40, seed=0, round=number) for number in range(20)]
    assert not any(client.is_lost for own in late for client in own)
    assert [[client.work < 1 for client in own] for own in late] == [[client.is_lost for client in own] for own in lost]
    assert np.mean([client.is_lost for own in lost for client in own]) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_each_drawn_client_is_played_by_its_own_worker(size: int) -> None:
    whole = share(0, 1, terms(), seed=5, round=2)
    of_all = {(turn.client, tuple(batch)) for turn, batch in whole._round}
    played = set()
    for rank in range(size):
        own = share(rank, size, terms(), seed=5, round=2)
        assert {turn.client % size for turn, _ in own._round} <= {rank}
        played |= {(turn.client, tuple(batch)) for turn, batch in own._round}
        assert all(turn.players == len({c % size for c, _ in of_all}) for turn, _ in own._round)
    assert played == of_all, "whoever plays a client, its batches are the same"


def test_a_client_goes_through_its_examples_and_ends() -> None:
    played = share(0, 1, terms(sampled=1.0, epochs=2))
    numbers = [(turn.client, batch, turn.is_last) for turn, batch in played._round]
    for client in range(10):
        own = [(batch, is_last) for whose, batch, is_last in numbers if whose == client]
        seen = sorted(example for batch, _ in own for example in batch)
        assert seen == sorted(2 * list(range(10 * client, 11 * client + 1)))
        assert [is_last for _, is_last in own] == [False] * (len(own) - 1) + [True]
    assert [client for client, _, _ in numbers] == sorted(client for client, _, _ in numbers)
    assert [b for _, b, _ in numbers] != [b for _, b in share(0, 1, terms(sampled=1.0, epochs=2), round=1)._round]


def test_local_steps_and_late_clients_do_less() -> None:
    few = share(0, 1, terms(sampled=1.0, epochs=3, steps=2))
    assert max(sum(turn.client == client for turn, _ in few._round) for client in range(10)) == 2
    late = share(0, 1, terms(sampled=1.0, epochs=5, stragglers=1.0), batch_size=1)
    counts = [sum(turn.client == client for turn, _ in late._round) for client in range(10)]
    assert all(1 <= count < 5 * (client + 1) or client == 0 for client, count in enumerate(counts))
    assert sum(turn.is_last for turn, _ in late._round) == 10


def test_drop_last_leaves_a_client_what_it_has() -> None:
    played = share(0, 1, terms(sampled=1.0), drop_last=True)
    sizes = {client: [len(b) for turn, b in played._round if turn.client == client] for client in range(10)}
    assert sizes[2] == [3]
    assert sizes[9] == [4, 4]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_under_other_strategies_a_worker_has_all_examples_of_its_clients(size: int) -> None:
    counts = set()
    for rank in range(size):
        own_share = share(rank, size, None)
        seen = batches(own_share)
        counts.add(len(seen))
        own = {example for client in range(rank, 10, size) for example in range(10 * client, 11 * client + 1)}
        assert {example for batch in seen for example in batch} == own
    assert len(counts) == 1, "all have equally many batches"


def in_world(size: int, task: Any) -> Any:
    return VirtualWorld(size, seed=0).run(joined(task))


DATA = TensorDataset(torch.arange(30.0).unsqueeze(1), torch.arange(30) % 3)


def test_the_loader_says_whose_each_batch_is() -> None:
    def task(world: quorate.World) -> list[tuple[int, bool, int]]:
        place = current.here()
        loader = quorate.loader(DATA, 4, partition="label:each=1", clients=6)
        place.context(DataContext).client_terms = terms(sampled=0.5, epochs=2)  # an optimizer may be distributed later
        turns = []
        from quorate.data.consumption import Consumed

        for _ in loader:
            turn = place.context(Consumed).turn
            assert turn is not None
            turns.append((turn.client, turn.is_last, len(loader)))
            place.context(Consumed).follow_steps()
            place.context(Consumed).stepped()
        return turns

    for rank, turns in enumerate(in_world(2, task)):
        assert {client % 2 for client, _, _ in turns} <= {rank}
        assert {length for _, _, length in turns} == {6}, "half of six clients, two workers, twice two batches each"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partition": "label", "share": "static"}, "clients have examples of their own, so share= cannot be combined"),
        ({"labels": [0] * 30}, "labels= needs partition="),
        ({"partition": "iid", "clients": 31}, "clients is 31"),
        ({"partition": "iid", "clients": -1}, "clients must be a whole number"),
        ({"partition": "of-mine"}, 'unknown partition "of-mine"'),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        in_world(1, lambda world: quorate.loader(DATA, 4, **settings))


def test_without_a_number_there_is_a_client_for_each_worker_or_group() -> None:
    def counts(world: quorate.World) -> list[int]:
        shares: list[Any] = [quorate.loader(DATA, 4, partition=text).share for text in ("iid", "group")]
        return [len(client_share.examples_of) for client_share in shares]

    assert in_world(2, counts) == [[2, 3], [2, 3]]


@pytest.mark.parametrize("strategy", OF_THE_SAME_BATCHES)
def test_strategies_of_equal_batches_have_no_clients(strategy: str) -> None:
    scene = Scene(strategy, 3, data=sums(24), shard={"partition": "iid", "clients": 6})
    assert scene.refusal().startswith("clients have examples of their own, and under draco, detox and gradient-coding")
