"""Batches that `loader` brings to a device: tensors wherever they are in a batch, in the same order, counted alike."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from torch.utils.data import TensorDataset

import quorate
from quorate.core.errors import ConfigurationError
from quorate.data.on_device import moved
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

META = torch.device("meta")


def test_tensors_move_wherever_they_are() -> None:
    Pair = namedtuple("Pair", "x names")
    batch = {"a": (torch.ones(2), [torch.zeros(1), "text", 3]), "b": Pair(torch.ones(3), ["n"])}
    on_meta = moved(batch, META)
    assert [on_meta["a"][0].device, on_meta["a"][1][0].device, on_meta["b"].x.device] == [META] * 3
    assert on_meta["a"][1][1:] == ["text", 3] and type(on_meta["b"]) is Pair and on_meta["b"].names == ["n"]


def test_a_loader_gives_its_batches_there() -> None:
    @joined
    def live(world: quorate.World) -> list[torch.device]:
        loader = quorate.loader(TensorDataset(torch.arange(8.0)), 2, device="meta")
        return [x.device for (x,) in loader]

    assert VirtualWorld(2).run(live) == [[META] * 2] * 2


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("gpu", "which torch does not know"),
        (3.5, "which torch does not know"),
        pytest.param(
            "cuda:0",
            "torch finds no usable GPU here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here"),
        ),
    ],
)
def test_a_device_that_is_not_there_is_one_sentence(device: object, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        quorate.loader(TensorDataset(torch.arange(8.0)), 2, device=device)  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no usable GPU here")
def test_a_gpu_has_the_next_batch_early() -> None:
    from quorate.data.on_device import on_device

    asked: list[int] = []

    def batches():  # type: ignore[no-untyped-def]
        for number in range(3):
            asked.append(number)
            yield torch.full((1 << 20,), float(number)).pin_memory()

    means = []
    for x in on_device(batches(), torch.device("cuda")):
        assert asked[-1] == min(2, len(means) + 1)
        means.append(float(x.mean()))
    assert means == [0.0, 1.0, 2.0]
