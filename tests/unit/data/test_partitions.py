"""Partitions of a dataset among clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from quorate.core.errors import ConfigurationError
from quorate.data.clients import labels_of, partitions, split

LABELS = np.repeat(np.arange(10), 60)


def shares(own: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return np.bincount(LABELS[own], minlength=10) / len(own)


@given(
    name=st.sampled_from(["iid", "iid:spread=1.5", "dirichlet:alpha=0.05", "dirichlet:alpha=9,spread=1", "label"]),
    clients=st.integers(1, 40),
    examples=st.integers(80, 200),
    seed=st.integers(-5, 5),
)
def test_each_example_is_on_one_client_and_none_is_empty(name: str, clients: int, examples: int, seed: int) -> None:
    labels = np.arange(examples) * 7 % 10
    parts = split(name, labels, examples, clients, seed=seed)
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(examples))
    again = split(name, labels, examples, clients, seed=seed)
    assert all(np.array_equal(part, again_part) for part, again_part in zip(parts, again, strict=True))


def test_a_small_alpha_makes_clients_differ_and_a_large_one_does_not() -> None:
    few = [np.sort(shares(own))[-2:].sum() for own in split("dirichlet:alpha=0.05", LABELS, 600, 20, seed=1)]
    many = [shares(own).max() for own in split("dirichlet:alpha=100", LABELS, 600, 20, seed=1)]
    assert np.median(few) > 0.95, "two labels are nearly all of a client"
    assert max(many) < 0.4


def test_by_label_a_client_has_few_labels() -> None:
    parts = split("label:each=2", LABELS, 600, 30, seed=0)
    assert {len(own) for own in parts} == {20}
    assert max(len(np.unique(LABELS[own])) for own in parts) == 2


def test_a_group_stays_together_and_clients_are_about_equal() -> None:
    labels = np.array(["json"] * 5 + ["ast"] * 4 + ["re"] * 3 + ["os"] * 2)
    parts = split("group", labels, 14, 2, seed=0)
    assert [sorted(set(labels[own])) for own in parts] == [["json", "os"], ["ast", "re"]]


def test_sizes_spread() -> None:
    assert {len(own) for own in split("iid", None, 600, 20, seed=0)} == {30}
    sizes = [len(own) for own in split("iid:spread=1.0", None, 600, 20, seed=0)]
    assert max(sizes) > 4 * min(sizes)


@pytest.mark.parametrize(
    ("text", "clients", "message"),
    [
        ("sorted", 3, 'unknown partition "sorted"'),
        ("dirichlet:beta=1", 3, "beta"),
        ("dirichlet:alpha=0", 3, "alpha is 0.0; it must be above 0|alpha is 0; it must be above 0"),
        ("iid", 0, "clients is 0; it must be a number from 1 to that of the examples, 600"),
        ("iid", 601, "clients is 601"),
        ("label:each=50", 30, "each is 50; it must be a number from 1 to 20"),
        ("group", 11, "clients is 11, and there are 10 groups"),
    ],
)
def test_what_cannot_be_is_said(text: str, clients: int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        split(text, LABELS, 600, clients, seed=0)


def test_labels_are_needed_where_a_partition_goes_by_them() -> None:
    with pytest.raises(ConfigurationError, match="needs labels, but the dataset has none"):
        split("label", None, 600, 3, seed=0)
    with pytest.raises(ConfigurationError, match="labels are 5, and there are 600 examples"):
        split("label", [0] * 5, 600, 3, seed=0)


def test_labels_are_found() -> None:
    x, y = torch.randn(4, 2), torch.tensor([3, 1, 1, 0])
    assert labels_of(TensorDataset(x, y), None).tolist() == [3, 1, 1, 0]  # type: ignore[union-attr]
    assert labels_of(TensorDataset(x), None) is None
    assert labels_of([("a", 2), ("b", 5)], None).tolist() == [2, 5]  # type: ignore[union-attr]
    assert labels_of(["a", "b"], None) is None
    assert labels_of(TensorDataset(x, y), ["p", "q", "p", "q"]).tolist() == ["p", "q", "p", "q"]  # type: ignore[union-attr]
    with pytest.raises(ConfigurationError, match="labels are 3, and there are 4 examples"):
        labels_of(TensorDataset(x, y), [1, 2, 3])


def test_each_partition_says_what_it_is() -> None:
    assert set(partitions) == {"dirichlet", "group", "iid", "label"}
    assert all(partitions.summary(name) for name in partitions)
