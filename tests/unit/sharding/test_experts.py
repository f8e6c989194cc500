"""Layers of experts: routes against loops, one process against virtual workers, and what is refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.axes import Axes
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.sharding import experts as experts_module
from quorate.sharding.by_experts import check_experts, outside_experts
from quorate.sharding.experts import Exchange, capacity_of, route
from quorate.sharding.traffic import Traffic
from quorate.wire.metered import Meter, Metered
from quorate.wire.virtual.world import VirtualWorld

DIM, COUNT = 5, 6


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_loops(logits: Tensor, top_k: int, factor: float | None, groups: int) -> tuple[dict[Any, float], float, float]:
    """The gate of each pair (token, expert) that is computed, and both losses."""
    tokens, count = logits.shape
    each, pairs, balance, z = tokens // groups, {}, 0.0, 0.0
    for group in range(groups):
        own = range(group * each, (group + 1) * each)
        p = {t: [math.exp(x) / sum(math.exp(y) for y in logits[t].tolist()) for x in logits[t].tolist()] for t in own}
        choices = {t: sorted(range(count), key=lambda e, t=t: -p[t][e])[:top_k] for t in own}
        taken = [0] * count
        for choice in range(top_k):
            for t in own:
                expert = choices[t][choice]
                total = sum(p[t][e] for e in choices[t]) if top_k > 1 else 1.0
                if factor is None or taken[expert] < math.ceil(factor * top_k * each / count):
                    taken[expert] += 1
                    pairs[t, expert] = p[t][expert] / total
        for e in range(count):
            f = sum(e in choices[t] for t in own) / (each * top_k)
            balance += count * f * (sum(p[t][e] for t in own) / each) / groups
        z += sum(math.log(sum(math.exp(x) for x in logits[t].tolist())) ** 2 for t in own) / tokens
    return pairs, balance, z


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("factor", [None, 0.5, 1.0, 1.25])
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_routes(top_k: int, factor: float | None, groups: int) -> None:
    logits = drawn(24, COUNT) * 2
    routes = route(logits, top_k, factor, groups)
    pairs, balance, z = by_loops(logits, top_k, factor, groups)
    computed = zip(routes.token.tolist(), routes.expert.tolist(), routes.gate.tolist(), strict=True)
    assert {(token, expert): gate for token, expert, gate in computed} == pytest.approx(pairs)
    assert routes.expert.tolist() == sorted(routes.expert.tolist())
    assert routes.dropped == 24 * top_k - len(pairs)
    assert routes.dropped > 0 or factor in (None, 1.25)
    assert float(routes.balance_loss) == pytest.approx(balance)
    assert float(routes.z_loss) == pytest.approx(z)


def test_capacity() -> None:
    assert [capacity_of(10, 4, 1, factor) for factor in (1.0, 1.25, 9.0, None)] == [3, 4, 10, 10]
    assert capacity_of(0, 4, 2, 1.25) == 0


def test_even_routes_cost_one() -> None:
    assert float(route(torch.eye(4) * 20, 1, 1.0).balance_loss) == pytest.approx(1.0)
    all_to_one = torch.zeros(8, 4).index_fill(1, torch.tensor([2]), 20.0)
    assert float(route(all_to_one, 1, None).balance_loss) == pytest.approx(4.0)


def layer(*, top_k: int = 2, factor: float | None = 1.0, groups: int = 1) -> Any:
    torch.manual_seed(3)
    made = quorate.Experts(
        lambda: nn.Sequential(nn.Linear(DIM, 7), nn.Tanh(), nn.Linear(7, 3)),
        COUNT,
        DIM,
        top_k=top_k,
        capacity_factor=factor,
        groups=groups,
    )
    return made.double()


def test_outputs_are_sums_of_experts() -> None:
    experts, x = layer(factor=0.5), drawn(4, 6, DIM)
    pairs, _, _ = by_loops(experts.router(x.view(-1, DIM)).detach(), 2, 0.5, 1)
    wanted = torch.zeros(24, 3, dtype=torch.float64)
    for (token, expert), gate in pairs.items():
        w1, b1, w2, b2 = (p[expert] for p in experts.experts.parameters())
        wanted[token] += gate * (torch.tanh(x.view(-1, DIM)[token] @ w1.T + b1) @ w2.T + b2)
    torch.testing.assert_close(experts(x), wanted.view(4, 6, 3))
    assert (wanted == 0).all(1).any(), "some tokens are to be dropped"
    assert experts.dropped == 48 - len(pairs)


def test_experts_begin_differently_and_all_have_gradients() -> None:
    experts = layer(top_k=1, factor=None)
    assert [p.shape[0] for p in experts.experts.parameters()] == [COUNT] * 4
    assert len({float(x[0, 0]) for x in experts.experts[0].weight.detach()}) == COUNT
    experts(drawn(1, DIM)).sum().backward()
    assert all(p.grad is not None for p in experts.parameters())
    assert experts.balance_loss.grad_fn is not None
    assert copy.deepcopy(experts).balance_loss is None


def spread(wire: Wire, x: Tensor, factor: float | None, meter: Meter | None = None) -> Any:
    """The layer as it is on one of several workers."""
    experts = layer(factor=factor)
    for module in experts.experts.modules():
        for key, p in list(module.named_parameters(recurse=False)):
            setattr(module, key, nn.Parameter(p.detach().chunk(wire.size)[wire.rank].clone()))
    experts.spread_(Exchange(Metered(wire.channel("experts"), meter or Meter()), Traffic()))
    y = experts(x)
    (y.square().sum() + experts.balance_loss + experts.z_loss).backward()
    return experts, y.detach()


@pytest.mark.parametrize("in_full_rows", [False, True])
@pytest.mark.parametrize("factor", [None, 0.5, 1.0])
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_workers_are_one_process(
    size: int, factor: float | None, in_full_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where experts compute as many rows as they take at most, as on a GPU."""
    x = drawn(size, 8, DIM)

    def task(wire: Wire) -> Any:
        own_tokens = x[wire.rank].clone().requires_grad_()
        experts, y = spread(wire, own_tokens, factor)
        return (
            y,
            own_tokens.grad,
            experts.dropped,
            experts.router.weight.grad,
            [p.grad for p in experts.experts.parameters()],
        )

    with monkeypatch.context() as patch:
        patch.setattr(experts_module, "pads", lambda x: in_full_rows)
        ends = VirtualWorld(size).run(task)
    experts, tokens = layer(factor=factor, groups=size), x.clone().requires_grad_()
    y = experts(tokens)
    (y.square().sum() + size * (experts.balance_loss + experts.z_loss)).backward()
    torch.testing.assert_close(torch.stack([each[0] for each in ends]), y.detach())
    torch.testing.assert_close(torch.stack([each[1] for each in ends]), tokens.grad)
    assert sum(each[2] for each in ends) == experts.dropped
    torch.testing.assert_close(sum(each[3] for each in ends), experts.router.weight.grad)
    for place, p in enumerate(experts.experts.parameters()):
        torch.testing.assert_close(torch.cat([each[4][place] for each in ends]) * size, p.grad)


@pytest.mark.parametrize("factor", [None, 1.5])
def test_workers_may_have_different_numbers_of_tokens(factor: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts_module, "pads", lambda x: True)
    tokens = [0, 7, 2]

    def task(wire: Wire) -> Any:
        return spread(wire, drawn(tokens[wire.rank], DIM, seed=wire.rank), factor)[1]

    for rank, y in enumerate(VirtualWorld(3).run(task)):
        torch.testing.assert_close(y, layer(factor=factor)(drawn(tokens[rank], DIM, seed=rank)).detach())


def test_what_is_sent() -> None:
    """Counts of tokens, and a row for each pair whose expert is elsewhere: there and back, forward and backward."""
    size, x = 3, drawn(3, 8, DIM)

    def task(wire: Wire) -> tuple[int, int]:
        meter = Meter()
        experts, _ = spread(wire, x[wire.rank].clone().requires_grad_(), 1.0, meter)
        chosen = route(experts.router(x[wire.rank]), 2, 1.0).expert // (COUNT // size)
        return int(meter.bytes_out.total()), int((chosen != wire.rank).sum())

    counted = VirtualWorld(size).run(task)
    elsewhere, counts = sum(pairs for _, pairs in counted), size * 8 * (COUNT - COUNT // size)
    assert sum(sent for sent, _ in counted) == counts + 2 * elsewhere * (DIM + 3) * 8


def an_expert() -> nn.Module:
    return nn.Linear(DIM, DIM)


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a module": (lambda: quorate.Experts(an_expert(), 4, DIM), "expert is called once for each expert, to make it"),  # type: ignore[arg-type]
    "top_k": (lambda: quorate.Experts(an_expert, 2, DIM, top_k=3), "top_k=3 is more than there are experts: 2"),
    "count": (lambda: quorate.Experts(an_expert, 0, DIM), "count=0 is not a number of Experts"),
    "capacity": (
        lambda: quorate.Experts(an_expert, 4, DIM, capacity_factor=0.0),
        "capacity_factor=0.0 is out of range",
    ),
    "buffers": (lambda: quorate.Experts(lambda: nn.BatchNorm1d(DIM), 4, DIM), "BatchNorm1d is not an expert"),
    "width": (lambda: quorate.Experts(an_expert, 4, DIM)(torch.zeros(2, 3)), "takes tokens of 5 numbers, not 3"),
    "groups": (
        lambda: quorate.Experts(an_expert, 4, DIM, groups=2)(torch.zeros(3, DIM)),
        "3 tokens cannot be cut into groups=2 of equal size",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_refused(name: str) -> None:
    call, words = WRONG[name]
    with pytest.raises(ConfigurationError) as caught:
        call()
    assert words in str(caught.value)


def test_experts_that_differ_are_refused() -> None:
    widths = iter([4, 5])
    with pytest.raises(ConfigurationError, match="made experts with different parameters"):
        quorate.Experts(lambda: nn.Linear(DIM, next(widths)), 2, DIM)


@pytest.mark.parametrize(
    ("axes", "chosen", "words"),
    [
        (Axes(1, 4), {}, "0 has 6 experts, which 4 shards cannot share evenly"),
        (Axes(2, 1, 2), {}, "not spread along the tensor axis"),
        (Axes(1, 2), {"offload": "all"}, 'not spread with offload="all"'),
        (Axes(1, 2), {"precision": "bfloat16"}, "not spread with precision="),
        (Axes(2, 1), {"is_on_meta": True}, "not spread from the meta device"),
    ],
)
def test_what_spreading_refuses(axes: Axes, chosen: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {"is_on_meta": False, "offload": None, "precision": None}
    model = nn.Sequential(layer())
    check_experts(model, Axes(1, 2), **usual)
    with pytest.raises(ConfigurationError, match=words):
        check_experts(model, axes, **usual | chosen)


def test_parts_of_experts_are_no_blocks() -> None:
    model = nn.Sequential(layer(), nn.Linear(3, DIM))
    named = [("0.experts.0", model[0].experts[0]), ("1", model[1])]
    assert [name for name, _ in outside_experts(model, named)] == ["1"]
