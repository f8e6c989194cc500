"""Which layout with which strategy is the first choice, and what may still be better."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.planning.choice import Choice, may_need, noise_of, ranked
from quorate.planning.layouts import Layout
from quorate.planning.money import Cost
from quorate.planning.prediction import Prediction


def choice(strategy: str, seconds: float, learning: Any = "measured", **others: Any) -> Choice:
    layout = Layout(replicas=2, strategy=strategy, **{key: others.pop(key) for key in ("tensor",) if key in others})
    prediction = Prediction(layout=layout, seconds=seconds, memory=0.0, sent=0.0, bubble=0.0, parts={})
    return Choice(prediction=prediction, batch=10, learning=learning, **others)


def names(choices: list[Choice]) -> list[str]:
    return [each.prediction.layout.strategy for each in choices]


def test_time_is_a_step_times_passes_over_useful_steps() -> None:
    """2 s for 10 examples, 1.5 times the passes, half as many again for the batch, and four of five steps count."""
    each = choice("quorum", 2.0, passes=1.5, noise=noise_of(10, 20.0), goodput=0.8)
    assert each.noise == 1.5
    assert each.to_target(1000) == pytest.approx(1000 / 10 * 2 * 1.5 * 1.5 / 0.8)
    assert noise_of(10, None) == 1.0


def test_what_was_not_measured_comes_last_with_the_passes_that_it_may_need() -> None:
    exact, slower = choice("all-reduce", 3.0, "exact"), choice("quorum", 2.0, passes=2.0)
    unknown = choice("local-sgd", 1.0, "not measured")
    order = ranked([unknown, slower, exact])
    assert names(order) == ["all-reduce", "quorum", "local-sgd"]
    assert may_need(unknown, order[0]) == pytest.approx(3.0)
    assert may_need(slower, order[0]) is None
    assert names(ranked([unknown])) == ["local-sgd"]


def test_of_those_that_are_as_good_the_one_with_the_fewest_pieces_comes_first() -> None:
    pieces, replicas = choice("all-reduce", 1.0, "exact", tensor=2), choice("quorum", 1.04, "exact")
    assert names(ranked([pieces, replicas])) == ["all-reduce", "quorum"]
    assert names(ranked([pieces, replicas], as_good=0.05)) == ["quorum", "all-reduce"]
    assert names(ranked([pieces, choice("local-sgd", 1.0, "not measured")], as_good=1.0))[0] == "all-reduce"


def test_the_objective_decides() -> None:
    def cost(rented: float | None, bought: float | None, kwh: float | None) -> Cost:
        return Cost(seconds=1.0, rented=rented, bought=bought, kwh=kwh, carbon=None, petaflop=None)

    fast = choice("a", 1.0, cost=cost(10.0, 20.0, 5.0))
    cheap = choice("b", 2.0, cost=cost(9.0, 3.0, 6.0))
    unpriced = choice("c", 0.5)
    assert names(ranked([cheap, fast])) == ["a", "b"]
    assert names(ranked([unpriced, fast, cheap], "cost")) == ["b", "a", "c"]
    assert names(ranked([unpriced, cheap, fast], "energy")) == ["a", "b", "c"]
    assert fast.value("cost") == 10.0 and cheap.value("cost") == 3.0
