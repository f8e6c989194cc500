"""Features that stages do not support, and the stated reasons."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import nn

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.sharding.stages.by_stages import stages_for
from quorate.sharding.stages.choice import StageChoice, check_stages
from quorate.sharding.stages.orders import SCHEDULES
from quorate.wire.virtual.world import VirtualWorld
from tests.support.staged import Tied, made

SPLIT = [name for name, schedule in SCHEDULES.items() if schedule.is_split]


def stages_of(wire: Wire, zero: Literal[1, 2, 3], shards: int = 2, **chosen: Any) -> Any:
    model = made(lambda: Tied(6, is_tied=chosen.pop("tied", False)))
    return stages_for(model, wire.size, wire, StageChoice(**{"microbatches": 8, **chosen}), shards=shards, zero=zero)


def said(task: Callable[[Wire], Any]) -> str:
    def refused(wire: Wire) -> str:
        with pytest.raises(ConfigurationError) as error:
            task(wire)
        return str(error.value)

    (words,) = set(VirtualWorld(2).run(refused))
    return words


@pytest.mark.parametrize("schedule", SPLIT)
def test_two_halves_of_a_backward_pass_need_parameters_that_stay(schedule: str) -> None:
    words = said(lambda wire: stages_of(wire, 3, schedule=schedule))
    assert words.startswith(f"{schedule} makes backward passes in two halves, between which parameters have to stay")
    assert words.endswith("take zero=2, or a schedule of gpipe, 1f1b, interleaved-1f1b, looped-bfs")


@pytest.mark.parametrize("schedule", SPLIT)
def test_such_a_schedule_goes_with_anything_else(schedule: str) -> None:
    for zero, shards in ((2, 2), (1, 2), (3, 1)):
        task = partial(stages_of, zero=zero, shards=shards, schedule=schedule)
        assert [stages.layout.schedule for stages in VirtualWorld(2).run(task)] == [schedule, schedule]


def test_none_of_them_is_chosen_where_parameters_are_given_back() -> None:
    def chosen(wire: Wire, zero: Literal[2, 3]) -> str:
        layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))
        return stages_for(layers, 2, wire, StageChoice(schedule="auto"), shards=2, zero=zero).layout.schedule

    for zero, is_split in ((3, False), (2, True)):
        names = VirtualWorld(2).run(partial(chosen, zero=zero))
        assert names[0] == names[1]
        assert SCHEDULES[names[0]].is_split == is_split


def test_names_say_how_many_stages_a_worker_has() -> None:
    names = [f"blocks.{number}" for number in range(1, 6)]
    for schedule, wanted in (("interleaved-1f1b", 3), ("looped-bfs", 3)):
        every_worker = VirtualWorld(2).run(partial(stages_of, zero=3, schedule=schedule, cuts=names))
        assert [stages.layout.chunks for stages in every_worker] == [wanted, wanted]
    words = said(partial(stages_of, zero=3, schedule="looped-bfs", cuts=names[:4]))
    assert words == "stages lists 4 modules, but 4 stages need 3"


def test_tied_modules_on_one_worker_are_not_cut_into_shards() -> None:
    words = said(lambda wire: stages_of(wire, 2, schedule="zbv", tied=True))
    assert words.startswith("words and head share parameters and lie on one worker under zbv")
    VirtualWorld(2).run(lambda wire: stages_of(wire, 2, schedule="1f1b", tied=True) and None)


@pytest.mark.parametrize(
    ("model", "more", "words"),
    [
        (Tied, {"is_on_meta": True}, "a model on the meta device; make it on the CPU"),
        (Tied, {"offload": "all"}, 'offload="all"; "optimizer" and "disk" go'),
        (Tied, {"tensor": "sequence"}, 'tensor="sequence"; cut layers instead'),
        (lambda: quorate.branches([nn.Linear(2, 2), nn.Linear(2, 2)]), {}, "quorate.branches; cut their modules"),
        (
            lambda: quorate.Experts(lambda: nn.Linear(2, 2), count=4, dim=2),
            {},
            "quorate.Experts, whose routes depend on numbers",
        ),
    ],
)
def test_what_does_not_compose(model: Callable[[], nn.Module], more: dict[str, Any], words: str) -> None:
    asked: dict[str, Any] = {"is_on_meta": False, "offload": None, "tensor": None, **more}
    torch.manual_seed(0)
    with pytest.raises(ConfigurationError) as error:
        check_stages(model(), **asked)
    assert str(error.value).startswith(f"stages cannot be combined with {words}")
