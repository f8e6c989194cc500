"""Functions of images of which each worker has some rows, in the virtual world: the numbers of one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.sharding.space.halos import Window, dealt
from quorate.sharding.space.images import Images
from quorate.sharding.space.rows import Rows
from quorate.sharding.tensor.activations import Together
from quorate.sharding.traffic import Traffic
from quorate.wire.metered import Metered
from quorate.wire.virtual.world import VirtualWorld


class Apply(nn.Module):
    """A function, and a parameter of some shape."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.function, self.p = function, nn.Parameter(torch.rand(shape or (1,)))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.p)


def _beside(x: Tensor, _: Tensor) -> Tensor:
    y = x * 2
    y += x
    y = F.relu(y, inplace=True)
    left, right = torch.cat([y, x.sigmoid()], 1).chunk(2, 1)
    return torch.softmax(left, 1) * right[:, :2].mean(1, keepdim=True)


IMAGES: dict[str, nn.Module] = {
    "kernel of 3": nn.Conv2d(4, 6, 3, padding=1),
    "stride of 2": nn.Conv2d(4, 6, 3, 2, 1, bias=False),
    "kernel of 1, stride of 3": nn.Conv2d(4, 6, 1, 3),
    "even kernel": nn.Conv2d(4, 6, (4, 2), padding=(3, 0), groups=2),
    "far kernel": nn.Conv2d(4, 6, (5, 3), padding="same", dilation=(2, 1)),
    "even kernel, same": nn.Conv2d(4, 6, (2, 4), padding="same"),
    "no padding": nn.Conv2d(4, 6, 5, padding="valid"),
    "maxima": nn.MaxPool2d(3, 2, 1),
    "maxima, all windows": nn.MaxPool2d(2, 2, ceil_mode=True),
    "means": nn.AvgPool2d(3, 2, 1),
    "means of all": nn.AdaptiveAvgPool2d((1, 3)),
    "means, some": nn.AdaptiveAvgPool2d(4),
    "batches": nn.BatchNorm2d(4),
    "batches, plain": nn.Sequential(nn.BatchNorm2d(4, affine=False), nn.ReLU(inplace=True)),
    "groups": nn.GroupNorm(2, 4),
    "instances": nn.InstanceNorm2d(4, affine=True),
    "padded": nn.Sequential(nn.ZeroPad2d((1, 0, 2, 3)), nn.Conv2d(4, 4, 3)),
    "reflected": nn.Conv2d(4, 4, (1, 3), padding=(0, 1), padding_mode="reflect"),
    "beside": Apply(_beside),
    "mean": Apply(lambda x, p: (x * p).mean((2, 3), keepdim=True), 4, 1, 1),
    "sum": Apply(lambda x, p: (x * p).sum(), 1, 4, 13, 5),
    "view": Apply(lambda x, p: x.view(x.size(0), -1) * p, 4 * 13 * 5),
    "places": Apply(lambda x, p: x * x + p, 13, 5),
    "channels": nn.Dropout2d(0.5),
}
LINES = {"line": nn.Sequential(nn.Conv1d(4, 6, 5, 2, 2), nn.BatchNorm1d(6), nn.MaxPool1d(2))}
SOLIDS = {"solid": nn.Sequential(nn.Conv3d(4, 6, 3, padding=1), nn.AvgPool3d(2), nn.BatchNorm3d(6))}
CASES = [
    *((name, module, (2, 4, 13, 5)) for name, module in IMAGES.items()),
    *((name, module, (2, 4, 24)) for name, module in LINES.items()),
    *((name, module, (2, 4, 9, 4, 5)) for name, module in SOLIDS.items()),
]


def calculated(module: nn.Module, shape: tuple[int, ...]) -> list[Tensor]:
    """What it gives, the gradients of a loss of it, and its buffers."""
    torch.manual_seed(3)
    x = torch.randn(shape, dtype=torch.float64).requires_grad_()
    found = module(x)
    loss = (found * torch.linspace(0.5, 1.5, found.numel(), dtype=found.dtype).view(found.shape)).sin().sum()
    loss.backward()
    for p in module.parameters():
        assert p.grad is not None or p.shape == (1,)
    return [found.detach(), x.grad, *(p.grad for p in module.parameters()), *module.buffers()]  # type: ignore[list-item]


def together_on(wire: Wire) -> Together:
    traffic = Traffic()
    return Together(Metered(wire, traffic.meter), traffic, None)  # type: ignore[arg-type]


def in_rows(module: nn.Module, wire: Wire, dims: int) -> nn.Module:
    images = Images(together_on(wire), dims)
    module.register_forward_pre_hook(images.before, with_kwargs=True)
    module.register_forward_hook(images.behind)
    return module


def copy_of(module: nn.Module) -> nn.Module:
    """Its numbers drawn with one seed, in double precision."""
    made, draw = copy.deepcopy(module).double(), torch.Generator().manual_seed(5)
    for p in made.parameters():
        p.data.uniform_(-1, 1, generator=draw)
    return made


@pytest.mark.parametrize(("name", "module", "shape"), CASES, ids=[name for name, _, _ in CASES])
@pytest.mark.filterwarnings("ignore:Using padding='same'")  # of torch, on the whole image
def test_rows_give_what_images_give(name: str, module: nn.Module, shape: tuple[int, ...]) -> None:
    wanted = calculated(copy_of(module), shape)
    for workers in (1, 2, 3):
        ends = VirtualWorld(workers).run(lambda wire: calculated(in_rows(copy_of(module), wire, len(shape) - 2), shape))
        for found in ends:
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "upside down": (lambda x: x.flip(2), "flip was called with images of which each worker has some rows"),
    "turned": (lambda x: x.transpose(2, 3), "transpose was called"),
    "one row": (lambda x: x[:, :, 1:], "an index of more than examples and channels"),
    "along rows": (lambda x: torch.softmax(x, 2), "softmax was called"),
    "stack": (lambda x: torch.cat([x, x], 2), "cat was called"),
    "other heights": (lambda x: x + F.max_pool2d(x, 3, 1), "add was given images of other heights"),
    "other places": (
        lambda x: x + torch.ones(5, 5),
        "add was given a tensor of the shape (5, 5) with images of 7 rows",
    ),
    "into a whole": (lambda x: torch.zeros(1, 2, 7, 5).add_(x), "add into a tensor that is whole was called"),
    "reflection": (lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), 'not padded by the mode "reflect", or by 1 and 1'),
    "few rows": (lambda x: F.max_pool2d(x, 7), "1 rows of an image cannot be shared by 2 workers"),
    "last window": (lambda x: F.avg_pool2d(x, 2, ceil_mode=True), "an average pooling with ceil_mode=True"),
    "tracked": (nn.InstanceNorm2d(2, track_running_stats=True), "an instance norm with running statistics"),
    "shape": (lambda x: x.view(1, 1, 2, 7, 5), "were given the shape (1, 1, 2, 7, 5)"),
    "numbers": (lambda x: x.data, "data was called"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused(name: str) -> None:
    function, words = REFUSED[name]

    def one(wire: Wire) -> str:
        model = in_rows(Apply(lambda x, _: function(x)), wire, 2)
        with pytest.raises(ConfigurationError) as raised:
            model(torch.ones(1, 2, 7, 5))
        return str(raised.value)

    assert all(words in told for told in VirtualWorld(2).run(one))


def test_a_model_is_given_images() -> None:
    def one(wire: Wire) -> str:
        with pytest.raises(ConfigurationError) as raised:
            in_rows(nn.Identity(), wire, 2)(torch.ones(1, 7, 5))
        return str(raised.value)

    assert all("is given images of 4 dimensions" in told for told in VirtualWorld(2).run(one))


def test_rows_have_the_shape_of_the_whole() -> None:
    def one(wire: Wire) -> tuple[Any, ...]:
        seen: list[Any] = []
        x = torch.ones(1, 2, 7, 5)
        in_rows(Apply(lambda x, _: seen.extend([x, x.shape, x.size(2), x.numel(), len(x)]) or x), wire, 2)(x)  # type: ignore[func-returns-value]
        rows, *told = seen
        assert isinstance(rows, Rows)
        return (rows.as_subclass(Tensor).shape[2], *told)

    assert VirtualWorld(3).run(one) == [(n, (1, 2, 7, 5), 7, 70, 1) for n in (3, 2, 2)]


def test_dropout_differs_between_rows_and_leaves_generators_alike() -> None:
    def one(wire: Wire) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(1)
        kept: list[Tensor] = []
        found = in_rows(Apply(lambda x, _: F.dropout(x, 0.5)), wire, 2)(torch.ones(1, 1, 8, 32))
        kept += found.chunk(2, 2)
        return kept[0], kept[1], torch.get_rng_state()

    (upper, lower, state), (_, _, other) = VirtualWorld(2).run(one)
    assert not torch.equal(upper, lower) and torch.equal(state, other)


def test_what_is_sent_is_the_rows_of_neighbours() -> None:
    """A kernel of 3 needs one row of each neighbour, forward; backward gradients of as many go back."""

    def one(wire: Wire) -> list[int]:
        together = together_on(wire)
        images, layer = Images(together, 2), nn.Conv2d(2, 3, 3, padding=1, bias=False)
        layer.weight.requires_grad_(requires_grad=False)
        model = Apply(lambda x, p: layer(x * p))
        model.register_forward_pre_hook(images.before, with_kwargs=True)
        sent, counts = together.traffic.meter.bytes_out, []
        found: Any = model(torch.ones(4, 2, 9, 5))
        counts.append(sent["send"])
        found.as_subclass(Tensor).sum().backward()
        return [*counts, sent["send"]]

    row = 4 * 2 * 5 * 4
    assert VirtualWorld(3).run(one) == [[n * row, 2 * n * row] for n in (1, 2, 1)]


def test_windows() -> None:
    """Rows of a result as torch counts them, and which they are made of."""
    for count in range(5, 20):
        for kernel, stride, padding, dilation in ((3, 1, 1, 1), (2, 2, 0, 1), (3, 2, 1, 2), (1, 3, 0, 1)):
            x = torch.arange(1.0, count + 1).view(1, 1, count)
            for ceil in (False, True):
                found = F.max_pool1d(x, kernel, stride, padding, dilation, ceil)
                window = Window(kernel, stride, padding, padding, dilation, ceil)
                assert window.rows(count) == found.shape[2]
    assert Window(3, 2, 1, 1).needs(range(2, 4)) == range(3, 8)
    assert dealt(7, 3) == [range(3), range(3, 5), range(5, 7)]
