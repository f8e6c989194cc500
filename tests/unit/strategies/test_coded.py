"""Strategies under which workers compute the same batches: what comes is the mean of those that are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import quorate
from quorate.core.errors import ConfigurationError, Mismatch
from quorate.data.context import DataContext
from quorate.launch.worker.world import World
from quorate.wire import current
from tests.support.scene import Scene, spoiling, sums, virtual

EXAMPLES, BATCH, EPOCHS = 48, 4, 2
Wrong = Callable[[int], bool]


def nobody(rank: int) -> bool:
    return False


def scene(size: int, wrong: Wrong = nobody, how: Callable[[Tensor], Tensor] = torch.neg, **settings: Any) -> Scene:
    """Workers that are `wrong` send what `how` makes of their gradients."""
    chosen: dict[str, Any] = {"model": (4, 8, 1), "rate": 0.1, "heavy": 0.9, "epochs": EPOCHS, **settings}
    spoilt = spoiling({rank: how for rank in range(size) if wrong(rank)})
    return Scene(size=size, data=sums(EXAMPLES), begin=spoilt, **chosen)


def ends(*given: Any, **settings: Any) -> list[Tensor]:
    return scene(*given, **settings).ends()


def close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5)


ATTACKS: dict[str, Callable[[Tensor], Tensor]] = {
    "turned": lambda g: -10 * g,
    "one bit": lambda g: torch.nextafter(g, torch.full_like(g, torch.inf)),
    "no number": lambda g: torch.full_like(g, torch.nan),
    "large": lambda g: torch.full_like(g, 1e20),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(("size", "s", "ranks"), [(6, 1, {1, 5}), (5, 2, {0, 3}), (7, 1, {0, 6})])
def test_with_votes_what_comes_is_the_attack_free_result_to_the_bit(
    size: int, s: int, ranks: set[int], attack: str
) -> None:
    """Groups are of three, of five, and of three and four."""
    free = ends(size, strategy="draco", s=s)
    found = ends(size, lambda rank: rank in ranks, ATTACKS[attack], strategy="draco", s=s, on_nonfinite="ignore")
    assert all(torch.equal(one, free[0]) for one in (*free, *found))


@pytest.mark.parametrize("size", [3, 6, 12])
def test_without_wrong_ones_it_is_all_reduce_among_as_many_workers_as_groups(size: int) -> None:
    assert close(
        ends(size, strategy="draco", s=1)[0], ends(size // 3, strategy="all-reduce", with_one_worker="algorithm")[0]
    )


@pytest.mark.parametrize(
    ("size", "s", "ranks"), [(3, 1, {2}), (4, 1, {0}), (6, 2, {1, 4}), (7, 2, {0, 1}), (8, 1, {7})]
)
def test_with_a_cyclic_code_what_comes_is_the_mean_of_all_batches(size: int, s: int, ranks: set[int]) -> None:
    """To the bit among the workers; near all-reduce, which computes each batch once."""
    wanted = ends(size, strategy="all-reduce")[0]
    settings: dict[str, Any] = {"strategy": "draco", "code": "cyclic", "s": s, "on_nonfinite": "ignore"}
    for how in ({**ATTACKS, "nothing": lambda g: g}[name] for name in ("turned", "no number", "nothing")):
        found = ends(size, lambda rank: rank in ranks, how, **settings)
        assert close(found[0], wanted) and all(torch.equal(one, found[0]) for one in found)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["draco", "detox"])
def test_finish_leaves_equal_replicas_at_every_size(name: str, size: int) -> None:
    found = ends(size, strategy=name, with_one_worker="algorithm")
    assert all(torch.equal(one, found[0]) for one in found)


@pytest.mark.parametrize(("size", "s", "ranks"), [(3, 1, {0}), (7, 2, {3, 6})])
@pytest.mark.parametrize("factor", [1e5, 1e12, -(2.0**100), 1e38, float("inf")])
def test_with_a_cyclic_code_an_error_out_of_all_proportion_does_no_harm(
    size: int, s: int, ranks: set[int], factor: float
) -> None:
    """One worker has an error out of all proportion, a second one an ordinary error."""
    wanted = ends(size, strategy="all-reduce")[0]

    def how(g: Tensor) -> Tensor:
        return factor * g if quorate.join().rank == min(ranks) else -10 * g

    settings: dict[str, Any] = {"strategy": "draco", "code": "cyclic", "s": s, "on_nonfinite": "ignore"}
    found = ends(size, lambda rank: rank in ranks, how, **settings)
    assert close(found[0], wanted) and all(torch.equal(one, found[0]) for one in found)


def test_more_wrong_ones_that_agree_win_the_vote() -> None:
    free, found = ends(3, strategy="draco", s=1), ends(3, lambda rank: rank > 0, strategy="draco", s=1)
    assert not close(free[0], found[0])


def test_where_nobody_has_a_majority_it_is_an_error() -> None:
    numbers = iter(range(100))
    with pytest.raises(
        Mismatch, match="ranks 0, 1 and 2 compute the same batch, and no gradient was sent by more than"
    ):
        ends(3, lambda rank: rank > 0, lambda g: g + next(numbers), strategy="draco", s=1)


def test_more_wrong_ones_than_a_cyclic_code_bears_are_found_out() -> None:
    with pytest.raises(Mismatch, match="the gradients of 6 workers do not decode: more than 1 of them are wrong"):
        ends(6, lambda rank: rank in (1, 4), lambda g: torch.full_like(g, 3.0), strategy="draco", code="cyclic", s=1)


def test_detox_leaves_out_groups_without_a_majority_and_bears_wrong_ones_that_agree() -> None:
    """Of three groups one elects what two attackers send, or nothing at all; the median takes either."""
    free = ends(9, strategy="detox", s=1, f=1)
    for how in (lambda g: -50 * g, lambda g: g + 100 * torch.randn(g.shape)):
        found = ends(9, lambda rank: rank in (3, 5), how, strategy="detox", s=1, f=1)
        assert all(torch.equal(one, found[0]) for one in found)
        assert (found[0] - free[0]).abs().max() < 3.0
    broken = ends(9, lambda rank: rank in (3, 5), lambda g: -50 * g, strategy="draco", s=1)[0]
    assert (broken - free[0]).abs().max() > 100


def batches(world: World, **settings: Any) -> tuple[list[list[int]], list[list[int]], int]:
    """What a worker computes in an epoch, what it evaluates on, and the examples that it counts."""
    trainer, data = Scene(**settings).trainer(world), TensorDataset(torch.arange(24))
    found = [x.tolist() for (x,) in quorate.loader(data, 4, seed=3)]
    counted = current.here().context(DataContext).with_batches_of_their_own(world.size, world.size)
    seen = [x.tolist() for (x,) in quorate.loader(data, 4, shuffle=False)]
    assert len(quorate.loader(data, 4, seed=3)) == len(found)
    trainer.finish()
    return found, seen, round(counted * 1000)


def test_workers_of_a_group_compute_the_same_and_evaluate_on_their_own() -> None:
    found = virtual(6, lambda w: batches(w, strategy="draco", s=1))
    assert found[0][0] == found[2][0] != found[3][0] == found[5][0]
    assert sorted(x for batch in found[0][0] + found[3][0] for x in batch) == list(range(24))
    assert sorted(x for _, seen, _ in found for batch in seen for x in batch) == list(range(24))
    assert found[0][2] == 2000


def test_with_a_cyclic_code_workers_compute_the_batches_of_those_behind_them() -> None:
    found = virtual(3, lambda w: batches(w, strategy="draco", s=1, code="cyclic"))
    own = [one[0][0::3] for one in found]
    for rank in range(3):
        assert found[rank][0][1::3] == own[(rank + 1) % 3] and found[rank][0][2::3] == own[(rank + 2) % 3]
    assert sorted(x for one in own for batch in one for x in batch) == list(range(24)) and found[0][2] == 1000


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"s": 2}, "draco with s=2 computes each batch 5 times, and there are 3 workers; s is from 0 to 1"),
        ({"s": -1}, "s is -1; it must be a number of workers"),
        ({"code": "complex"}, "the setting code of draco is 'complex'; it should be 'repetition' or 'cyclic'"),
        ({"compress": "half"}, 'compress="half" cannot be combined with draco'),
        ({"reduce": "ring"}, 'reduce="ring" cannot be combined with draco'),
        ({"reduce": "median", "code": "cyclic"}, 'reduce="median" cannot be combined with a cyclic code'),
        ({"weight": "examples"}, 'weight="examples" weighs means'),
    ],
)
def test_what_does_not_go_together(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ends(3, strategy="draco", **settings)


def test_data_is_dealt_out_after_distribute_and_by_no_other_way() -> None:
    with pytest.raises(ConfigurationError, match=r"quorate\.loader was called before quorate\.distribute"):
        virtual(3, lambda world: (quorate.loader(sums(24), 4), Scene("draco").play(world)))
    with pytest.raises(ConfigurationError, match='share="dynamic" cannot be combined with a strategy'):
        Scene("draco", data=sums(24), shard={"share": "dynamic"}).run()


@pytest.mark.parametrize("saves", [3, 7])
@pytest.mark.parametrize(
    "settings", [{"strategy": "draco"}, {"strategy": "draco", "code": "cyclic"}, {"strategy": "detox"}]
)
def test_it_goes_on_where_it_was_kept(settings: dict[str, Any], saves: int, tmp_path: Path) -> None:
    wanted, found = scene(3, steps=18, epochs=100, **settings).resumed(tmp_path, saves, 12)
    assert all(torch.equal(one, wanted[0]) for one in found)
