"""Which model counts for a worker in a turn of means in groups."""

from __future__ import annotations

import torch

from quorate.core.neighbours import Request
from quorate.core.vectors import Flat, Layout, Part
from quorate.strategies.parts.group_models import GroupModels, mean_of


def model(number: float) -> Flat:
    return Flat([torch.tensor([number])], Layout((), (Part(1, torch.float32, torch.device("cpu")),), 0))


def test_on_time_a_model_is_the_one_it_came_with_and_too_late_the_newest_before() -> None:
    begin, first, second = model(0.0), model(1.0), model(2.0)
    models = GroupModels(newest=begin)
    assert models.arrive(1, first, expected=2) is None
    assert models.model_for(1) is first
    assert models.model_for(2) is first  # it has not come to that turn
    assert models.arrive(2, second, expected=2) is first
    assert models.model_for(2) is first  # the same for everyone
    assert models.newest is second


def test_what_everybody_has_asked_for_is_let_go_of() -> None:
    models = GroupModels(newest=model(0.0))
    models.model_for(1)
    models.arrive(1, model(1.0), expected=2)
    models.model_for(1)
    models.arrive(2, model(2.0), expected=1)
    assert list(models.models) == [2]
    models.model_for(2)
    assert not models.models


def test_after_a_mean_of_all_turns_begin_anew() -> None:
    models = GroupModels(newest=model(0.0))
    models.arrive(1, model(1.0), expected=2)
    asked = Request(None, {}, lambda x: None)
    models.held_requests.append(asked)
    mean = model(5.0)
    assert models.begin_anew(mean) == [asked]
    assert models.means == 1 and not models.held_requests
    assert models.model_for(1) is mean


def test_who_has_ended_has_no_model_but_for_the_turns_it_came_to() -> None:
    last = model(3.0)
    models = GroupModels(newest=model(0.0))
    models.arrive(1, last, expected=2)
    assert models.model_for(1, has_ended=True) is last
    assert models.model_for(2, has_ended=True) is None


def test_a_mean_is_that_of_all() -> None:
    assert mean_of([model(1.0), model(2.0), model(6.0)]).parts[0].item() == 3.0
