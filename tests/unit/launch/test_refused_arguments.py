"""Wrong arguments of the API: one sentence at the call, the same alone and among others."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.strategies import strategies
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld

Call = Callable[[Any, Any, Any], Any]
"""Given quorate's world, a model and its optimizer."""
DATA = TensorDataset(torch.zeros(10, 1))
distribute: Any = quorate.distribute
loader: Any = quorate.loader


class Odd:
    """A dataset with another length."""

    def __init__(self, length: Any) -> None:
        self.length = length

    def __len__(self) -> Any:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class WithoutIndex:
    def __len__(self) -> int:
        return 4


def deep() -> list[Any]:
    whole: list[Any] = []
    for _ in range(5000):
        whole = [whole]
    return whole


def twice(model: Any, optimizer: Any, *names: str | None) -> None:
    for name in names:
        distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, name=name, with_one_worker="algorithm")


REFUSED: dict[str, tuple[Call, str]] = {
    # distribute
    "no model": (
        lambda w, m, o: distribute(o),
        r"distribute\(\): missing a required argument: 'model'; it is",
    ),
    "None": (lambda w, m, o: distribute(o, None), "the torch.nn.Module whose parameters the optimizer has, not None"),
    "a class": (lambda w, m, o: distribute(o, nn.Linear), "optimizer has, not the class Linear"),
    "parameters": (lambda w, m, o: distribute(o, list(m.parameters())), "optimizer has, not a list"),
    "another model": (lambda w, m, o: distribute(o, nn.Linear(3, 1)), r"no parameters of the model \(Linear\)"),
    "strategy None": (
        lambda w, m, o: distribute(o, m, None),
        "strategy must be a name or a Strategy object, not None;",
    ),
    "strategy 5": (lambda w, m, o: distribute(o, m, 5), "not a int; known names: ad-psgd, .*all-reduce"),
    "strategy list": (lambda w, m, o: distribute(o, m, []), "strategy must be a name or a Strategy object, not a list"),
    "strategy class": (lambda w, m, o: distribute(o, m, strategies.get("quorum")), "not the class Quorum"),
    "name": (lambda w, m, o: distribute(o, m, name=5), "the name of an optimizer must be text, not 5"),
    "same name": (lambda w, m, o: twice(m, o, "a", "a"), 'another distributed optimizer already has the name "a"'),
    "same number": (lambda w, m, o: twice(m, o, "2", None), 'another distributed optimizer already has the name "2"'),
    "compare": (
        lambda w, m, o: distribute(o, m, compare_every="x"),
        "compare_every is 'x'; it must be a number of rounds",
    ),
    # loader
    "loader": (
        lambda w, m, o: loader(DataLoader(DATA), 4),
        "creates the loader itself; give the DataLoader's .dataset",
    ),
    "own loader": (
        lambda w, m, o: loader(loader(DATA, 4), 4),
        "creates the loader itself; give the DataLoader's .dataset",
    ),
    "no batch": (
        lambda w, m, o: loader(DATA),
        "quorate.loader needs batch_size, the number of examples per batch and per worker",
    ),
    "dataset class": (
        lambda w, m, o: loader(TensorDataset, 4),
        "not the class TensorDataset; create an instance of it",
    ),
    "path": (lambda w, m, o: loader("data.csv", 4), "loader takes a dataset, not a str; open the file"),
    "no index": (
        lambda w, m, o: loader(WithoutIndex(), 4),
        "a dataset with a length and an index, or a stream, and not a WithoutIndex",
    ),
    "length -1": (lambda w, m, o: loader(Odd(-1), 4), r"the dataset \(Odd\) cannot tell its length: .* >= 0"),
    "length text": (lambda w, m, o: loader(Odd("x"), 4), r"the dataset \(Odd\) cannot tell its length"),
    "seed": (
        lambda w, m, o: loader(DATA, 4, seed="x"),
        "seed must be a whole number of 64 bits, or None for .*, not 'x'",
    ),
    "seed too long": (lambda w, m, o: loader(DATA, 4, seed=2**70), "seed must be a whole number of 64 bits"),
    "share": (lambda w, m, o: loader(DATA, 4, share=5), 'unknown share "5"'),
    "shuffle": (lambda w, m, o: loader(DATA, 4, shuffle="yes"), "shuffle must be True or False, not 'yes'"),
    "workers": (
        lambda w, m, o: loader(DATA, 4, num_workers="2"),
        "num_workers must be a whole number",
    ),
    "prefetch": (lambda w, m, o: loader(DATA, 4, prefetch_factor=2), "torch's DataLoader refuses these arguments"),
    "collate": (lambda w, m, o: loader(DATA, 4, collate_fn=5), "collate_fn must be a function, not a int"),
    "generator": (lambda w, m, o: loader(DATA, 4, generator=5), "generator must be a torch.Generator, not a int"),
    "epoch": (lambda w, m, o: loader(DATA, 4).set_epoch("x"), "an epoch must be a whole number"),
    "positions": (lambda w, m, o: loader(DATA, 4).load_state_dicts(None), "takes a list with the state_dict"),
    # the world
    "mean of text": (lambda w, m, o: w.mean("x"), "world.mean takes a tensor or a real number, not a str"),
    "mean of a list": (lambda w, m, o: w.mean([1.0, 2.0]), "world.mean takes a tensor or a real number, not a list"),
    "mean on meta": (
        lambda w, m, o: w.mean(torch.zeros(2, device="meta")),
        "not one on the meta device",
    ),
    "sparse mean": (lambda w, m, o: w.mean(torch.eye(2).to_sparse()), "not one of the layout torch.sparse_coo"),
    "weight": (lambda w, m, o: w.mean(1.0, weight="x"), "the weight of world.mean must be a finite number, not 'x'"),
    "weight nan": (
        lambda w, m, o: w.mean(1.0, weight=float("nan")),
        "the weight of world.mean must be a finite number",
    ),
    "gather": (lambda w, m, o: w.gather(deep()), "world.gather cannot send"),
    "gather sparse": (lambda w, m, o: w.gather(torch.eye(2).to_sparse()), "world.gather takes dense tensors"),
    "evaluate": (
        lambda w, m, o: w.evaluate(this_worker_only="x").__enter__(),
        "this_worker_only must be True or False, not 'x'",
    ),
    # checkpoints
    "extra": (lambda w, m, o: (distribute(o, m), quorate.load(x=nn.Linear)), "x is the class Linear, and what is kept"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_it_is_refused_in_one_sentence_alone_and_among_others(how: str) -> None:
    call, words = REFUSED[how]

    def live(wire: Wire) -> str:
        current.enter(wire, thread_only=True)
        world, model = quorate.join(), nn.Linear(3, 1)
        with pytest.raises(ConfigurationError) as raised:
            call(world, model, torch.optim.SGD(model.parameters(), lr=0.1))
        return str(raised.value)

    for size in (1, 2):
        for said in VirtualWorld(size, timeout=5.0).run(live):
            assert re.search(words, said), said
            assert "\n" not in said
