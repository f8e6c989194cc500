"""A strategy object says the same as a name with settings, and is known by the strategy's name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.checkpoint.participants import Trained
from quorate.core.errors import ConfigurationError
from quorate.strategies import EagerSolo, LocalSGD
from quorate.train.chosen import Chosen
from quorate.wire.current import here
from tests.support.scene import Scene, virtual


def distributed(*strategy: Any, **more: Any) -> Any:
    model = nn.Linear(2, 1)
    quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, *strategy, **more)
    kept = here().context(Trained).optimizers["1"]
    return kept.strategy, kept.settings


def test_an_object_is_its_name_with_its_settings() -> None:
    named = virtual(2, lambda world: distributed("eager-solo", max_staleness=4, compress="half"))
    assert virtual(2, lambda world: distributed(EagerSolo(max_staleness=4), compress="half")) == named
    assert named[0][0] == "eager-solo"
    assert named[0][1]["max_staleness"] == 4


def test_the_command_line_overrides_the_settings_of_an_object() -> None:
    def task(world: quorate.World) -> Any:
        here().context(Chosen).settings = {"sync_every": 3}
        return distributed(LocalSGD(sync_every=2))[1]["sync_every"]

    assert virtual(2, task) == [3, 3]


def test_values_of_an_object_are_checked_as_those_beside_a_name_are() -> None:
    wrong: Any = "5s"

    def task(world: quorate.World) -> None:
        with pytest.raises(ConfigurationError, match="grace of eager-solo is '5s'; it should be a number"):
            distributed(EagerSolo(grace=wrong))
        with pytest.raises(ConfigurationError, match=r"settings \['grace'\] stand beside a strategy object"):
            distributed(EagerSolo(), grace=1.0)

    virtual(1, task)


def test_an_unknown_value_of_with_one_worker_lists_the_known_ones() -> None:
    sentence = 'with_one_worker="x" is unknown; known: algorithm, bypass'
    assert sentence in Scene(size=1, with_one_worker="x").refusal()


@pytest.mark.parametrize("strategy", ["all-reduce", "quorum"])
@pytest.mark.parametrize("size", [1, 2])
def test_what_distribute_returns_is_a_distributed_optimizer_of_the_users_class(size: int, strategy: str) -> None:
    def task(world: quorate.World) -> None:
        model = nn.Linear(2, 1)
        optimizer: torch.optim.SGD = torch.optim.SGD(model.parameters(), lr=0.1)
        assert not isinstance(optimizer, quorate.DistributedOptimizer)
        optimizer = quorate.distribute(optimizer, model, strategy)
        assert isinstance(optimizer, quorate.DistributedOptimizer)
        assert isinstance(optimizer, torch.optim.SGD)
        with optimizer.accumulate():
            model(torch.ones(2)).backward()
        model(torch.ones(2)).backward()
        optimizer.step()
        optimizer.finish()

    virtual(size, task)
