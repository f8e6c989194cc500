"""`weight="examples"`: short batches count by their size in every mean of all workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch

import quorate
from quorate.core.errors import ConfigurationError
from tests.support.scene import Scene, Trainer, zeros

SIZE, RATE = 2, 0.3
DATA = torch.arange(10, dtype=torch.float64)
"""In batches of 4, dealt out to 3 workers, the last one has 2."""


def ends(
    size: int = SIZE,
    *,
    loads: bool = True,
    share: str = "static",
    epochs: int = 1,
    data: torch.Tensor = DATA,
    batch_size: int = 4,
    steps: Callable[[Iterator[list[float]]], Iterator[list[float]]] = lambda batches: batches,
    **settings: Any,
) -> list[Any]:
    """The parameter of a model of one number that learns the mean of `data`, and what every worker had in each step:
    the batches, unless `steps` makes something else of them."""

    def script(trainer: Trainer) -> tuple[float, list[list[float]]]:
        whole: Any = torch.utils.data.TensorDataset(data)
        shard: Any = {"batch_size": batch_size, "shuffle": False, "share": share}
        loader = quorate.loader(whole, **shard) if loads else [[data[:1]]]
        for _ in range(epochs):
            for numbers in steps(x.tolist() for (x,) in loader):
                learn(trainer, numbers)
        return trainer.finish().model.weight.item(), trainer.seen

    return number(size, pause=lambda rank, _: 0.01 * (1 + rank), **settings).act(script)


def number(size: int = 2, pause: Any = 0.0, strategy: str = "all-reduce", **settings: Any) -> Scene:
    loss = lambda t: ((t.model.weight - t.batch) ** 2).mean()  # noqa: E731
    fields: Any = {"model": lambda: zeros()().double(), "rate": RATE, "loss": loss, "pause": pause}
    return Scene(strategy, size, settings=settings, **fields)


def learn(trainer: Trainer, numbers: list[float]) -> None:
    """Make a step on these numbers."""
    trainer.seen.append(numbers)
    trainer.batch = torch.tensor(numbers, dtype=DATA.dtype)
    trainer.make_step()


def recursion(batches: list[list[list[float]]], *, by_examples: bool, by_world: bool = False) -> float:
    """Synchronous SGD on what all workers had in each step; `by_world`: divided by what full batches count."""
    w, full = 0.0, 0
    for step in zip(*batches, strict=True):
        weights = [len(x) if by_examples else 1 for x in step]
        full = max(full, *weights)
        gradients = [2 * (w - sum(x) / len(x)) for x in step]
        whole = full * len(step) if by_world else sum(weights)
        w -= RATE * sum(n * g for n, g in zip(weights, gradients, strict=True)) / whole
    return w


@pytest.mark.parametrize("name", ["all-reduce", "quorum"])
@pytest.mark.parametrize("by_examples", [True, False])
def test_a_short_batch_counts_by_its_size(name: str, by_examples: bool) -> None:
    settings = {"wait_for": "all", "divide_by": "arrived"} if name == "quorum" else {}
    results = ends(3, share="dynamic", strategy=name, weight="examples" if by_examples else "equal", **settings)
    batches = [own[1] for own in results]
    assert sorted(len(x) for own in batches for x in own) == [2, 4, 4]
    assert results[0][0] == pytest.approx(recursion(batches, by_examples=by_examples), abs=1e-12)


def test_local_steps_count_by_their_examples() -> None:
    results = ends(3, share="dynamic", strategy="local-sgd", sync_every=1, weight="examples")
    batches = [own[1] for own in results]
    assert sorted(len(x) for own in batches for x in own) == [2, 4, 4]
    assert results[0][0] == pytest.approx(recursion(batches, by_examples=True), abs=1e-12)


def twice(batches: Iterator[list[float]]) -> Iterator[list[float]]:
    """Two steps on every batch: the second one has loaded nothing."""
    return (batch for batch in batches for _ in range(2))


def first_two_together(batches: Iterator[list[float]]) -> Iterator[list[float]]:
    """One step on the first two batches."""
    yield [*next(batches), *next(batches)]
    yield from batches


STEPWISE: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "quorum": {"wait_for": "all", "divide_by": "world"},
    "local-sgd": {"sync_every": 1},
    "post-local-sgd": {"sync_every": 1, "after": 2},
    "slowmo": {"sync_every": 1, "slow_every": 1, "beta": 0.0},
    "diloco": {"sync_every": 1, "outer_rate": 1.0, "outer_momentum": 0.0},
    "eager-averaging": {"sync_every": 1, "wait_for": "all"},
}
"""With settings under which each is synchronous SGD."""


@pytest.mark.parametrize("steps", [iter, twice, first_two_together])
@pytest.mark.parametrize("name", STEPWISE)
def test_each_step_counts_by_the_batches_that_it_had(
    name: str, steps: Callable[[Iterator[list[float]]], Iterator[list[float]]]
) -> None:
    """One worker's last batch is shorter than the other's."""
    settings = {"strategy": name, "weight": "examples", **STEPWISE[name]}
    results = ends(data=torch.arange(11.0, dtype=DATA.dtype), batch_size=2, share="dynamic", steps=steps, **settings)
    batches = [own[1] for own in results]
    assert [len(x) for x in batches[0]] != [len(x) for x in batches[1]]
    expected = recursion(batches, by_examples=True, by_world=name in ("quorum", "eager-averaging"))
    assert results[0][0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "name", ["eager-solo", "eager-averaging", "diloco", "slowmo", "post-local-sgd", "group-averaging"]
)
def test_every_strategy_that_forms_means_takes_it(name: str) -> None:
    for end, _ in ends(3, share="dynamic", epochs=2, strategy=name, weight="examples"):
        assert -20 < end < 30


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("d-psgd", "what neighbours count is said by the topology"),
        ("relay", "what neighbours count is said by the topology"),
        ("ad-psgd", "two workers that meet count the same"),
        ("parameter-server", "what a worker counts on servers is said by the strategy's settings"),
        ("easgd", "what a worker counts on servers is said by the strategy's settings"),
        ("hogwild", "each worker takes its own steps, and nothing is averaged"),
    ],
)
def test_where_no_means_of_all_are_formed_it_is_said_what_counts(name: str, instead: str) -> None:
    said = f'weight="examples" weighs the means of all workers, and {name} forms no means: {instead}'
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        ends(strategy=name, weight="examples")


def test_somebody_has_to_count() -> None:
    with pytest.raises(ConfigurationError, match="needs quorate.loader"):
        ends(loads=False, strategy="all-reduce", weight="examples")
    with pytest.raises(ConfigurationError, match="batches that say how many tokens they hold"):
        ends(strategy="all-reduce", weight="tokens")
    with pytest.raises(ConfigurationError, match='unknown weight "words"'):
        ends(strategy="all-reduce", weight="words")


class Text(NamedTuple):
    """Numbers of several texts, and how many there are."""

    numbers: torch.Tensor
    tokens: int


def by_tokens(strategy: str, **settings: Any) -> list[Any]:
    """The parameter of each of two workers, whose batches have 1 to 6 numbers, and the batches it had."""
    texts: Any = [torch.arange(float(n), n + n % 3 + 1.0, dtype=torch.float64) for n in range(12)]
    collate = lambda some: Text(torch.cat(some), sum(map(len, some)))  # noqa: E731

    def script(trainer: Trainer) -> tuple[float, list[list[float]]]:
        for batch in quorate.loader(texts, 2, shuffle=False, collate_fn=collate):
            learn(trainer, batch.numbers.tolist())
        return trainer.finish().model.weight.item(), trainer.seen

    return number(strategy=strategy, weight="tokens", **settings).act(script)


@pytest.mark.parametrize(("name", "settings"), [("all-reduce", {}), ("local-sgd", {"sync_every": 1})])
def test_a_long_batch_counts_by_its_tokens(name: str, settings: dict[str, Any]) -> None:
    results = by_tokens(name, **settings)
    batches = [own[1] for own in results]
    assert len({len(x) for own in batches for x in own}) > 1
    assert results[0][0] == pytest.approx(recursion(batches, by_examples=True), abs=1e-12)


def test_learners_count_by_their_tokens() -> None:
    """With a merge after every step, each has done n tokens in one step: it counts n * n."""
    plain = {"averaging": "mean", "outer_rate": 1.0, "outer_momentum": 0.0, "nesterov": False}
    results = by_tokens("decoupled-diloco", sync_every=1, overlap=0, wait_for="all", **plain)
    w = 0.0
    for step in zip(*(own[1] for own in results), strict=True):
        counts = [len(x) ** 2 for x in step]
        w -= RATE * sum(n * 2 * (w - sum(x) / len(x)) for n, x in zip(counts, step, strict=True)) / sum(counts)
    assert results[0][0] == pytest.approx(w, abs=1e-9)


def test_rounds_of_gradients_have_no_full_batch_of_tokens() -> None:
    with pytest.raises(ConfigurationError, match="which tokens do not have"):
        by_tokens("eager-majority")
