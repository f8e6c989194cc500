"""Which model counts for a worker in a turn of means in groups."""

from __future__ import annotations

import torch

from quorate.core.neighbours import Request
from quorate.core.vectors import Flat, Layout, Part
from quorate.strategies.parts.turns import Turns, mean_of


def model(number: float) -> Flat:
    return Flat([torch.tensor([number])], Layout((), (Part(1, torch.float32, torch.device("cpu")),), 0))


def test_on_time_a_model_is_the_one_it_came_with_and_too_late_the_newest_before() -> None:
    begin, first, second = model(0.0), model(1.0), model(2.0)
    turns = Turns(newest=begin)
    assert turns.come(1, first, others=2) is None
    assert turns.asks(1) is first
    assert turns.asks(2) is first  # it has not come to that turn
    assert turns.come(2, second, others=2) is first
    assert turns.asks(2) is first  # the same for everyone
    assert turns.newest is second


def test_what_everybody_has_asked_for_is_let_go_of() -> None:
    turns = Turns(newest=model(0.0))
    turns.asks(1)
    turns.come(1, model(1.0), others=2)
    turns.asks(1)
    turns.come(2, model(2.0), others=1)
    assert list(turns.given) == [2]
    turns.asks(2)
    assert not turns.given


def test_after_a_mean_of_all_turns_begin_anew() -> None:
    turns = Turns(newest=model(0.0))
    turns.come(1, model(1.0), others=2)
    asked = Request(1, "model", 1, None, {}, lambda x: None)
    turns.early.append(asked)
    mean = model(5.0)
    assert turns.all_agreed(mean) == [asked]
    assert turns.means == 1 and not turns.early
    assert turns.asks(1) is mean


def test_who_has_ended_has_no_model_but_for_the_turns_it_came_to() -> None:
    last = model(3.0)
    turns = Turns(newest=model(0.0))
    turns.come(1, last, others=2)
    assert turns.asks(1, has_ended=True) is last
    assert turns.asks(2, has_ended=True) is None


def test_a_mean_is_that_of_all() -> None:
    assert mean_of([model(1.0), model(2.0), model(6.0)]).parts[0].item() == 3.0
