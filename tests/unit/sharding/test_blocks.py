"""Which modules of a model are gathered as one: those that a person would choose, in models of many shapes."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from torch import nn

from quorate.core.errors import ConfigurationError
from quorate.sharding.blocks import blocks_of, in_words, named_blocks
from tests.support.foreign_models import WRITTEN, Block, NanoShape


def names(model: nn.Module) -> list[str]:
    return [name for name, _ in blocks_of(model)]


def large() -> nn.Module:
    return nn.Linear(128, 128)


@pytest.mark.parametrize("name", WRITTEN)
def test_blocks_of_models_that_others_wrote(name: str) -> None:
    assert names(WRITTEN[name].make()) == list(WRITTEN[name].blocks)


def test_outermost_lists_count() -> None:
    inner = [nn.Sequential(large(), large()) for _ in range(2)]
    assert names(nn.Sequential(*inner)) == ["0", "1"]


def test_a_list_of_unlike_ones_is_looked_into() -> None:
    layers = nn.Sequential(OrderedDict(stem=large(), body=nn.ModuleList([Block(), Block()]), head=nn.Bilinear(9, 9, 9)))
    assert names(layers) == ["body.0", "body.1"]


def test_like_children_outside_of_a_list_are_none() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = large(), large()

    assert names(Pair()) == []


def test_what_is_small_stays_with_the_root() -> None:
    assert names(nn.Sequential(nn.Linear(128, 127, bias=False), nn.Linear(128, 128, bias=False))) == ["1"]


def test_what_shares_a_parameter_with_others_is_none() -> None:
    model = nn.Sequential(large(), large(), large())
    model[2].weight = model[0].weight
    assert names(model) == ["1"]
    within = nn.Sequential(nn.Sequential(large(), large()), nn.Sequential(large(), large()))
    within[0][1].weight = within[0][0].weight  # type: ignore[index, union-attr]
    assert names(within) == ["0", "1"]


def test_children_without_parameters_do_not_count() -> None:
    assert names(nn.Sequential(nn.Sequential(nn.ReLU()), nn.Sequential(large()))) == []


def test_a_script_may_list_them() -> None:
    model = NanoShape()
    first = model.get_submodule("transformer.h.0")
    assert [n for n, _ in named_blocks(model, ["transformer.h.1", first])] == ["transformer.h.0", "transformer.h.1"]
    assert [n for n, _ in named_blocks(model, [Block, NanoShape])] == ["transformer.h.0", "transformer.h.1"]
    assert named_blocks(model, [""]) == []


def test_tied_weights_of_listed_blocks_stay_with_the_root() -> None:
    assert named_blocks(NanoShape(), ["lm_head"]) == []  # it has the weight of the embedding
    model = nn.Sequential(nn.Sequential(large(), large()), nn.Sequential(large(), large()))
    model[1][0].weight = model[0][1].weight  # type: ignore[index, union-attr]
    assert [n for n, _ in named_blocks(model, ["0", "1"])] == ["0.0", "1.1"]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [("transformer.g", "transformer.g"), (nn.Conv2d, "Conv2d"), (nn.Linear(2, 2), "Linear"), (3, "int")],
)
def test_what_is_not_there_is_refused(wanted: object, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^blocks has {said}, but the model has no such module; list names"):
        named_blocks(NanoShape(), ["lm_head", wanted])  # type: ignore[list-item]


def test_in_words() -> None:
    model = NanoShape()
    assert in_words([]) == "one piece"
    assert (
        in_words(blocks_of(model))
        == "2 blocks of Block (transformer.h.0 to transformer.h.1), and the rest as one piece"
    )
    words = in_words(named_blocks(model, ["transformer.h.0"]), of_stages=True)
    assert words == "1 block of Block (transformer.h.0) on the first worker of the pipeline"
    assert in_words(named_blocks(model, ["transformer.h.0"])) == words.replace(
        " on the first worker of the pipeline", ", and the rest as one piece"
    )
