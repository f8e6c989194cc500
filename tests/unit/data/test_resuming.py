"""Loaders go on where others were: every example of an epoch once, across stops, world sizes and kinds of share.

A run here is all its workers in one thread: a seeded schedule says who takes a batch, who steps, and when it all ends.
"""

from __future__ import annotations

import json
import multiprocessing
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.data.consumption import Consumed
from quorate.data.context import DataContext
from quorate.data.loader import Loader, Loaders
from quorate.wire import current
from quorate.wire.current import Place

SIZES = (1, 2, 3, 5, 8)


@pytest.fixture(autouse=True)
def nowhere() -> Iterator[None]:
    yield
    current.forget(thread_only=True)


class Board(Counter[str]):
    """The part of a board that loaders use."""

    def add(self, key: str) -> int:
        self[key] += 1
        return self[key]


def be(rank: int, size: int, board: Board | None = None) -> Place:
    clock = SimpleNamespace(now=lambda: 0.0)
    wire = SimpleNamespace(
        rank=rank, size=size, clock=clock, is_newcomer=True, board=Board() if board is None else board
    )
    return current.enter(cast(Wire, wire), thread_only=True)


def trains(place: Place) -> None:
    """An optimizer is distributed there."""
    place.context(Consumed).follow_steps()


def steps(place: Place) -> None:
    place.context(Consumed).stepped()


def loader_of(rank: int = 0, size: int = 1, n: int = 20, batch_size: int = 4, **options: Any) -> Loader:
    trains(be(rank, size))
    return quorate.loader(TensorDataset(torch.arange(n)), batch_size, **options)


def values(batch: Any) -> list[int]:
    return cast(list[int], batch[0].tolist())


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


@dataclass
class Worker:
    """One rank of a run: takes a batch, then steps, then takes the next, epoch after epoch until `epochs`."""

    place: Place
    loader: Loader
    epochs: int
    iterator: Iterator[Any] | None = None
    in_hand: list[int] | None = None
    seen: list[tuple[int, list[int]]] = field(default_factory=list)

    @property
    def epoch(self) -> int:
        """That in which it takes its next batch."""
        epoch: int = self.loader.whereabouts()["epoch"]
        return epoch

    @property
    def is_done(self) -> bool:
        return self.iterator is None and self.loader.epoch >= self.epochs

    def go(self) -> None:
        if self.in_hand is not None:
            self.seen.append((self.loader.epoch, self.in_hand))
            steps(self.place)
            self.in_hand = None
            return
        if self.iterator is None:
            self.iterator = iter(self.loader)
            return
        batch = next(self.iterator, None)
        if batch is not None:
            self.in_hand = values(batch)
            return
        self.iterator = None
        if self.loader.epoch + 1 >= self.epochs:
            self.loader.set_epoch(self.epochs)


@dataclass(frozen=True)
class Plan:
    """How a run shares its data, and after how many actions of all its workers it is killed."""

    size: int
    batch_size: int
    share: str
    stop: int | None = None
    drop_last: bool = False


def run(plan: Plan, n: int, epochs: int, seed: int, before: list[Any] | None) -> tuple[list[Worker], list[Any]]:
    """Its workers, and their loaders' positions when it ended."""
    draws, board, workers = random.Random(seed), Board(), []
    for rank in range(plan.size):
        place = be(rank, plan.size, board)
        trains(place)
        data = TensorDataset(torch.arange(n))
        loader = quorate.loader(
            data, min(plan.batch_size, len(data)), share=plan.share, seed=3, drop_last=plan.drop_last
        )
        if before:
            loader.load_state_dicts(before)
        workers.append(Worker(place, loader, epochs))
    going = [worker for worker in workers if not worker.is_done]
    taken = 0
    while going and (plan.stop is None or taken < plan.stop):
        least = min(worker.epoch for worker in going)
        worker = draws.choice(going)
        if plan.share == "dynamic" and worker.epoch > least:
            continue  # no faster: they rest at the end of an epoch
        worker.go()
        taken += 1
        going = [worker for worker in going if not worker.is_done]
    return workers, [through_json(worker.loader.state_dict()) for worker in workers]


def counted(runs: list[list[Worker]]) -> dict[int, Counter[int]]:
    """How often each example was computed, by epoch."""
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for workers in runs:
        for worker in workers:
            for epoch, examples in worker.seen:
                counts[epoch].update(examples)
    return counts


def chain(plans: list[Plan], n: int, epochs: int, seed: int) -> list[list[Worker]]:
    runs, before = [], None
    for number, plan in enumerate(plans):
        workers, before = run(plan, n, epochs, seed + number, before)
        runs.append(workers)
    return runs


EPOCHS = 3


def plans(share: st.SearchStrategy[str], drop_last: st.SearchStrategy[bool]) -> st.SearchStrategy[list[Plan]]:
    stopped = st.builds(Plan, st.sampled_from(SIZES), st.integers(1, 5), share, st.integers(0, 60), drop_last)
    last = st.builds(Plan, st.sampled_from(SIZES), st.integers(1, 5), share, st.none(), drop_last)
    return st.tuples(st.lists(stopped, min_size=1, max_size=3), last).map(lambda both: [*both[0], both[1]])


examples = st.integers(1, 40)
seeds = st.integers(0, 2**30)


@given(plans(st.just("dynamic"), st.just(False)), examples, seeds)
def test_a_dynamic_share_gives_every_example_exactly_once(each: list[Plan], n: int, seed: int) -> None:
    counts = counted(chain(each, n, EPOCHS, seed))
    assert counts == {epoch: Counter(range(n)) for epoch in range(EPOCHS)}


@given(plans(st.sampled_from(["static", "dynamic"]), st.just(False)), examples, seeds)
@example([Plan(2, 2, "static", 13), Plan(3, 2, "static")], 10, 0)
def test_no_example_is_lost_and_only_padding_comes_twice(each: list[Plan], n: int, seed: int) -> None:
    counts = counted(chain(each, n, EPOCHS, seed))
    assert sorted(counts) == list(range(EPOCHS))
    for times in counts.values():
        assert set(times) == set(range(n))
        assert times.total() - n <= sum(plan.size - 1 for plan in each if plan.share == "static")


@given(plans(st.sampled_from(["static", "dynamic"]), st.just(True)), st.integers(40, 60), seeds)
def test_dropping_the_last_gives_no_example_twice_and_leaves_out_no_more_than_the_last_run(
    each: list[Plan], n: int, seed: int
) -> None:
    counts = counted(chain(each, n, EPOCHS, seed))
    for epoch in range(EPOCHS):
        assert set(counts[epoch].values()) == {1}
    last = each[-1]
    most = last.batch_size - 1 if last.share == "dynamic" else last.size * last.batch_size - 1
    assert n - counts[EPOCHS - 1].total() <= max(most, *(plan.size * plan.batch_size - 1 for plan in each))


@given(st.sampled_from(SIZES), st.integers(1, 5), st.lists(st.integers(0, 60), min_size=1, max_size=4), examples, seeds)
def test_the_same_static_share_goes_on_as_if_nothing_had_happened(
    size: int, batch_size: int, stops: list[int], n: int, seed: int
) -> None:
    """Each worker by itself, wherever the others are; also the padding is the same."""
    whole, _ = run(Plan(size, batch_size, "static"), n, EPOCHS, seed, None)
    parts = chain([Plan(size, batch_size, "static", stop) for stop in [*stops, None]], n, EPOCHS, seed)
    for rank in range(size):
        assert [batch for workers in parts for batch in workers[rank].seen] == whole[rank].seen


def test_what_is_left_is_dealt_out_like_an_epoch() -> None:
    """Two workers had 0 2 4 6 8 and 1 3 5 7 9 in batches of two; one computed two of its batches, the other one."""
    old = []
    for rank, batches in ((0, 2), (1, 1)):
        loader = loader_of(rank, 2, n=10, batch_size=2, shuffle=False)
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
            steps(current.here())
        old.append(loader.state_dict())
    left = [5, 7, 8, 9]
    for size, expected in ((1, [[5, 7], [8, 9]]), (3, [[5, 9], [7, 5], [8, 7]]), (5, [[5], [7], [8], [9], [5]])):
        got = []
        for rank in range(size):
            loader = loader_of(rank, size, n=10, batch_size=2, shuffle=False)
            loader.load_state_dicts(old)
            got.append([values(batch) for batch in loader])
            assert len(loader) == {1: 5, 3: 2, 5: 1}[size]
        assert got == ([expected] if size == 1 else [[batch] for batch in expected])
        assert {index for batches in got for batch in batches for index in batch} == set(left)
    assert [values(batch) for batch in loader] == [[4, 9]]  # the next epoch is whole


def test_a_batch_counts_when_a_step_follows_it() -> None:
    loader = loader_of(n=20, shuffle=False)
    place = current.here()
    had = []
    place.context(DataContext).boundaries = [lambda: had.append(loader.state_dict()["begun"]["0"]["consumed"])]
    iterator = iter(loader)
    assert (loader.state_dict()["epoch"], loader.state_dict()["begun"]) == (0, {})  # nothing was asked for

    def done() -> Any:
        return loader.state_dict()["begun"]["0"]["consumed"]

    next(iterator)
    assert done() == []  # taken, not computed
    next(iterator)
    assert done() == []  # two batches for one step
    steps(place)
    assert done() == [[0, 2]]
    next(iterator)
    assert done() == [[0, 2]]
    steps(place)
    steps(place)  # as of a second optimizer
    next(iterator)
    steps(place)
    next(iterator)
    steps(place)
    assert next(iterator, None) is None
    assert had == [[], [], [[0, 2]], [[0, 3]], [[0, 4]], [[0, 5]]]
    assert loader.state_dict()["epoch"] == 1
    assert loader.state_dict()["begun"] == {}


def test_without_an_optimizer_a_batch_counts_when_it_is_given() -> None:
    be(0, 1)
    loader = quorate.loader(TensorDataset(torch.arange(12)), 4)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    assert loader.state_dict()["begun"]["0"]["consumed"] == [[0, 2]]


def test_of_an_evaluation_nothing_is_left_and_it_is_no_boundary() -> None:
    loader = loader_of(n=12, shuffle=False)
    place = current.here()
    place.context(DataContext).boundaries = [lambda: pytest.fail("an evaluation is no training loop")]
    place.context(DataContext).is_evaluating = True
    for _ in range(2):
        assert values(next(iter(loader))) == [0, 1, 2, 3]
        steps(place)
    state = loader.state_dict()
    assert (state["epoch"], state["begun"]) == (2, {})
    for size in (1, 2):
        new = loader_of(0, size, n=12, shuffle=False)
        new.load_state_dicts([state])
        assert (new.epoch, len(list(new))) == (2, 3 if size == 1 else 2)


def test_at_the_end_of_an_epoch_what_is_left_is_empty_and_after_it_the_next_one_comes() -> None:
    """So that what a script does after an epoch is done once, whether the checkpoint is made before or after it."""
    loader = loader_of(n=8)
    place = current.here()
    for _ in loader:
        steps(place)
    after = loader.state_dict()
    again = iter(loader)
    for batch in (next(again), next(again)):
        assert batch is not None
        steps(place)
    inside = loader.state_dict()
    for state, epoch, sizes in ((after, 1, [2, 2]), (inside, 1, [0, 2])):
        for size in (1, 2):
            new = loader_of(1 if size == 2 else 0, size, n=8, batch_size=4 // size)
            new.load_state_dicts([state])
            assert new.epoch == epoch
            assert [len(list(new)) for _ in range(2)] == sizes
            assert new.epoch == epoch + 1


def test_set_epoch_keeps_what_is_left_of_that_epoch() -> None:
    loader = loader_of(n=12, batch_size=4)
    place = current.here()
    loader.set_epoch(2)
    iterator = iter(loader)
    next(iterator)
    steps(place)
    state = loader.state_dict()
    rest = [values(batch) for batch in iterator]
    whole = [values(batch) for batch in loader_at(12, 3)]
    new = loader_of(n=12, batch_size=4)
    new.load_state_dict(state)
    assert new.epoch == 2
    new.set_epoch(2)
    assert [values(batch) for batch in new] == rest
    assert [values(batch) for batch in new] == whole
    new.load_state_dict(state)
    new.set_epoch(3)
    assert [values(batch) for batch in new] == whole
    new.set_epoch(2)
    assert [values(batch) for batch in new] == rest
    new.set_epoch(2)
    assert len(list(new)) == 3


def test_an_epoch_that_is_gone_through_again_is_whole() -> None:
    loader = loader_of(n=12, share="dynamic")
    for _ in range(2):
        for _ in loader:
            steps(current.here())
    assert list(loader.state_dict()["begun"]) == ["1"]
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        assert loader.state_dict()["begun"] == {}


def loader_at(n: int, epoch: int) -> Loader:
    loader = loader_of(n=n, batch_size=4)
    loader.set_epoch(epoch)
    return loader


def test_what_an_iteration_left_early_had_left_comes_first() -> None:
    loader = loader_of(n=20)
    for _ in loader:
        steps(current.here())
        break
    new = loader_of(n=20)
    new.load_state_dict(loader.state_dict())
    assert [len(list(new)), new.epoch, len(list(new)), new.epoch] == [4, 0, 5, 1]
    for _ in loader:  # here it is left
        break
    assert loader.state_dict()["epoch"] == 1


def test_an_end_by_time_is_no_end_of_the_epoch() -> None:
    loader = loader_of(n=20)
    place = current.here()
    place.context(DataContext).limit = SimpleNamespace(is_reached=lambda: place.context(Consumed).steps == 2)
    for _ in range(3):
        for _ in loader:
            steps(place)
    new = loader_of(n=20)
    new.load_state_dict(loader.state_dict())
    assert (new.epoch, [len(list(new)) for _ in range(2)]) == (0, [3, 5])


@pytest.mark.parametrize("workers", [0, 1])
def test_generators_go_on_as_they_were(workers: int) -> None:
    """Beginning an epoch draws a number, once."""
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}

    def draws(loader: Loader, running: Iterator[Any]) -> list[float]:
        drawn = []
        for iterator in (running, iter(loader)):
            for _ in iterator:
                steps(current.here())
                drawn.append(torch.rand(1).item())
        return drawn

    torch.manual_seed(5)
    loader = loader_of(n=12, **options)
    running = iter(loader)
    next(running)
    steps(current.here())
    state, generator = loader.state_dict(), torch.get_rng_state()
    expected = draws(loader, running)
    new = loader_of(n=12, **options)
    new.load_state_dict(state)
    torch.set_rng_state(generator)
    assert draws(new, iter(new)) == expected


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("share", ["static", "dynamic"])
def test_what_worker_processes_have_prefetched_is_not_consumed(share: str, in_order: bool) -> None:
    options: dict[str, Any] = {
        "share": share,
        "num_workers": 2,
        "prefetch_factor": 3,
        "multiprocessing_context": "fork",
        "in_order": in_order,
        "persistent_workers": True,
    }
    board = Board()
    old: list[Any] = []
    seen: Counter[int] = Counter()
    for rank in range(2):
        trains(be(rank, 2, board))
        loader = quorate.loader(TensorDataset(torch.arange(40)), 2, **options)
        iterator = iter(loader)
        for _ in range(2 + rank):
            seen.update(values(next(iterator)))
            steps(current.here())
        next(iterator)
        old.append(through_json(loader.state_dict()))
        del iterator, loader
    for rank, board in enumerate([Board()] * 3):
        trains(be(rank, 3, board))
        loader = quorate.loader(TensorDataset(torch.arange(40)), 2, **options)
        loader.load_state_dicts(old)
        for batch in loader:
            seen.update(values(batch))
        del loader
    assert seen == Counter(range(40))


class Held(Dataset[int]):
    """Four numbers, of which the first two come when they are let go."""

    def __init__(self) -> None:
        self.let_go = multiprocessing.get_context("fork").Event()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        assert index >= 2 or self.let_go.wait(20.0)
        return index


def test_batches_that_come_in_another_order_are_known() -> None:
    trains(be(0, 1))
    data = Held()
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork", "in_order": False}
    loader = quorate.loader(data, 2, shuffle=False, **options)
    iterator = iter(loader)
    assert next(iterator).tolist() == [2, 3]
    data.let_go.set()
    steps(current.here())
    assert loader.state_dict()["begun"]["0"]["consumed"] == [[1, 2]]
    new = loader_of(n=4, batch_size=2, shuffle=False)
    new.load_state_dict(loader.state_dict())
    assert [values(batch) for batch in new] == [[0, 1]]
    assert [batch.tolist() for batch in iterator] == [[0, 1]]


def test_several_loaders_go_on_each_with_its_own_also_those_made_later() -> None:
    place = be(0, 1)
    trains(place)

    def make() -> Loader:
        return quorate.loader(TensorDataset(torch.arange(12)), 2)

    first, dropped, third = make(), make(), make()
    del dropped
    for loader, batches in ((first, 1), (third, 4)):
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
            steps(place)
    saved = through_json(place.context(Loaders).positions())
    assert sorted(saved) == ["1", "3"]
    place = be(0, 1)
    trains(place)
    first_again = make()
    place.context(Loaders).go_on([saved])
    second_again, third_again = make(), make()
    assert [len(list(loader)) for loader in (first_again, second_again, third_again)] == [5, 6, 2]


def test_positions_without_loaders() -> None:
    place = be(0, 1)
    assert place.context(Loaders).positions() == {}
    place.context(Loaders).go_on([{}, {}])
    assert len(list(quorate.loader(TensorDataset(torch.arange(12)), 2))) == 6


def state_of(rank: int = 0, size: int = 1, **options: Any) -> dict[str, Any]:
    loader = loader_of(rank, size, **options)
    next(iter(loader))
    return loader.state_dict()


def test_one_position_is_enough_for_the_same_static_share_only() -> None:
    loader = loader_of(1, 2)
    loader.load_state_dict(state_of(1, 2))
    for other in (state_of(0, 2), state_of(1, 3), state_of(1, 2, batch_size=5), state_of(1, 2, drop_last=True)):
        with pytest.raises(ConfigurationError, match="one worker's position is enough only for a static share"):
            loader.load_state_dict(other)
    with pytest.raises(ConfigurationError, match="one worker's position is enough only"):
        loader_of(1, 2, share="dynamic").load_state_dict(state_of(1, 2, share="dynamic"))
    loader_of(0, 1, share="dynamic", batch_size=3).load_state_dict(state_of(0, 1, share="dynamic"))


def test_other_data_and_another_order_are_refused() -> None:
    for size in (1, 3):
        loader = loader_of(0, size)
        with pytest.raises(ConfigurationError, match="in a dataset of 21 examples, and this one has 20"):
            loader.load_state_dicts([state_of(n=21)])
        for other, words in (({"seed": 4}, "seed=4 and shuffle=True"), ({"shuffle": False}, "seed=0 and shuffle=Fal")):
            with pytest.raises(ConfigurationError, match=f"in an epoch with {words}.*has seed=0 and shuffle=True"):
                loader.load_state_dicts([state_of(**other)])
            loader.load_state_dicts([loader_of(**other).state_dict()])  # no epoch is begun


def test_positions_that_do_not_belong_together_are_refused() -> None:
    loader = loader_of(0, 3)
    first, second = state_of(0, 2), state_of(1, 2)
    loader.load_state_dicts([second, first])
    for wrong in ([], [first, first], [first, second, state_of(2, 3)]):
        with pytest.raises(ConfigurationError, match="positions"):
            loader.load_state_dicts(wrong)
    with pytest.raises(ConfigurationError, match="do not belong to one loader"):
        loader.load_state_dicts([first, state_of(1, 2, batch_size=3)])
