"""Values that `quorate.save` cannot keep are refused by the call itself, in one sentence; others are restored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import ConfigurationError
from quorate.launch.worker.world import World
from quorate.wire import current
from tests.support.kept_trainings import in_world, net
from tests.support.scene import Scene, Trainer, squares


class Extra:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"v": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["v"]


def deep(levels: int) -> list[Any]:
    whole: list[Any] = []
    innermost = whole
    for _ in range(levels):
        innermost.append([])
        innermost = innermost[0]
    return whole


def itself() -> dict[str, Any]:
    whole: dict[str, Any] = {}
    whole["me"] = whole
    return whole


def train(root: Path, strategy: str, value: Any, *, in_model: bool = False) -> list[str]:
    """The sentences of `save` on two workers."""

    def model() -> torch.nn.Module:
        made = net(0)
        if in_model:
            made.register_buffer("b", value)
        return made

    def play(trainer: Trainer) -> str:
        try:
            trainer.train(2)
            quorate.save(thing=Extra(1 if in_model else value))
        except ConfigurationError as error:
            current.here().leaving.clear()
            return str(error)
        trainer.train(3).finish()
        return ""

    return Scene(strategy, 2, model=model, loss=squares, root=root).act(play)


REFUSED = {
    "deep": (lambda: deep(5000), "extras.thing: it is more than 100 deep, or contains itself"),
    "itself": (itself, "extras.thing: it is more than 100 deep, or contains itself"),
    "long": (lambda: 10**5000, "extras.thing.v: it is a number of more than 4096 bits"),
    "long key": (lambda: {1 << 5000: 1}, "a key of extras.thing.v: it is a number of more than 4096 bits"),
    "odd dtype": (
        lambda: torch.zeros(2).to(torch.float8_e5m2fnuz),
        r"thing.v \(torch.float8_e5m2fnuz\): it is not a dense",
    ),
    "sparse": (lambda: torch.eye(2).to_sparse(), r"extras.thing.v \(torch.sparse_coo\): it is not a dense tensor"),
}


@pytest.mark.parametrize("strategy", ["all-reduce", "quorum"])
@pytest.mark.parametrize("kind", REFUSED)
def test_it_is_refused_by_the_call(kind: str, strategy: str, tmp_path: Path) -> None:
    make, words = REFUSED[kind]
    for said in train(tmp_path, strategy, make()):
        with pytest.raises(ConfigurationError, match=f"^quorate.save cannot keep .*{words}"):
            raise ConfigurationError(said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("strategy", ["all-reduce", "quorum"])
def test_so_are_buffers_of_the_model(strategy: str, tmp_path: Path) -> None:
    said = train(tmp_path, strategy, torch.zeros(2, 2).to(torch.float8_e4m3fnuz), in_model=True)
    assert all(sentence.startswith("quorate.save cannot keep model.b (torch.float8_e4m3fnuz)") for sentence in said), (
        said
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.full((3,), 1 + 2j).to(torch.complex32),
        lambda: torch.ones(2).to(torch.float8_e5m2),
        lambda: deep(90),
        lambda: -(1 << 4000),
    ],
    ids=["half complex", "float8", "deep", "long"],
)
def test_what_is_unusual_comes_back_as_it_was(make: Callable[[], Any], tmp_path: Path) -> None:
    value = make()
    assert train(tmp_path, "all-reduce", value) == ["", ""]

    def task(world: World) -> Any:
        model, extra = net(0), Extra(None)
        quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
        assert quorate.load(thing=extra) == 2
        return extra.value

    for loaded in in_world(2, tmp_path, task):
        if isinstance(value, torch.Tensor):
            assert loaded.dtype == value.dtype
            assert torch.equal(loaded.to(torch.complex64), value.to(torch.complex64))
        else:
            assert loaded == value
