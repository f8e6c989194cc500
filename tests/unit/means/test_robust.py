"""Aggregation rules among workers: pieces of vectors at their owners give what whole vectors in one place give."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.aggregation import rules
from quorate.aggregation.rule import aggregated
from quorate.buckets.flat import layout_of
from quorate.core.codec import Draw
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat, header_in
from quorate.means.reduction import reduction_of
from quorate.means.robust import Robust
from quorate.train.combination import Combination
from quorate.train.compatibility import check
from quorate.wire.metered import Meter, Metered
from quorate.wire.virtual.world import VirtualWorld
from tests.support import drawn_vectors as vectors
from tests.support.drawn_vectors import numbers_of
from tests.support.scene import Scene, loss_in_common, spoiling

LAYOUT = layout_of(
    [("a", torch.zeros(5, 3)), ("b", torch.zeros(7)), ("c", torch.zeros(1)), ("d", torch.zeros(0))],
    header=3,
    part_bytes=40,
    first_part_bytes=40,
)
"""Three parts; some are smaller than there are workers."""
NUMBERS = 23


drawn = partial(vectors.drawn, LAYOUT)


def formed(size: int, name: str, vector_of: Callable[[int, int], Flat], steps: int = 1, **own: Any) -> list[list[Flat]]:
    def task(wire: Wire) -> list[Flat]:
        reducer = Robust(LAYOUT, wire, rules.get(name)(**own), seed=7)
        return [reducer.start(vector_of(wire.rank, step)).wait().clone() for step in range(steps)]

    return VirtualWorld(size, timeout=30.0).run(task)


@pytest.mark.parametrize("name", [name for name in rules if name not in ("majority", "mean")])
def test_every_rule_on_pieces_is_the_rule_on_whole_vectors(name: str) -> None:
    """Several times over, so that those that look from their newest result do so; with the same bits everywhere."""
    size = rules.get(name)(f=1).least + 1
    results = formed(size, name, drawn, steps=3, f=1)
    centre = torch.zeros(NUMBERS)
    for step in range(3):
        assert all(
            torch.equal(x, y) for own in results for x, y in zip(own[step].parts, results[0][step].parts, strict=True)
        )
        rows = torch.stack([numbers_of(drawn(rank, step)) for rank in range(size)])
        wanted = aggregated(rules.get(name)(f=1), rows, centre, Draw(seed=7, round=step))
        centre = numbers_of(results[0][step])
        torch.testing.assert_close(centre, wanted, rtol=1e-5, atol=1e-5)
        assert header_in(results[0][step]).tolist() == [size, 2 * size, sum(range(size))], (
            "what travels besides is summed"
        )


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_the_mean_is_the_mean(size: int) -> None:
    results = formed(size, "mean", drawn)
    wanted = torch.stack([numbers_of(drawn(rank)) for rank in range(size)]).mean(0)
    torch.testing.assert_close(numbers_of(results[0][0]), wanted)


def test_who_has_no_gradient_or_none_that_is_finite_is_left_out() -> None:
    """Rank 1 has ended, and rank 2 sends NaN; rank 3's batch counts twice, and its gradient once."""

    def vector_of(rank: int, step: int) -> Flat:
        x = drawn(rank, step, weight={1: 0.0, 3: 2.0}.get(rank, 1.0))
        if rank == 2:
            x.parts[0][1] = torch.nan
        return x

    results = formed(6, "trimmed-mean", vector_of, f=2)
    rows = torch.stack([numbers_of(drawn(rank)) for rank in (0, 3, 4, 5)])
    wanted = aggregated(rules.get("trimmed-mean")(f=1), rows)  # of five that give, two may be wrong, and one is out
    torch.testing.assert_close(numbers_of(results[0][0]), wanted, rtol=1e-5, atol=1e-5)


def test_bytes_are_those_of_its_formula() -> None:
    def task(wire: Wire) -> tuple[int, int]:
        meter = Meter()
        reducer = Robust(LAYOUT, Metered(wire, meter), rules.get("median")(), seed=0)
        reducer.start(drawn(wire.rank)).wait()
        return meter.total_out, reducer.wire_bytes(wire.size)

    for size in (3, 5):
        assert all(sent == formula for sent, formula in VirtualWorld(size, timeout=30.0).run(task))


def losses(attack: Callable[[Tensor], Tensor] | None, make: Any = torch.optim.SGD, **settings: Any) -> list[float]:
    """The losses after some steps, in which rank 0's gradients are others if there is an `attack`."""
    chosen = {"strategy": "all-reduce", "size": 5, "model": (4, 8, 1), "steps": 40, **settings}
    wrong = {} if attack is None else {0: attack}
    return Scene(make=partial(make, lr=0.05), begin=spoiling(wrong), **chosen).run(loss_in_common)


def turned(gradient: Tensor) -> Tensor:
    return -10 * gradient


def spoilt(gradient: Tensor) -> Tensor:
    return torch.full_like(gradient, torch.nan)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("attack", [turned, spoilt])
@pytest.mark.parametrize("rule", ["median", "krum", "centered-clipping:tau=1.0"])
def test_a_training_goes_on_under_attack(rule: str, attack: Callable[[Tensor], Tensor], optimizer: type[Any]) -> None:
    ends = losses(attack, optimizer, reduce=rule)
    assert len(set(ends)) == 1 and ends[0] < 2.0, ends


def test_the_mean_breaks_under_it() -> None:
    assert not losses(turned, reduce="mean")[0] < 5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"reduce": "krum", "dense_below": 3}, "dense_below: these are settings of a codec, but there is none"),
        ({"reduce": "krum:f=-1"}, "f is -1"),
        ({"reduce": "krum", "tau": 3}, "tau"),
        ({"reduce": "krumm"}, 'unknown way to reduce "krumm"; did you mean "krum"'),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        reduction_of(settings)


def test_what_does_not_go_with_a_rule() -> None:
    with pytest.raises(ConfigurationError, match='weight="examples" weighs means, and reduce="median" forms none'):
        check(Combination(weight="examples", reduction=reduction_of({"reduce": "median"})))
    with pytest.raises(ConfigurationError, match='reduce="median" is for gradients'):
        losses(None, size=3, strategy="local-sgd", reduce="median")
    with pytest.raises(ConfigurationError, match="Krum takes f of at least 2 f \\+ 3 vectors: of 3 vectors up to 0"):
        losses(None, size=3, reduce="krum:f=1")


@pytest.mark.parametrize(("size", "f"), [(1, 0), (3, 0), (5, 1), (9, 1)])
def test_unless_asked_for_f_is_one_where_there_are_enough(size: int, f: int) -> None:
    def task(wire: Wire) -> int:
        reducer = reduction_of({"reduce": "krum"}).reducer(LAYOUT, wire, 0)
        assert isinstance(reducer, Robust)
        return reducer.rule.f

    assert VirtualWorld(size).run(task) == [f] * size
