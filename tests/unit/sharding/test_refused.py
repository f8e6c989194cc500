"""Calls of `parallelize`, and of `distribute` on what it returned, that are refused, each in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adafactor
from torch.utils.data import TensorDataset

import quorate
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.processes import run_real_world

TOKENS = TensorDataset(torch.arange(8.0))


@dataclass(frozen=True)
class Refused:
    call: Callable[[], object]
    words: str


def refused(call: Callable[[], object]) -> str:
    try:
        call()
    except ConfigurationError as error:
        return str(error)
    return "it was not refused"


def model() -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))


ALONE: dict[str, Refused] = {
    "no model": Refused(
        lambda: quorate.parallelize(SGD(model().parameters())),  # type: ignore[type-var]
        "parallelize takes a torch.nn.Module, not SGD",
    ),
    "zero": Refused(lambda: quorate.parallelize(model(), zero=4), "zero=4 is unknown; known: 1, 2, 3"),  # type: ignore[arg-type]
    "precision": Refused(
        lambda: quorate.parallelize(model(), precision="int8"),  # type: ignore[arg-type]
        "precision='int8' is unknown; known: float32, bfloat16, float16",
    ),
    "no parameters": Refused(lambda: quorate.parallelize(nn.ReLU()), "the model has no parameters to shard"),
    "lazy": Refused(
        lambda: quorate.parallelize(nn.Sequential(nn.LazyLinear(3))),
        "0.weight has no shape yet; run its lazy module once before quorate.parallelize",
    ),
    "virtual": Refused(
        lambda: quorate.parallelize(model()),
        "a mesh needs real processes, since torch's collectives do not connect virtual workers",
    ),
}
"""Calls that are refused in any world."""


@pytest.mark.parametrize("name", ALONE)
def test_refused_calls(name: str) -> None:
    case = ALONE[name]
    (said,) = VirtualWorld(1).run(joined(lambda world: refused(case.call)))
    assert said == case.words


def sharded() -> Any:
    return quorate.parallelize(model())


def distributed(*settings: Any, optimizer: Any = SGD, **named: Any) -> object:
    spread = sharded()
    return quorate.distribute(optimizer(spread.parameters()), spread, *settings, **named)


def made_before() -> object:
    plain = model()
    optimizer = SGD(plain.parameters(), lr=0.1)
    return quorate.distribute(optimizer, quorate.parallelize(plain))


def dealt_out() -> object:
    sharded()
    return quorate.loader(TOKENS, 2, share="dynamic")


def dealt_out_before() -> object:
    quorate.loader(TOKENS, 2, share="dynamic")
    return sharded()


PIECES = "with these settings cannot act between replicas of shards"
FIRST: dict[str, Refused] = {
    "a loader before": Refused(dealt_out_before, 'a loader was made with share="dynamic" before, and a model in'),
}
"""On workers of their own: what they have made stays."""
SPREAD: dict[str, Refused] = {
    "twice": Refused(lambda: quorate.parallelize(sharded()), "the model is sharded already; call quorate.parallelize"),
    "a part of it twice": Refused(
        lambda: quorate.parallelize(nn.Sequential(sharded())), "the model is sharded already"
    ),
    "blocks": Refused(lambda: quorate.parallelize(model(), blocks=["2"]), "blocks has 2, but the model has no such"),
    "made before": Refused(made_before, "the optimizer was made before quorate.parallelize"),
    "adaptive": Refused(lambda: distributed("adaptive"), f"adaptive {PIECES}"),
    "patience": Refused(lambda: distributed("sgp", patience=1.0), f"sgp {PIECES}"),
    "a period in seconds": Refused(lambda: distributed("local-sgd", sync_every="2s"), f"local-sgd {PIECES}"),
    "weight": Refused(
        lambda: distributed(weight="examples"), 'weight="examples" cannot be combined with a model in shards'
    ),
    "on_death": Refused(lambda: distributed(on_death="continue"), 'on_death="continue" cannot be combined with all-'),
    "on_death of an object": Refused(
        lambda: distributed(quorate.strategies.AllReduce(on_death="continue")),
        'on_death="continue" cannot be combined with all-',
    ),
    "lbfgs": Refused(lambda: distributed(optimizer=LBFGS), "LBFGS calculates with all parameters at once"),
    "rows": Refused(
        lambda: distributed(optimizer=Adafactor, shard_by="rows"), "Adafactor computes with full tensors; leave"
    ),
    "shard_by": Refused(lambda: distributed(shard_by="columns"), "shard_by='columns' is unknown; known: rows, tensors"),
    "rounds": Refused(
        lambda: distributed("quorum", optimizer=Adafactor),
        "quorum agrees in rounds, and Adafactor calculates with full tensors",
    ),
    "averaged moments": Refused(
        lambda: distributed("local-sgd", optimizer=Adafactor, momentum="average"),
        'momentum="average" cannot be combined with Adafactor and a model in shards',
    ),
    "unequal shares": Refused(dealt_out, "a model in shards needs the same number of batches on every worker"),
}
"""Calls that are refused on two real workers, which stay together."""


def all_refused(world: Any) -> dict[str, str]:
    sentences = {name: refused(case.call) for name, case in SPREAD.items()}
    sentences["sizes"] = refused(lambda: world.mesh(replicas=3))
    assert world.mesh(shards=2) is world.mesh(replicas=1)
    return sentences


def test_refused_on_real_workers() -> None:
    first, second = run_real_world(2, all_refused, 60.0)
    assert first == second
    assert first.pop("sizes").startswith("2 workers cannot be laid out as replicas=3;")
    for name, said in first.items():
        assert said.startswith(SPREAD[name].words), name


def first_refused(world: Any) -> dict[str, str]:
    return {name: refused(case.call) for name, case in FIRST.items()}


def test_refused_on_new_workers() -> None:
    for sentences in run_real_world(2, first_refused, 60.0):
        for name, said in sentences.items():
            assert said.startswith(FIRST[name].words), name


def usual_share(world: Any) -> str:
    """The default share of a loader after a strategy that does not wait, over a model in shards."""
    spread = quorate.parallelize(model(), world.mesh(replicas=2))
    optimizer: Any = quorate.distribute(SGD(spread.parameters()), spread, "quorum")
    share = quorate.loader(TOKENS, 2, shuffle=True).share
    optimizer.finish()
    return type(share).__name__


def test_the_usual_share_is_equal() -> None:
    assert run_real_world(4, usual_share, 60.0) == ["StaticShare"] * 4


def test_before_join() -> None:
    with pytest.raises(ConfigurationError, match=r"quorate\.join\(\)"):
        quorate.parallelize(model())
