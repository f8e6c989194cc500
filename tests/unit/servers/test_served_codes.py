"""What goes to servers and comes from them written small."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quorate.buckets.flat import layout_of
from quorate.codecs import codecs
from quorate.core.codec import Codec
from quorate.core.vectors import Flat, nbytes_of
from quorate.means.edge_coding import EdgeCoding
from quorate.servers.served_codes import PullCodes, PushCodes
from quorate.servers.shard import cuts_of

SHAPES = [(4, 6), (6,), (3, 5, 2), (), (7, 7)]
CODECS: dict[str, Codec] = {
    "sign": codecs.get("sign")(),
    "top-k": codecs.get("top-k")(density=0.1),
    "blocks": codecs.get("blocks")(bits=4),
    "qsgd": codecs.get("qsgd")(),
}


def vectors(count: int) -> list[Flat]:
    tensors: list[tuple[str, Tensor]] = [(f"p{i}", torch.zeros(shape)) for i, shape in enumerate(SHAPES)]
    layout = layout_of(tensors, coded=lambda name, x: x.numel() > 5)
    draw = torch.Generator().manual_seed(1)
    return [Flat([torch.randn(p.numel, generator=draw) for p in layout.parts], layout) for _ in range(count)]


@pytest.mark.parametrize("servers", [1, 2, 4, 7])
def test_cuts_are_whole_parameters_and_all_of_them(servers: int) -> None:
    (x,) = vectors(1)
    cuts = cuts_of(x.layout, servers)
    assert sorted(place for cut in cuts for place in cut.places) == list(range(len(SHAPES)))
    for cut in cuts:
        alone = Flat(cut.of(x), cut.layout)
        for place, mine, view in zip(cut.places, alone.segments(), cut.views(cut.of(x), x.layout), strict=True):
            assert torch.equal(mine, x.segment(place))
            assert torch.equal(view, x.segment(place))
    assert sum(cut.nbytes for cut in cuts) == nbytes_of(x)


@pytest.mark.parametrize("name", CODECS)
def test_what_was_sent_and_what_is_left_add_up_to_all(name: str) -> None:
    gradients, coding = vectors(8), EdgeCoding(CODECS[name], seed=0)
    cuts = cuts_of(gradients[0].layout, 3)
    codes, got = PushCodes(coding, 5, feeds_back=True), Flat.zeros(gradients[0].layout)
    for number, gradient in enumerate(gradients):
        for place, cut in enumerate(cuts):
            sent = codes.code(place, cut, gradient, number)
            for there, x in zip(cut.of(got), coding.decode(sent, cut.layout, number, 5).parts, strict=True):
                there.add_(x)
        if number == 3:  # it goes on from what it was, for other servers
            left = codes.left_out(cuts, lambda: Flat.zeros(gradients[0].layout))
            cuts = cuts_of(gradients[0].layout, 2)
            codes.take_back(left, cuts)
    left = codes.left_out(cuts, lambda: Flat.zeros(gradients[0].layout))
    assert left is not None
    assert name == "qsgd" or any(bool(part.abs().max() > 0.01) for part in left.parts)
    for part in range(len(got.parts)):
        total = sum(gradient.parts[part] for gradient in gradients)
        torch.testing.assert_close(got.parts[part] + left.parts[part], total, rtol=1e-4, atol=1e-4)


def test_an_infinite_gradient_spoils_nothing_that_is_remembered() -> None:
    first, bad, last = vectors(3)
    bad.parts[0][0] = float("inf")
    coding, (cut,) = EdgeCoding(CODECS["sign"], seed=0), cuts_of(first.layout, 1)
    codes = PushCodes(coding, 0, feeds_back=True)
    for number, gradient in enumerate((first, bad, last)):
        sent = codes.code(0, cut, gradient, number)
    assert all(bool(x.isfinite().all()) for x in coding.decode(sent, cut.layout, 2, 0).parts)


@pytest.mark.parametrize("name", ["sign", "top-k", "blocks"])
def test_both_sides_of_a_read_have_the_same_and_come_near(name: str) -> None:
    begin, aim = vectors(2)
    coding, (cut,) = EdgeCoding(CODECS[name], seed=0), cuts_of(begin.layout, 1)
    server, worker = (PullCodes(coding, cut, [x.clone() for x in begin.parts]) for _ in range(2))
    for version in range(60):
        sent, has = server.code(3, aim.parts, version)
        assert all(torch.equal(x, y) for x, y in zip(has, worker.read(3, sent, version), strict=True))
    far = sum(float((x - y).square().sum()) for x, y in zip(has, aim.parts, strict=True))
    was = sum(float((x - y).square().sum()) for x, y in zip(begin.parts, aim.parts, strict=True))
    assert far < 0.05 * was
