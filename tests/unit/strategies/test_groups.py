"""The laws of means in groups, fixed ones (hierarchical local SGD) and changing ones that nobody waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import quorate
from quorate.core.errors import ConfigurationError
from quorate.core.neighbours import Request
from quorate.gossip.topology import topology_of
from quorate.gossip.topology.mixing import matrix, mixing_of
from tests.support.local_trainings import (
    RATE,
    SIZES,
    Models,
    average,
    close,
    in_turn,
    loss,
    net,
    put,
    trained,
    training,
)
from tests.support.scene import Scene, Trainer, flat, note, ranked, zeros


@pytest.mark.parametrize("size", SIZES)
class TestHierarchical:
    def test_where_every_mean_is_of_all_it_is_local_sgd(self, size: int) -> None:
        for momentum in ("keep", "average"):
            choice = {"sync_every": 2, "momentum": momentum}
            local = trained(size, "local-sgd", **choice)
            assert torch.equal(trained(size, "hierarchical-local-sgd", across_every=1, **choice), local)

    def test_groups_of_one_never_meet_but_in_means_of_all(self, size: int) -> None:
        alone = trained(size, "hierarchical-local-sgd", sync_every=2, across_every=3, group_size=1)
        close(alone, trained(size, "local-sgd", sync_every=6))

    def test_one_group_of_all_is_local_sgd(self, size: int) -> None:
        whole = trained(size, "hierarchical-local-sgd", sync_every=2, across_every=2, group_size=size)
        close(whole, trained(size, "local-sgd", sync_every=2))
        one_host = trained(size, "hierarchical-local-sgd", sync_every=2, across_every=2)
        assert torch.equal(one_host, whole)

    def test_means_are_of_groups_and_now_and_then_of_all(self, size: int) -> None:
        means = 0

        def agree(models: Models) -> None:
            nonlocal means
            means += 1
            for first in range(0, size, size if means % 3 == 0 else 2):
                average(models[first : size if means % 3 == 0 else first + 2])

        end = in_turn(size, 2, agree)
        close(trained(size, "hierarchical-local-sgd", sync_every=2, across_every=3, group_size=2), end)


def test_with_a_time_a_slow_worker_comes_to_every_mean_of_its_group() -> None:
    choice = {"sync_every": "40ms", "across_every": 3, "group_size": 2}
    pause = lambda rank, step: 0.11 * (rank == 2)  # noqa: E731
    training("hierarchical-local-sgd", 4, steps=[30, 30, 5, 30], pause=pause, **choice).end()


@pytest.mark.parametrize(("size", "group_size", "rounds"), [(8, 2, 3), (16, 4, 2), (64, 8, 2), (9, 3, 2), (4, 8, 1)])
def test_means_in_a_butterfly_are_the_mean_of_all(size: int, group_size: int, rounds: int) -> None:
    assert mixing_of(topology_of(f"butterfly:group_size={group_size}", size), size).exact_after == rounds


@pytest.mark.parametrize("size", [3, 5, 6, 7, 11, 13])
def test_elsewhere_what_one_knows_is_everywhere_after_two_turns(size: int) -> None:
    groups = topology_of("butterfly:group_size=2", size)
    reach = torch.eye(size, dtype=torch.bool).numpy()
    for round in range(2 * groups.cycle(size)):
        reach = (matrix(groups, size, round) @ reach) > 0
    assert reach.all()


@pytest.mark.parametrize("size", SIZES)
def test_a_group_of_all_on_time_is_a_mean_after_every_step(size: int) -> None:
    close(trained(size, "group-averaging", group_size=8), trained(size, "local-sgd", sync_every=1))


def followed(size: int, steps: int | list[int], **settings: Any) -> list[Tensor]:
    """Every worker adds 1 to a number of its own in each step; its whole model after each."""

    def play(trainer: Trainer) -> Tensor:
        trainer.train(steps if isinstance(steps, int) else steps[trainer.rank])
        kept = len(trainer.worker.state.models)
        assert kept <= 1 or steps != 6  # where nobody is behind, models are let go of
        trainer.finish()
        return torch.stack(trainer.seen)

    own = lambda trainer: -trainer.model(torch.eye(size)[trainer.rank]).sum()  # noqa: E731
    fields: Any = {"model": zeros(size), "rate": 1.0, "loss": own, "after": note}
    return Scene("group-averaging", size, **fields, **settings).act(play)


@pytest.mark.parametrize(
    ("size", "group_size", "soonest"), [(8, 2, 3), (4, 2, 2), (16, 4, 2), (3, 8, 1), (5, 2, 3), (8, "root", 2)]
)
def test_after_a_turn_of_groups_everyone_knows_of_everyone(size: int, group_size: int | str, soonest: int) -> None:
    seen = followed(size, 6, group_size=group_size)
    known = [all(bool((ways[step] > 0).all()) for ways in seen) for step in range(6)]
    assert not any(known[: soonest - 1])
    assert all(known[(soonest if size != 5 else 6) - 1 :])


@pytest.mark.parametrize("size", SIZES)
def test_every_so_many_steps_all_replicas_are_equal(size: int) -> None:
    seen = followed(size, 9, group_size=2, sync_every=3)
    for step in range(9):
        assert all(torch.equal(ways[step], seen[0][step]) for ways in seen) == (size <= 2 or step % 3 == 2)


def test_who_is_late_counts_with_its_old_model_and_is_not_waited_for() -> None:
    """Rank 0 makes four steps before the others make one: in these they count with the model they began with."""

    settings = {"sync_every": 5, "group_size": 4, "pause": lambda rank, step: 1.0 * rank}
    trainers = training("group-averaging", 3, steps=5, heavy=0.0, **settings).run()
    models = [net(), net(), net()]
    begin = flat(models[0])
    given: list[Tensor] = []
    for rank, model in enumerate(models):
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for step in range(5):
            optimizer.zero_grad()
            loss(model, rank, step).backward()
            optimizer.step()
            if step == 4:
                continue
            if rank == 0:  # sum / S
                given.append(flat(model))
                put(model, (flat(model) + 2 * begin) / 3)
            else:  # (sum + w) / (S + 1), with the same sum
                put(model, (given[step] + 2 * begin + flat(model)) / 4)
    for one in trainers:
        close(one.parameters, sum(map(flat, models)) / 3)
    assert max(trainers[0].waits[:4]) < 0.01
    assert trainers[0].waits[4] > 4.0  # at the mean of all


@pytest.mark.parametrize("size", [2, 5])
def test_who_has_ended_counts_in_no_group(size: int) -> None:
    """With gradients that do not depend on where a worker is, its own number would be pulled back."""

    alone = followed(size, [8] + [2] * (size - 1), group_size=8, sync_every=50)[0][:, 0]
    assert torch.allclose(alone[3:] - alone[2:-1], torch.ones(5))


def test_what_is_no_group_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="group_size is 1"):
        training("group-averaging", 2, group_size=1).run()
    with pytest.raises(ConfigurationError, match="across_every=0"):
        training("hierarchical-local-sgd", 2, across_every=0).run()
    with pytest.raises(ConfigurationError, match="group_size=0"):
        training("hierarchical-local-sgd", 2, group_size=0).run()
    with pytest.raises(ConfigurationError, match="group_size is 1"):
        topology_of("butterfly:group_size=1", 4)


def test_a_question_from_beyond_a_mean_of_all_waits_until_this_worker_has_taken_it_in(tmp_path: Path) -> None:
    """And what a worker gives to those that ask before its first step after a checkpoint is where it goes on from."""

    def play(trainer: Trainer) -> bool:
        worker, has_begun = trainer.worker, trainer.began is not None
        assert all(map(torch.equal, worker.state.newest.segments(), worker.parameters.segments()))
        told: list[Any] = []
        request = Request(None, {"means": worker.state.means + 1, "turn": 1}, told.append)
        worker.strategy._answer(worker, worker.state, request)
        for step in range(5):
            assert bool(told) == (worker.state.means > has_begun)
            trainer.train((trainer.began or 0) + step + 1)
        quorate.save()
        trainer.finish()
        return has_begun

    scene = Scene("group-averaging", 2, model=(2, 1), loss=ranked, root=tmp_path, loads=True, sync_every=3)
    assert scene.act(play) == [False, False]
    assert scene.act(play) == [True, True]
