"""How ordinary loops start and end x strategies: random numbers, data, early ends, and strategies that nobody uses."""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset, random_split

import quorate
from quorate.core.errors import WireTimeout
from quorate.launch.run.overrides import Overrides, why_unused
from quorate.observe.ends import Ends
from quorate.wire.board import MemoryBoard
from quorate.wire.current import here
from quorate.wire.used import Part, note_used
from tests.support.ordinary_loops import Cell, Loop, ended, ended_for_real, every_family
from tests.support.programs import quorate as run_quorate
from tests.support.scene import Trainer, pause

Drawn = tuple[float, float, float]


def drawn() -> Drawn:
    """One number of each default generator."""
    return torch.rand(1).item(), float(np.random.rand()), random.random()


def draws_around_distribute(cell: Cell, between: Callable[[], object] = lambda: None) -> tuple[Drawn, Drawn]:
    """Numbers drawn before the first `distribute` and after it; `between` runs before the former are drawn."""
    between()
    random_split(range(100), [80, 20])  # type: ignore[arg-type]
    np.random.randn(3)
    random.sample(range(10_000), 9_000)
    before = drawn()
    model = torch.nn.Linear(4, 1)
    cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
    return before, drawn()


@every_family()
def test_workers_draw_alike_until_an_optimizer_is_distributed(strategy: str) -> None:
    (first, first_after), (second, second_after) = ended(draws_around_distribute, strategy, generators=True).right()
    assert first == second
    assert all(x != y for x, y in zip(first_after, second_after, strict=True))


@pytest.mark.parametrize(
    ("seed", "place"),
    [(lambda: torch.manual_seed(3), 0), (lambda: np.random.seed(3), 1), (lambda: random.seed(3), 2)],
    ids=["torch", "numpy", "python"],
)
def test_a_generator_that_the_script_has_seeded_goes_on(seed: Callable[[], object], place: int) -> None:
    def loop(cell: Cell) -> tuple[Drawn, Drawn]:
        return draws_around_distribute(cell, seed)

    (_, first), (_, second) = ended(loop, "all-reduce", generators=True).right()
    assert [x == y for x, y in zip(first, second, strict=True)] == [n == place for n in range(3)]


def test_a_seed_given_after_distribute_counts() -> None:
    def loop(cell: Cell) -> Drawn:
        draws_around_distribute(cell)
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        return drawn()

    first, second = ended(loop, "all-reduce", generators=True).right()
    assert first == second
    assert first[2] == random.Random(3).random()


def test_a_second_optimizer_seeds_nothing() -> None:
    def loop(cell: Cell) -> tuple[bool, bool]:
        draws_around_distribute(cell)
        states = torch.get_rng_state(), random.getstate()
        model = torch.nn.Linear(4, 1)
        torch.set_rng_state(states[0])
        cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
        return torch.equal(torch.get_rng_state(), states[0]), random.getstate() == states[1]

    assert ended(loop, "all-reduce", generators=True).right() == [(True, True)] * 2


def squares_of(trainer: Trainer) -> torch.Tensor:
    return trainer.model(trainer.batch[0]).square().mean()


def trained_on(cell: Cell, dataset: Any, **choices: Any) -> int:
    """One epoch of what `quorate.loader` gives; returns the number of batches."""
    return cell.train(data=dataset, shard={"batch_size": 2, **choices}, loss=squares_of, rate=1e-3).step


def rows(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def of_another_length(cell: Cell) -> int:
    return trained_on(cell, TensorDataset(rows((8, 12)[cell.world.rank])))


def of_other_examples(cell: Cell) -> int:
    return trained_on(cell, TensorDataset(rows(8, cell.world.rank)))


def in_another_order(cell: Cell) -> int:
    order = torch.randperm(8, generator=torch.Generator().manual_seed(cell.world.rank))
    return trained_on(cell, Subset(TensorDataset(rows(8)), order.tolist()))


@pytest.mark.parametrize(
    ("loop", "sentence"),
    [
        (of_another_length, r"given (12|8) examples on rank (0|1) and (12|8) on rank"),
        (of_other_examples, r"other data on rank (0|1) than on rank (0|1): example 0 of 8 differs"),
        (in_another_order, r"other data on rank (0|1) than on rank"),
    ],
)
@every_family()
def test_other_data_on_another_worker_is_refused(loop: Loop, sentence: str, strategy: str) -> None:
    ended(loop, strategy).refused(sentence)


def test_other_data_in_another_process_is_refused() -> None:
    ended_for_real(of_another_length, "all-reduce").refused(r"given (12|8) examples on rank")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("seed", "given seed=. on rank . and seed="), ("partition", "given labels=.* on rank . and labels=")],
)
def test_other_choices_on_another_worker_are_refused(name: str, sentence: str) -> None:
    def loop(cell: Cell) -> int:
        rank = cell.world.rank
        more = (
            {"seed": rank} if name == "seed" else {"partition": "label", "labels": [n // 4 == rank for n in range(8)]}
        )
        return trained_on(cell, TensorDataset(rows(8)), **more)

    ended(loop, "all-reduce" if name == "seed" else "fed-avg").refused(sentence)


class Augmented(Dataset[Any]):
    """Items that differ at every reading, by torch's default generator or by one of its own."""

    def __init__(self, own: np.random.Generator | None) -> None:
        self._own, self.reads = own, 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        noise = torch.randn(4) if self._own is None else torch.tensor(self._own.standard_normal(4), dtype=torch.float)
        return (rows(8)[index] + noise,)


class Opened(Dataset[Any]):
    """Opens its file where the first item is read, as datasets do whose handles must not be inherited."""

    def __init__(self) -> None:
        self.file: torch.Tensor | None = None

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        if self.file is None:
            self.file = rows(8)
        return (self.file[index],)


class Pairs(Dataset[Any]):
    """Items of a class that nobody knows, different on every rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return SimpleNamespace(x=rows(8, self.rank)[index])


def test_what_cannot_be_compared_is_trained_on() -> None:
    def loop(cell: Cell) -> tuple[int, int, bool, bool]:
        own = np.random.default_rng(cell.world.rank)
        states = torch.get_rng_state(), random.getstate()
        opened = Opened()
        quorate.loader(opened, 2)
        quorate.loader(Subset(opened, range(8)), 2)
        quorate.loader(Pairs(cell.world.rank), 2)
        quorate.loader(Augmented(None), 2)
        untouched = torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
        batches = trained_on(cell, Augmented(None)), trained_on(cell, Augmented(own))
        return *batches, opened.file is None, untouched

    assert ended(loop, "all-reduce", generators=True).right() == [(2, 2, True, True)] * 2


def test_workers_that_make_loaders_alone_wait_for_nobody() -> None:
    def loop(cell: Cell) -> int:
        batches = trained_on(cell, TensorDataset(rows(8)))
        return batches if cell.world.rank else len(quorate.loader(TensorDataset(rows(4)), 2, shuffle=False))

    assert ended(loop, "all-reduce").right() == [1, 2]


def steps_of(cell: Cell, *, until: Callable[[int], bool] = lambda step: False, steps: int = 24) -> list[float]:
    """A loop with a loader of the script's own, which `until` ends; the parameters at the end, and the steps made."""
    trainer = cell.trainer(rate=0.01)
    while trainer.step < steps:
        trainer.make_step()
        if until(trainer.step):
            break
    return [float(trainer.step), *trainer.finish().parameters.tolist()]


def breaks_alone(cell: Cell) -> list[float]:
    return steps_of(cell, until=lambda steps: cell.world.is_first and steps == 6)


ALONE = r"rank 0 has ended its training after 6 steps, and others train on without it; .* world\.stop"


@every_family()
def test_an_end_on_one_worker_is_said(strategy: str) -> None:
    endings = ended(breaks_alone, strategy)
    first, second = endings.right()
    assert (first[0], second[0], first[1:]) == (6, 24, second[1:])
    endings.told_once(ALONE)


@every_family()
def test_an_end_is_said_within_twenty_steps_while_a_thread_reads_the_board(strategy: str) -> None:
    """The thread of a real worker reads it twice a second: here it never does."""

    def loop(cell: Cell) -> list[float]:
        here().context(Ends).is_attended = True
        return steps_of(cell, until=lambda steps: cell.world.is_first and steps == 4)

    endings = ended(loop, strategy)
    assert [first[0] for first in endings.right()] == [4, 24]
    endings.told_once(ALONE.replace("6", "4"))


@every_family()
def test_an_end_before_the_loader_s_is_said(strategy: str) -> None:
    def loop(cell: Cell) -> int:
        fields = {"data": TensorDataset(rows(48)), "shard": {"batch_size": 2, "share": "static"}, "loss": squares_of}
        return cell.train(6 if cell.world.is_first else 99, rate=0.01, **fields).step

    endings = ended(loop, strategy)
    assert endings.right() == [6, 12]
    endings.told_once("rank 0 has ended its training after 6 steps, before its loader had ended, and others train on")


@every_family()
def test_loops_that_end_together_say_nothing(strategy: str) -> None:
    endings = ended(lambda cell: steps_of(cell, until=lambda steps: steps == 6), strategy)
    assert [first[0] for first in endings.right()] == [6, 6]
    assert endings.told == ""


@every_family()
def test_workers_that_decide_together_end_together(strategy: str) -> None:
    def loop(cell: Cell) -> list[float]:
        world = cell.world
        return steps_of(cell, until=lambda steps: world.any(world.is_first and steps == 6))

    endings = ended(loop, strategy)
    first, second = endings.right()
    assert first == second
    assert first[0] == 6
    assert endings.told == ""


_MANY = 3000
"""Steps, more than a worker makes until it has heard of a stop."""


def stops_once(cell: Cell) -> list[float]:
    """Rank 1 wants all to stop after its sixth step."""

    def until(steps: int) -> bool:
        if cell.world.rank == 1 and steps == 6:
            cell.world.stop("the loss rises")
        return cell.world.stopped

    return steps_of(cell, until=until, steps=_MANY)


@every_family()
def test_a_stop_ends_the_loops_of_all(strategy: str) -> None:
    endings = ended(stops_once, strategy)
    first, second = endings.right()
    assert first[1:] == second[1:]
    assert {first[0], second[0]} <= ({7} if strategy == "all-reduce" else {8} if strategy == "local-sgd" else {6, 7})
    endings.told_once("rank 1 ends the training: the loss rises")


@every_family()
def test_a_stop_ends_the_loaders_of_all(strategy: str) -> None:
    def stop(trainer: Trainer) -> None:
        if (trainer.rank, trainer.step) == (1, 6):
            trainer.world.stop()

    def loop(cell: Cell) -> tuple[int, list[float]]:
        fields = {"data": TensorDataset(rows(48)), "shard": {"batch_size": 2}, "epochs": 3, "loss": squares_of}
        trainer = cell.train(rate=0.01, after=stop, **fields)
        return trainer.step, trainer.parameters.tolist()

    (first, x), (second, y) = ended(loop, strategy).right()
    assert x == y
    assert max(first, second) <= 8


@pytest.mark.parametrize("strategy", ["all-reduce", "eager-majority"])
def test_a_stop_ends_the_loops_of_all_in_processes(strategy: str) -> None:
    first, second = ended_for_real(stops_once, strategy).right()
    assert first[1:] == second[1:]
    assert max(first[0], second[0]) <= (7 if strategy == "all-reduce" else _MANY - 1)


def test_all_and_any_are_the_same_on_every_worker() -> None:
    def loop(cell: Cell) -> list[bool]:
        world, rank = cell.world, cell.world.rank
        return [world.any(rank == 1), world.any(False), world.all(rank == 1), world.all(torch.tensor(rank < 5))]

    assert ended(loop, "all-reduce", 3).right() == [[True, False, False, True]] * 3


def busy(cell: Cell, seconds: float) -> None:
    """Time in which this worker calls nothing."""
    with pytest.raises(WireTimeout):
        cell.world.wire.board.wait(["nobody writes this"], seconds)


def test_the_first_worker_does_a_block_before_the_others() -> None:
    order: list[int] = []

    def loop(cell: Cell) -> None:
        with cell.world.first_does():
            if cell.world.is_first:
                busy(cell, 7200.0)
            order.append(cell.world.rank)
        with cell.world.first_does():
            order.append(cell.world.rank)

    ended(loop, "all-reduce", 3).right()
    assert order[0] == 0
    assert sorted(order) == [0, 0, 1, 1, 2, 2]


def test_an_error_of_the_first_worker_ends_the_others() -> None:
    def loop(cell: Cell) -> None:
        try:
            with cell.world.first_does():
                if cell.world.is_first:
                    raise OSError("the disk is full")
        except OSError:
            return

    endings = ended(loop, "all-reduce", 3)
    assert [ending.kind for ending in endings.workers] == [None, "PeerFailed", "PeerFailed"]
    assert "rank 0 raised an error in world.first_does()" in endings.workers[1].message


def test_the_first_worker_is_named_where_it_takes_too_long() -> None:
    def loop(cell: Cell) -> None:
        with cell.world.first_does(timeout=60.0):
            if cell.world.is_first:
                busy(cell, 7200.0)

    ended(loop, "all-reduce").named("rank 1 waited 60 s for rank 0 in world.first_does", at=0, within=0)


TRAINS_ALONE = """
import torch, quorate
world = quorate.join()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{}
for _ in range(3):
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("world", [("-n", "2"), ("--virtual", "2")])
@pytest.mark.parametrize("trains", [True, False])
def test_a_strategy_that_nobody_uses_is_an_error(tmp_path: Path, world: tuple[str, str], trains: bool) -> None:
    text = TRAINS_ALONE.format("") if trains else "import quorate\nquorate.join()\n"
    (tmp_path / "train.py").write_text(text)
    finished = run_quorate(tmp_path, "run", *world, "--strategy", "eager-solo", "train.py")
    assert finished.returncode == 1
    assert finished.stderr.count("rank 0: SGD steps, and no optimizer was distributed; --strategy eager-solo") == trains
    assert finished.stderr.count("quorate: --strategy eager-solo was asked for, and no worker used it") == 1


def test_a_script_without_quorate_uses_no_strategy(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('nothing')\n")
    finished = run_quorate(tmp_path, "run", "-n", "2", "--strategy", "all-reduce", "train.py")
    assert finished.returncode == 1
    assert "--strategy all-reduce was asked for, and no worker used it" in finished.stderr


@pytest.mark.parametrize("options", [("--strategy", "eager-solo"), ()])
def test_a_strategy_that_is_used_or_was_not_asked_for_is_none(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(
        TRAINS_ALONE.format("optimizer = quorate.distribute(optimizer, model)" if options else "")
    )
    finished = run_quorate(tmp_path, "run", "-n", "2", *options, "train.py")
    assert finished.returncode == 0, finished.stderr
    assert "no worker used it" not in finished.stderr
    assert "no optimizer was distributed" not in finished.stderr


@pytest.mark.parametrize(
    ("chosen", "used", "sentence"),
    [
        (Overrides(zero=3), (), "--zero 3 was asked for, and no worker used it: .* quorate.parallelize"),
        (Overrides(mesh="shards=2", zero=1), (), "--mesh shards=2 --zero 1 was asked for"),
        (Overrides(mesh="shards=2", strategy="quorum"), ("strategy",), "--mesh shards=2 was asked for"),
        (Overrides(mesh="shards=2", strategy="quorum"), ("mesh",), "--strategy quorum was asked for"),
        (Overrides(mesh="replicas=2"), (), None),
        (Overrides(settings={"wait_for": 1}), (), "--set wait_for=1 was asked for"),
        (Overrides(zero=3), ("mesh",), None),
        (Overrides(seed=3), (), None),
    ],
)
def test_what_was_asked_for_and_not_used_is_named(
    chosen: Overrides, used: Sequence[Part], sentence: str | None
) -> None:
    board = MemoryBoard()
    for part in used:
        note_used(board, part)
    why = why_unused(board, chosen, 2)
    assert why is None if sentence is None else re.search(sentence, why or "")


def test_a_module_with_operators_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "with_operators.py").write_text(
        "import time, torch\n"
        'library = torch.library.Library("quorate_with_operators", "DEF")\n'
        'library.define("twice(Tensor x) -> Tensor")\n'
        "time.sleep(0.01)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def function() -> int:
        world = quorate.join()
        module = importlib.import_module("with_operators")
        world.barrier()
        return id(module)

    launched = [quorate.launch(function, virtual=2, progress=False).results for _ in range(2)]
    assert len({number for results in launched for number in results}) == 1


@every_family()
def test_an_evaluation_on_all_workers_before_the_end_says_nothing(strategy: str) -> None:
    def loop(cell: Cell) -> None:
        cell.train(6, after=pause)

    endings = ended(loop, strategy, 3)
    endings.right()
    assert "waits" not in endings.told
