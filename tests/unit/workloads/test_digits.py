"""Handwritten digits: what scikit-learn brings, split once and for all."""

from __future__ import annotations

import sys

import pytest
import torch

from quorate.core.errors import ConfigurationError
from quorate.workloads import digits
from quorate.workloads.digits import Digits


def test_the_file_has_what_scikit_learn_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    read = digits.read_images()
    assert len(read.images) == 1797 and digits._images_file() is not None
    monkeypatch.setattr(digits, "_images_file", lambda: None)
    loaded = digits.read_images()
    assert torch.equal(read.images, loaded.images) and torch.equal(read.labels, loaded.labels)


def test_all_images_are_there_once() -> None:
    train, test = Digits().dataset(train=True).tensors, Digits().dataset(train=False).tensors
    assert [len(labels) for _, labels in (train, test)] == [1442, 355]
    pixels = torch.cat([train[0], test[0]])
    assert pixels.shape == (1797, 1, 8, 8) and pixels.dtype == torch.float32
    assert pixels.min() == 0 and pixels.max() == 1
    assert len(pixels.unique(dim=0)) == len(digits.read_images().images.unique(dim=0))
    assert torch.bincount(test[1]).tolist() == [
        count // 5 for count in torch.bincount(digits.read_images().labels).tolist()
    ]


def test_the_split_is_drawn_from_the_seed() -> None:
    labels = torch.arange(100) % 4
    train, test = digits.split(labels, seed=1)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(100))
    assert torch.bincount(labels[test]).tolist() == [5, 5, 5, 5]
    assert torch.equal(test, digits.split(labels, seed=1)[1])
    assert not torch.equal(test, digits.split(labels, seed=2)[1])


def test_an_epoch_or_two_learn_something() -> None:
    workload = Digits()
    data = workload.dataset(train=True)
    model = workload.model()
    optimizer = workload.optimizer(model)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    for indices in (order[first : first + 32] for first in range(0, 1280, 32)):
        workload.loss(model, workload.collate([data[index] for index in indices])).backward()
        optimizer.step()
        optimizer.zero_grad()
    test = workload.dataset(train=False)
    found = workload.quality(model, workload.collate([test[index] for index in range(len(test))]))
    assert found["top1"] / found["examples"] > 0.5


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigurationError) as raised:
        Digits()
    assert str(raised.value).startswith("digits needs scikit-learn; install it with: pip install ")


def test_a_seed_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="digits: seed must be from 0"):
        Digits(seed=-1)
