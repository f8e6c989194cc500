"""Plans for convolutions: which chains are found, by what the forward pass does, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.sharding.by_tensor import plan_for
from tests.support.convolution_nets import Bottleneck, Plain, Recalculated, Residual, groups


def test_blocks_of_residual_networks() -> None:
    """Also where the code of the whole model asks for numbers, and its parts are looked at."""
    plan = quorate.tensor_plan(Residual(), 2)
    blocks = [f"layer{layer}.{block}" for layer in range(1, 5) for block in range(2)]
    wanted = {f"{block}.conv1": "columns" for block in blocks} | {f"{block}.conv2": "rows" for block in blocks}
    wanted |= {f"{block}.bn1": "channels" for block in blocks}
    assert plan == wanted | {"fc": "head"}
    recalculated = quorate.tensor_plan(Recalculated(), 2)
    assert recalculated == wanted and "its parts are looked at" in str(recalculated)


def test_bottlenecks_and_groups() -> None:
    plan = quorate.tensor_plan(Residual(Bottleneck, (1, 1, 1, 1)), 2)
    styles = {"conv1": "columns", "bn1": "channels", "conv2": "pieces", "bn2": "channels", "conv3": "rows"}
    assert {name: style for name, style in plan.items() if name.startswith("layer2")} == {
        f"layer2.0.{name}": style for name, style in styles.items()
    }
    plan = quorate.tensor_plan(groups(), 4)
    assert (plan["1.conv2"], plan["2.conv2"], plan["3"], plan["5"]) == ("channels", "channels", "columns", "rows")
    assert (plan.piece_of("3"), plan.piece_of("5")) == ((32, 2, 2, 2), (6, 2, 3, 3))


def test_a_chain_goes_through_to_linear_layers() -> None:
    plan = quorate.tensor_plan(Plain(), 2)
    convolutions = [f"features.{n}" for n in (0, 3, 7, 10)]
    pieces = [*convolutions[1:], "classifier.0", "classifier.3"]
    norms = [f"features.{n}" for n in (1, 4, 8, 11)]
    wanted = {convolutions[0]: "columns", "classifier.5": "rows"} | dict.fromkeys(pieces, "pieces")
    assert plan == wanted | dict.fromkeys(norms, "channels")


class Pair(nn.Module):
    """Two convolutions, and what is between them."""

    def __init__(self, between: Callable[[Any, Tensor], Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.second, self.first = nn.Conv2d(4, 6, 3), nn.Conv2d(6, 4, 3)
        self.between = between
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.second(self.between(self, self.first(x)))
        return output


def _norm(net: Any, x: Tensor) -> Tensor:
    output: Tensor = net.norm(x)
    return output


APART: dict[str, nn.Module] = {
    "beside": Pair(lambda net, x: F.relu(x) + x.sigmoid() + x),
    "by what it was": Pair(lambda net, x: x * x.mean()),
    "over channels": Pair(lambda net, x: F.softmax(x, 1)),
    "twice": Pair(lambda net, x: net.second(F.relu(x))[:, :4]),
    "read": Pair(lambda net, x: (net.first.weight.mean(), F.relu(x))[1]),
    "for something else": Pair(lambda net, x: F.hardtanh(net.norm.weight, -1.0, x), norm=nn.LayerNorm(4)),
    "groups that do not divide": Pair(_norm, norm=nn.GroupNorm(1, 4)),
    "a norm over layers": Pair(_norm, norm=nn.LayerNorm(4)),
}


@pytest.mark.parametrize("name", APART)
def test_what_is_not_by_channel_is_left_whole(name: str) -> None:
    assert quorate.tensor_plan(APART[name], 2) == {}


@pytest.mark.parametrize(
    "between",
    [
        lambda net, x: F.relu(F.max_pool2d(x, 2)),
        lambda net, x: F.interpolate(x, scale_factor=2.0).relu_(),
        lambda net, x: net.norm(F.dropout(x, 0.1, net.training)),
    ],
)
def test_functions_by_channel_are_known(between: Any) -> None:
    plan = quorate.tensor_plan(Pair(between, norm=nn.InstanceNorm2d(4, affine=True)), 2)
    assert (plan["first"], plan["second"]) == ("columns", "rows")


def test_why_is_said() -> None:
    assert "1 groups of channels are no multiple of 2" in str(
        quorate.tensor_plan(APART["groups that do not divide"], 2)
    )
    assert "6 outputs are no multiple of 4" in str(quorate.tensor_plan(Residual(), 4))


def test_convolutions_with_weights_of_their_own_kind_stay_whole() -> None:
    class Standard(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True))

    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1))
    for odd in (Standard(4, 4, 1), normed):
        assert quorate.tensor_plan(nn.Sequential(nn.Conv2d(3, 4, 1), odd), 2) == {}


def test_the_generator_is_left_as_it_was() -> None:
    model = Pair(lambda net, x: x + torch.rand(1))
    before = torch.get_rng_state()
    quorate.tensor_plan(model, 2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"layer1.0.conv1": "head"}, 'has "head" for layer1.0.conv1, of the class Conv2d; it is for a linear layer'),
        ({"layer1.0.conv1": "channels"}, "it is for a norm of torch's over channels, or its convolution in groups"),
        ({"layer1.0.bn1": "columns"}, "it is for a linear layer, or a convolution of torch's without groups"),
        ({"conv1": "rows"}, "conv1 has 3 inputs, which 2 workers cannot share evenly: 3 is not a multiple of 2"),
        ({"layer1.0.conv1": "columns", "bn1": "sequence"}, "is a convolution, and the tensor plan cuts the sequence"),
    ],
)
def test_plans_that_cannot_be(plan: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        plan_for(Residual(), plan, 2)


def test_channels_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"layer1.0.conv1 has 4 outputs, which 3 workers cannot share evenly"):
        quorate.tensor_plan(Residual(), 3)
