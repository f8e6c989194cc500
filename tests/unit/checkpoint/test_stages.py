"""State of a pipeline's workers, put together by names of parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from quorate.checkpoint.participants import Distributed
from quorate.checkpoint.stages import OldStages, merged, names_of
from quorate.core.errors import CheckpointError

ABOUT = {"stages": [["0"], ["1"]], "shards": 2}


def whole(*, groups: int = 1) -> Distributed:
    """Two layers on one worker, the bias of the first one last in the optimizer's order."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False))
    every = [model[1].weight, model[0].weight, model[0].bias]
    param_groups: list[dict[str, Any]] = (
        [{"params": every}] if groups == 1 else [{"params": every[:2]}, {"params": every[2:]}]
    )
    return Distributed("1", torch.optim.SGD(param_groups, lr=0.1, momentum=0.9), model, "all-reduce", {})


def tree(numbers: dict[int, float], names: list[list[str]], groups: list[list[int]] | None = None) -> dict[str, Any]:
    """The tree of one old worker."""
    return {
        "state": {number: {"momentum_buffer": torch.tensor([x])} for number, x in numbers.items()},
        "param_groups": [{"lr": 0.5, "params": some} for some in groups or [list(range(len(names)))]],
        "names": names,
    }


def first() -> dict[str, Any]:
    return tree({0: 1.0, 1: 2.0}, [["0.weight"], ["0.bias"]])


def second() -> dict[str, Any]:
    return tree({0: 3.0}, [["1.weight"]])


def read(trees: list[dict[str, Any]], entry: Distributed) -> dict[str, Any]:
    return OldStages(ABOUT, trees, entry).optimizer(trees)


def test_state_gets_the_numbers_of_this_optimizer() -> None:
    state = read([first(), second()], whole())
    assert {number: float(kept["momentum_buffer"]) for number, kept in state["state"].items()} == {0: 3, 1: 1, 2: 2}
    assert state["param_groups"] == [{"lr": 0.5, "params": [0, 1, 2]}]


def test_tied_parameters_are_found_under_any_name() -> None:
    entry = whole()
    entry.model.add_module("again", entry.model[1])
    assert names_of(entry)[0] == ["1.weight", "again.weight"]
    state = read([first(), tree({0: 3.0}, [["again.weight"]])], entry)
    assert float(state["state"][0]["momentum_buffer"]) == 3.0


def test_parameters_outside_of_the_model_are_counted() -> None:
    entry = whole()
    entry.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))]})
    assert names_of(entry)[3:] == [["0 outside of the model"], ["1 outside of the model"]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda trees: trees[0].pop("names"), "does not say which parameters its optimizer has"),
        (lambda trees: trees.__setitem__(1, tree({}, [["2.weight"]])), "has no 1.weight, and the script's has it"),
        (
            lambda trees: trees.__setitem__(1, tree({0: 3.0}, [["1.weight"], ["1.bias"]])),
            "has 1.bias, and the script's",
        ),
        (lambda trees: trees[0]["param_groups"].append({"params": []}), "has 2 parameter groups, and the script's 1"),
    ],
)
def test_others_are_refused(change: Any, words: str) -> None:
    trees = [first(), second()]
    change(trees)
    with pytest.raises(CheckpointError, match=words):
        read(trees, whole())


def test_a_parameter_in_another_group_is_refused() -> None:
    trees = [tree({}, [["0.weight"], ["0.bias"]], [[0], [1]]), tree({}, [["1.weight"]], [[0], []])]
    assert [group["params"] for group in read(trees, whole(groups=2))["param_groups"]] == [[0, 1], [2]]
    trees = [tree({}, [["0.weight"], ["0.bias"]], [[0, 1], []]), tree({}, [["1.weight"]], [[0], []])]
    with pytest.raises(CheckpointError, match="has parameters in other groups than the script's"):
        read(trees, whole(groups=2))


def test_replicas_have_their_parameters_in_this_order() -> None:
    parts = [
        {
            "replica": {"parameters": [torch.tensor([1.0]), torch.tensor([2.0])], "optimizer": first()},
            "buffers": {"a": 1},
        },
        {"replica": {"parameters": [torch.tensor([3.0])], "optimizer": second()}, "buffers": {"b": 2}},
    ]
    replica = OldStages(ABOUT, [first(), second()], whole()).replica(parts)
    assert [float(x) for x in replica["replica"]["parameters"]] == [3.0, 1.0, 2.0]
    assert replica["buffers"] == {"a": 1, "b": 2}
    assert replica["replica"]["optimizer"]["state"].keys() == {0, 1, 2}


def test_dictionaries_are_joined_and_the_first_one_decides_on_the_rest() -> None:
    trees = [{"a": [1, {"x": 1}], "b": 2, "long": [1, 2]}, {"a": [3, {"y": 4}], "c": 5, "long": [6]}]
    assert merged(trees) == {"a": [1, {"x": 1, "y": 4}], "b": 2, "c": 5, "long": [1, 2]}
