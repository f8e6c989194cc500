"""The lottery: rounds of training, pruning and rewinding; files of tickets; redraws."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.shrink.tickets import Training, read
from tests.support.scene import virtual


def play(
    strategy: str, folder: Path, arguments: dict[str, Any], world: quorate.World
) -> tuple[list[Any], list[torch.Tensor], Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    plain = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer: Any = quorate.distribute(plain, model, strategy)
    begins, firsts = list[Any](), list[torch.Tensor]()

    def train(training: Training) -> torch.Tensor:
        begins.append((training.begin, len(optimizer.state)))
        with world.evaluate():
            firsts.append(model[0].weight.detach().clone())
        while training.steps < 12:
            draw = torch.Generator().manual_seed(100 * training.steps + world.rank)
            inputs = torch.randn(8, 6, generator=draw)
            optimizer.zero_grad()
            (model(inputs) - inputs[:, :4]).square().mean().backward()
            optimizer.step()
            training.step()
            if training.steps == 4 and not training.begin:
                with world.evaluate():
                    firsts.append(model[0].weight.detach().clone())
        with world.evaluate(), torch.no_grad():
            inputs = torch.ones(4, 6)
            return -(model(inputs) - inputs[:, :4]).square().mean()

    tickets = quorate.shrink.lottery(train, optimizer, rounds=2, share=0.5, folder=folder, **arguments)
    optimizer.finish()
    return begins, [*firsts, model[0].weight.detach().clone()], tickets


@pytest.mark.parametrize("strategy", ["all-reduce", "quorum", "diloco", "d-psgd"])
def test_tickets_are_rewound(strategy: str, tmp_path: Path) -> None:
    arguments = {"rewind": "step 4", "redraw": "none"}
    ends = virtual(2, partial(play, strategy, tmp_path, arguments))
    for begins, (first, early, second, third, last), tickets in ends:
        assert begins == [(0, 0), (4, 0), (4, 0)], "the optimizer begins again"
        numbers, masks = read(tickets.all[1].path)
        assert torch.equal(second, early * masks["0.weight"])
        assert torch.equal(second, numbers["0.weight"])
        _, masks = read(tickets.all[2].path)
        assert torch.equal(third, early * masks["0.weight"])
        assert torch.equal(last, third)
        assert not torch.equal(first, early)
        assert [ticket.density for ticket in tickets.all] == [1.0, 0.5, 0.25]
        assert all(ticket.redraw is None for ticket in tickets.all)
    assert all(torch.equal(ends[0][1][-1], other[1][-1]) for other in ends)


def test_redraws_are_other_numbers_under_the_same_masks(tmp_path: Path) -> None:
    ends = virtual(2, partial(play, "all-reduce", tmp_path, {"rewind": "start", "redraw": "last"}))
    for begins, firsts, tickets in ends:
        assert len(begins) == 4
        first, _, _, _, drawn, _, third, _, last = firsts
        _, masks = read(tickets.all[2].path)
        assert torch.equal(third, first * masks["0.weight"])
        assert torch.equal(drawn, drawn * masks["0.weight"])
        assert not torch.equal(drawn, third)
        assert torch.equal(last, third)
        assert tickets.all[1].redraw is None
        assert tickets.all[2].redraw is not None
        lines = tickets.table().splitlines()
        assert lines[0].split() == ["round", "kept", "quality", "redraw"]
        assert [line.split()[:2] for line in lines[1:]] == [["0", "100.0%"], ["1", "50.0%"], ["2", "25.0%"]]
    assert all(torch.equal(x, y) for x, y in zip(ends[0][1], ends[1][1], strict=True))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"rounds": 1, "share": 1.0}, "share is 1.0"),
        ({"rounds": 1, "rewind": "epoch 3"}, 'rewind="epoch 3" is unknown'),
        ({"rounds": 1, "redraw": "all"}, "redraw='all' is unknown"),
        ({"rounds": 1, "rewind": "step 500"}, "the first round made only 1 steps"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], words: str) -> None:
    def script(world: quorate.World) -> None:
        model = nn.Linear(2, 2)
        optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)

        def train(training: Training) -> float:
            training.step()
            return 0.0

        with pytest.raises(ConfigurationError, match=words):
            quorate.shrink.lottery(train, optimizer, **arguments)

    virtual(1, script)
