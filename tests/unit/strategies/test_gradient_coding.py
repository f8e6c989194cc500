"""Gradient coding: the exact mean of all batches, without those that are late or have died."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.data.consumption import Consumed
from quorate.wire import current
from tests.support.scene import Scene, parameters, sums

EXAMPLES, BATCH, EPOCHS = 48, 4, 2


def scene(size: int, compute: Any = None, **settings: Any) -> Scene:
    chosen: dict[str, Any] = {"model": (4, 8, 1), "rate": 0.1, "heavy": 0.9, "epochs": EPOCHS, **settings}
    return Scene(size=size, data=sums(EXAMPLES), world={"compute": compute}, **chosen)


def ends(*given: Any, **settings: Any) -> list[Tensor]:
    return scene(*given, **settings).ends()


def check_near(ends: list[Tensor], wanted: Tensor) -> None:
    for end in ends:
        assert torch.equal(end, ends[0])
        torch.testing.assert_close(end, wanted, rtol=1e-4, atol=1e-5)


LATE: dict[str, Callable[[int, int], float]] = {
    "nobody": lambda rank, step: 0.01,
    "always the same": lambda rank, step: 0.2 if rank == 1 else 0.01,
    "in turn": lambda rank, step: 0.07 if (rank + step) % 3 == 0 else 0.01,
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize(
    ("code", "size", "s", "alike"),
    [("repetition", 4, 1, 2), ("cyclic", 4, 1, 4), ("cyclic", 5, 2, 5), ("repetition", 5, 1, 2)],
)
def test_the_mean_is_that_of_all_batches_whoever_is_late(code: str, size: int, s: int, alike: int, late: str) -> None:
    """As all-reduce among as many workers as there are batches in a step, at the same step sizes."""
    wanted = ends(alike, strategy="all-reduce")[0]
    check_near(ends(size, LATE[late], strategy="gradient-coding", code=code, s=s), wanted)


def test_nobody_waits_for_a_late_worker() -> None:
    def slow(rank: int, step: int) -> float:
        return 0.5 if rank == 1 else 0.01

    names = ("gradient-coding", "all-reduce")
    coded, waited = (scene(4, slow, strategy=name).run(lambda trainer: trainer.clock.now())[0] for name in names)
    assert coded < waited / 2, "its 12 steps of 0.01 s, and a late one at the end of each epoch"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_finish_leaves_equal_replicas_at_every_size(size: int) -> None:
    found = ends(size, strategy="gradient-coding", with_one_worker="algorithm")
    check_near(found, found[0])


def test_more_late_ones_than_s_are_waited_for() -> None:
    def slow(rank: int, step: int) -> float:
        return 0.2 if rank in (1, 2) else 0.01

    check_near(ends(4, slow, strategy="gradient-coding", code="cyclic", s=1), ends(4, strategy="all-reduce")[0])


def test_examples_are_counted_once() -> None:
    counts = scene(4, strategy="gradient-coding", code="cyclic", s=1).run(
        lambda trainer: current.here().context(Consumed).all_examples
    )
    assert sum(counts) == EXAMPLES * EPOCHS


def test_a_batch_is_for_one_step() -> None:
    with pytest.raises(ConfigurationError, match=r"call optimizer\.step\(\) once for each batch"):
        Scene("gradient-coding", 2, data=sums(24)).act(lambda trainer: list(trainer.loader))


def test_nothing_is_fetched_ahead() -> None:
    with pytest.raises(ConfigurationError, match="none is fetched ahead; leave out num_workers"):
        Scene("gradient-coding", 2, data=sums(24), shard={"num_workers": 1}).run()


@pytest.mark.parametrize(
    ("name", "code", "size"), [("gradient-coding", "cyclic", 4), ("draco", "cyclic", 4), ("draco", "repetition", 5)]
)
def test_the_mean_is_exact_after_a_death(name: str, code: str, size: int) -> None:
    wanted = ends(size if code == "cyclic" else 1, strategy="all-reduce")[0]
    left = scene(size, dies={2: 3}, strategy=name, code=code, s=1, on_death="continue").survivors(parameters)
    check_near(list(left.values()), wanted)


def test_after_more_deaths_than_it_bears_it_stops_with_an_error() -> None:
    found = scene(4, dies={1: 2, 2: 4}, strategy="gradient-coding", code="cyclic", s=1).outcomes()
    assert all("had too few workers to decode a mean" in str(found[rank].error) for rank in (0, 3)), found
