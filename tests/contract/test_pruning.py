"""Laws of pruning over strategies: one mask on all workers, messages as long as the kept numbers, and nothing lost."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import ConfigurationError
from quorate.strategies import strategies
from quorate.wire.cut import all_reduce_bytes
from tests.support.every_strategy import NAMES, OF_ADAM, optimizer_of
from tests.support.pruned_trainings import End, Pruned

TOGETHER: dict[str, dict[str, Any]] = {
    "all-reduce": {"on_death": "continue"},
    "quorum": {"wait_for": 2, "on_death": "continue"},
    "diloco": {"sync_every": 4, "on_death": "continue"},
    "d-psgd": {"on_death": "continue"},
}
"""One that sums gradients, one with rounds, one with local steps, one that gossips."""
SERVED: list[tuple[str, Mapping[str, Any]]] = [
    ("parameter-server", {"on_death": "continue"}),
    ("easgd", {"on_death": "continue"}),
    ("hogwild", {"on_death": "continue"}),
]
"""Those whose parameters, or a centre of them, lie elsewhere than on each worker."""
CODED: list[tuple[str, Mapping[str, Any]]] = [
    ("all-reduce", {"compress": "top-k", "density": 0.3}),
    ("all-reduce", {"compress": "power-sgd"}),
    ("all-reduce", {"compress": "one-bit", "reduce": "two-phase"}),
    ("all-reduce", {"compress": "atomo"}),
    ("quorum", {"compress": "qsgd"}),
    ("streaming-diloco", {"sync_every": 4, "fragments": 2, "compress": "blocks"}),
    ("choco-sgd", {"compress": "top-k", "density": 0.3}),
    ("parameter-server", {"compress": "top-k", "density": 0.3}),
    ("dc-asgd", {"compress": "one-bit"}),
]
"""Codecs with memory, of each kind of vector."""
WEIGHTS, NUMBERS, KEPT = 240, 266, 48
"""Numbers of the net's weights, and of weights and biases; a fifth of the former."""


def are_equal(ends: list[End], *, kept: int = KEPT) -> None:
    for end in ends:
        assert torch.equal(end.masks, ends[0].masks)
        assert torch.equal(end.parameters, ends[0].parameters)
        assert end.moments_are_zero
        assert int(end.masks.sum()) == kept
    assert bool(ends[0].parameters.isfinite().all())


@pytest.mark.parametrize("name", NAMES)
def test_masks_are_equal_on_all_workers(name: str) -> None:
    strategy = strategies.get(name)
    fields = strategy.__dataclass_fields__
    settings: dict[str, Any] = {"sync_every": 1} if "sync_every" in fields and "fragments" not in fields else {}
    training = Pruned(strategy=name, settings=settings, once=6)
    if name in OF_ADAM:
        training.make = partial(optimizer_of, name, lr=0.05)
    if name in OF_ADAM:
        with pytest.raises(ConfigurationError, match="shrink.prune cannot be combined with"):
            training.run()
    else:
        are_equal(training.run())


@pytest.mark.parametrize(("name", "settings"), CODED)
def test_codecs_write_the_kept_numbers_small(name: str, settings: Mapping[str, Any]) -> None:
    """What they remember is of the numbers that are kept."""
    are_equal(Pruned(strategy=name, settings={"dense_below": 0, **settings}).run())


@pytest.mark.parametrize("make", [partial(torch.optim.AdamW, lr=0.01), partial(torch.optim.NAdam, lr=0.01)])
@pytest.mark.parametrize("name", ["all-reduce", "eager-majority", "diloco"])
def test_moments_of_pruned_numbers_are_zero(name: str, make: Any) -> None:
    are_equal(Pruned(strategy=name, settings={"sync_every": 4} if name == "diloco" else {}, make=make).run())


@pytest.mark.parametrize(("name", "settings"), SERVED)
def test_newcomers_take_the_masks_before_they_read(name: str, settings: Mapping[str, Any]) -> None:
    """Servers, and the common memory, write the kept numbers only; a newcomer must know which these are."""
    ends = Pruned(strategy=name, settings=settings, joins={3: 0.085}).run()
    assert len(ends) == 4
    are_equal(ends)


def test_servers_keep_moments_and_step_on_full_tensors() -> None:
    """Muon needs matrices, and AdamW two moments of each number."""
    matrices = lambda parameters: torch.optim.Muon([p for p in parameters if p.dim() == 2], lr=0.02)  # noqa: E731
    are_equal(Pruned(strategy="parameter-server", make=matrices).run())
    are_equal(Pruned(strategy="parameter-server", make=partial(torch.optim.AdamW, lr=0.01, weight_decay=0.5)).run())


@pytest.mark.parametrize("amount", [0.5, 0.8])
def test_pushes_and_reads_are_as_long_as_the_kept_numbers(amount: float) -> None:
    """With as many workers as servers each pushes and sends all but its own part: 4 bytes for each number less."""

    def sent(optimizer: Any, step: int) -> int:
        return sum(optimizer.__dict__["_quorate_worker"].timer._meter.bytes_out.values())

    ends = Pruned(strategy="parameter-server", amount=amount, after=sent, steps=14).run()
    steps = [[after - before for before, after in pairwise(end.seen)] for end in ends]
    less = sum(step[1] - step[-1] for step in steps)
    assert less == 2 * (len(ends) - 1) * 4 * round(amount * WEIGHTS)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("name", "settings", "header"),
    [("all-reduce", {}, True), ("local-sgd", {"sync_every": 1}, True), ("d-psgd", {}, False), ("sgp", {}, False)],
)
def test_messages_are_as_long_as_the_kept_numbers(
    name: str, settings: Mapping[str, Any], header: bool, size: int
) -> None:
    """To the byte: density times the dense vector, and its header."""

    def sent(optimizer: Any, step: int) -> tuple[int, int]:
        worker = optimizer.__dict__["_quorate_worker"]
        return sum(worker.timer._meter.bytes_out.values()), worker.replica.layout.header

    training = Pruned(strategy=name, settings=settings, size=size, at=6, after=sent)
    for end in training.run():
        counts, numbers = [count for count, _ in end.seen], end.seen[0][1] if header else 0
        before, after = counts[4] - counts[3], counts[-1] - counts[-2]
        dense, kept = 4 * (NUMBERS + numbers), 4 * (NUMBERS - WEIGHTS + KEPT + numbers)
        if header:
            assert (before, after) == (all_reduce_bytes(dense, size), all_reduce_bytes(kept, size))
        else:
            neighbours = before // dense
            assert neighbours >= 1
            assert (before, after) == (neighbours * dense, neighbours * kept)


@pytest.mark.parametrize("at", [3, 9])
@pytest.mark.parametrize("name", TOGETHER)
def test_masks_after_a_death(name: str, at: int) -> None:
    ends = Pruned(strategy=name, settings=TOGETHER[name], dies={1: at}).run()
    assert len(ends) == 2
    are_equal(ends)


@pytest.mark.parametrize("name", sorted(TOGETHER.keys() - {"d-psgd"}))
def test_a_newcomer_gets_the_masks(name: str) -> None:
    """Those of a pruning that it has missed; it takes part in the next one."""
    schedule = quorate.shrink.Cubic(begin=2, steps=20, every=20, initial=0.5)
    training = Pruned(strategy=name, settings=TOGETHER[name], joins={3: 0.2}, steps=26, prunes={"schedule": schedule})
    ends = training.run()
    assert [len(end.pruning.reports) for end in ends] == [2, 2, 2, 1]
    assert len({end.pruning.reports[-1].before.parameters for end in ends}) == 1
    are_equal(ends)


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("name", TOGETHER)
def test_a_checkpoint_has_the_masks(name: str, size: int, tmp_path: Path) -> None:
    """Also for another number of workers."""
    saving = Pruned(strategy=name, settings=TOGETHER[name], root=tmp_path, saves=8, steps=9)
    before = saving.run()
    ends = Pruned(strategy=name, settings=TOGETHER[name], root=tmp_path, loads=True, size=size).run()
    assert len(ends) == size
    assert torch.equal(ends[0].masks, before[0].masks)
    are_equal(ends)
