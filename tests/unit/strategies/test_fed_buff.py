"""FedBuff: rounds at K updates, one sum over one count, weights by age; deaths, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.quorums import rounds
from quorate.rounds.log import Round
from quorate.rounds.terms import Agreed
from quorate.strategies.parts.learners import Learner, deltas_of
from tests.support.local_trainings import net
from tests.support.scene import flat
from tests.unit.strategies.test_decoupled_diloco import are_equal, common, ledger, trained, uneven


def test_a_fresh_update_has_weight_one_and_late_ones_fall_with_the_root() -> None:
    agreed = Agreed(size=2, late_weight="root")
    assert [agreed.weight_of(age) for age in (0, 3, 8)] == [1.0, 0.5, pytest.approx(1 / 3)]


@pytest.mark.parametrize(("size", "wait_for", "k"), [(4, 2, 2), (4, 0.5, 2), (3, "majority", 2), (3, 1, 1)])
def test_each_round_moves_the_model_by_one_sum_over_k(
    size: int, wait_for: Any, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """x = x - rate / K sum s(T) Delta, over all updates of a round: not a sum of means, and not over the weights."""
    taken: dict[int, Round] = {}
    updates: dict[tuple[int, int], list[Tensor]] = {}
    mean_of_fragments, was_handed_in, rate = rounds.mean_of_fragments, Learner.was_handed_in, 0.7

    def noting(of_round: Round, *others: Any) -> Mean | None:
        taken[of_round.number] = of_round
        return mean_of_fragments(of_round, *others)

    def noting_updates(self: Learner, worker: Any, contribution: dict[str, Any]) -> None:
        (delta,) = contribution["vectors"]
        if float(delta.segments()[-1][0]):
            updates[worker.rank, self.times + 1] = deltas_of(delta, size)
        was_handed_in(self, worker, contribution)

    monkeypatch.setattr(rounds, "mean_of_fragments", noting)
    monkeypatch.setattr(Learner, "was_handed_in", noting_updates)
    settings: dict[str, Any] = {"sync_every": 4, "wait_for": wait_for, "outer_rate": rate}
    ends = trained(size, "fed-buff", steps=40, pause=uneven, look=common, **settings)
    assert are_equal(ends)
    x, ages, full_rounds = flat(net()), set[int](), 0
    for _, of_round in sorted(taken.items()):
        count = 0
        for rank, payloads in of_round.measures.items():
            if payloads[0]["weights"][0]:
                ((age, _),) = of_round.contributors[rank]
                update = torch.cat([delta.reshape(-1) for delta in updates[rank, payloads[0]["time"]]])
                x = x - rate / k / math.sqrt(1 + age) * update
                ages.add(age)
                count += 1
        if of_round.live == size and not of_round.is_pause:
            full_rounds += 1
            assert count >= k
    assert full_rounds > 4 and 0 in ages and len(ages) > 1
    parameters = len(list(net().parameters()))
    torch.testing.assert_close(flat(ends[0][1][:parameters]), x, atol=1e-5, rtol=1e-4)


def test_every_step_is_in_one_round() -> None:
    ledgers = [of for _, of in trained(3, "fed-buff", sync_every=4, pause=uneven, look=ledger)]
    assert all((of.produced, of.taken, of.lost) == (24, 24, 0.0) for of in ledgers)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"secure": True}, "secure of fed-buff is True; it should be False"),
        ({"noise": 1.0}, "noise of fed-buff is 1.0; it should be 0"),
        ({"wait_for": 3}, "wait_for is 3, and there are 2 workers; it must be from 1 to 2"),
        ({"outer": "adam"}, "divide_by=.wait_for. divides the steps of SGD"),
    ],
)
def test_what_rounds_of_some_cannot_do_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        trained(2, "fed-buff", steps=1, **settings)
