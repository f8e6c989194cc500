"""Gradients that lie in contributions: every use of `.grad` that scripts make leads to the same numbers as copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.buckets.flat import layout_of
from quorate.core.vectors import Flat
from quorate.quorums import gradient_views
from quorate.rounds.pending import PendingGradients
from quorate.rounds.terms import Agreed
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

STEPS = 5
LARGE = 1 << 25


class Net(nn.Module):
    """One layer is used twice, and one is not used."""

    rank: int
    held: list[Tensor]
    seen: list[Tensor | None]

    def __init__(self) -> None:
        super().__init__()
        self.first, self.tied, self.unused = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.tied(torch.tanh(self.tied(torch.tanh(self.first(x)))))
        return y


Use = Callable[[Any, Any, int], object]


def nothing(model: Any, optimizer: Any, step: int) -> None:
    """Do nothing."""


def clear(model: Any, optimizer: Any, step: int) -> None:
    optimizer.zero_grad()


def zero(model: Any, optimizer: Any, step: int) -> None:
    optimizer.zero_grad(set_to_none=False)


def zero_later(model: Any, optimizer: Any, step: int) -> None:
    model.zero_grad(set_to_none=step < 3)


def clear_at_first(model: Any, optimizer: Any, step: int) -> None:
    if step < 3:
        optimizer.zero_grad()


def clear_some(model: Any, optimizer: Any, step: int) -> None:
    model.tied.zero_grad()


def clip(model: Any, optimizer: Any, step: int) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def replace(model: Any, optimizer: Any, step: int) -> None:
    model.tied.weight.grad = 2 * model.tied.weight.grad


def drop(model: Any, optimizer: Any, step: int) -> None:
    if model.rank == 0:  # a gradient of the other worker is used then
        model.tied.bias.grad = None


def add_to_own(model: Any, optimizer: Any, step: int) -> None:
    """A tensor of the script stays the gradient when a further pass adds to it."""
    own = model.tied.bias.grad = model.tied.bias.grad.clone()
    model(torch.ones(2, 3)).sum().backward()
    assert model.tied.bias.grad is own


def scale(model: Any, optimizer: Any, step: int) -> None:
    """As a GradScaler does that leaves the division to the step."""
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(float(step == 3))


def unscale(model: Any, optimizer: Any, step: int) -> None:
    del optimizer.grad_scale, optimizer.found_inf
    model.seen += [grad.clone() for grad in model.held]  # of the step before
    model.held = [p.grad for p in model.tied.parameters()]


def hold(model: Any, optimizer: Any, step: int) -> None:
    model.held = [p.grad for p in model.tied.parameters()]


def write_to_held(model: Any, optimizer: Any, step: int) -> None:
    for grad in model.held:
        grad.zero_()


def write(model: Any, optimizer: Any, step: int) -> None:
    model.tied.weight.grad += 1.0


USES: dict[str, tuple[int, Use, Use, Use]] = {
    "plain": (1, nothing, nothing, clear),
    "two passes": (2, nothing, nothing, clear),
    "zeroed": (1, nothing, nothing, zero),
    "zeroed from the fourth step on": (1, nothing, nothing, zero_later),
    "not cleared from the fourth step on": (1, nothing, nothing, clear_at_first),
    "some not cleared": (1, nothing, nothing, clear_some),
    "clipped": (1, clip, nothing, clear),
    "replaced": (1, replace, nothing, clear),
    "dropped": (1, drop, nothing, clear),
    "the script's own": (1, add_to_own, nothing, clear),
    "scaled and held": (1, scale, unscale, clear),
    "held and written to": (1, hold, write_to_held, clear),
    "written to after the step": (1, nothing, write, clear),
}
"""Backward passes in a step, and what a script does before a step, after it, and at its end."""


def trained(use: str, settings: dict[str, Any], world: quorate.World) -> tuple[list[Tensor | None], int]:
    """Return all gradients and parameters that the script sees, and the number of contributions without a copy."""
    passes, before, after, ends = USES[use]
    torch.manual_seed(0)
    model, seen = Net(), list[Tensor | None]()
    model.rank, model.held, model.seen = world.rank, list[Tensor](), seen
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, "quorum", **settings)
    views = optimizer._quorate_worker._rounds._views
    lent = 0
    for step in range(STEPS):
        world.wire.clock.sleep(0.01 * (1 + world.rank))
        for number in range(passes):
            x = torch.randn(5, 3, generator=torch.Generator().manual_seed(100 * step + 10 * world.rank + number))
            model(x).square().mean().backward()
        before(model, optimizer, step)
        seen += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
        lent += views is not None and views.lent is not None
        after(model, optimizer, step)
        seen += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        seen += [p.detach().clone() for p in model.parameters()]
        ends(model, optimizer, step)
    optimizer.finish()
    return seen + [p.detach().clone() for p in model.parameters()], lent


def are_equal(use: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    """Train with gradients that are copied, and with others, and compare the numbers."""
    script = joined(lambda world: trained(use, settings, world))
    copied = VirtualWorld(2).run(script)
    monkeypatch.setattr(gradient_views, "LEAST_BYTES", 0)
    viewed = VirtualWorld(2).run(script)
    for (own, no_lent), (same, lent) in zip(copied, viewed, strict=True):
        assert no_lent == 0
        assert (lent >= 2) == (use not in ("zeroed", "some not cleared", "held and written to", "scaled and held"))
        assert len(own) == len(same)
        for x, y in zip(own, same, strict=True):
            assert x is y is None or (x is not None and y is not None and torch.equal(x, y))


@pytest.mark.parametrize("use", USES)
def test_every_use_of_gradients_sees_the_numbers_of_copies(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    are_equal(use, monkeypatch, wait_for=1)


def contributed(
    *versions: int, lent: Sequence[Callable[[], bool] | None], vector_bytes: int = 0
) -> tuple[PendingGradients, list[Flat]]:
    """Contributions of 1, 2, ... that are pending, on parameters of these versions, and their vectors."""
    pending = PendingGradients(Agreed(size=2, max_staleness=3, vector_bytes=vector_bytes))
    layout = layout_of([("a", torch.ones(3))])
    vectors = [Flat([torch.full((3,), 1.0 + place)], layout) for place in range(len(versions))]
    for version, vector, is_lent in zip(versions, vectors, lent, strict=True):
        pending.add(vector, 1.0, version, 0.0, None, is_lent=is_lent)
    return pending, vectors


def firsts(vectors: Sequence[Flat]) -> list[float]:
    return [vector.parts[0][0].item() for vector in vectors]


def yes() -> bool:
    return True


def no() -> bool:
    return False


def test_a_contribution_that_lends_gradients_is_not_written_to() -> None:
    """A second one on the same parameters joins the first in memory of its own."""
    pending, vectors = contributed(0, 0, 0, lent=[yes, yes, None])
    assert firsts(vectors) == [1.0, 2.0, 6.0]
    assert pending.entries[0].vector is vectors[2]


@pytest.mark.parametrize(("lent", "expected"), [(no, [6.0, 2.0, 3.0]), (yes, [1.0, 2.0, 3.0])])
def test_large_contributions_join_in_the_memory_of_the_first(lent: Any, expected: list[float]) -> None:
    """Where the first lends gradients, in the memory of the first sum."""
    pending, vectors = contributed(0, 0, 0, lent=[lent, yes, None], vector_bytes=LARGE)
    assert firsts(vectors) == expected
    (entry,) = pending.entries
    assert (entry.count, *firsts([entry.vector])) == (3, 6.0)


def test_large_contributions_of_several_rounds_are_added_without_new_memory() -> None:
    pending, vectors = contributed(0, 1, lent=[no, yes], vector_bytes=LARGE)
    snapshot = pending.take(2)
    assert snapshot.vector is vectors[0]
    assert firsts(vectors) == [3.0, 2.0]
    assert snapshot.stalenesses == [(1, 1), (0, 1)]
    held = [entry.vector.parts[0].untyped_storage().nbytes() for entry in snapshot.entries]
    assert held == [12, 4]  # the first has the numbers of both


def test_contributions_that_were_added_wait_again_together() -> None:
    """Their round has taken nothing: the next one takes both, and nobody writes to what was sent."""
    pending, vectors = contributed(0, 1, lent=[no, yes], vector_bytes=LARGE)
    pending.give_back(pending.take(2))
    pending.add(Flat([torch.full((3,), 4.0)], vectors[0].layout), 1.0, 2, 0.0, None)
    again = pending.take(3)
    assert firsts(vectors) == [3.0, 2.0]
    assert again.vector is not None and firsts([again.vector]) == [7.0]
    assert again.weight == pending.ledger.taken == 3.0


def test_contributions_that_were_added_expire_together() -> None:
    pending, _ = contributed(0, 1, lent=[no, yes], vector_bytes=LARGE)
    pending.give_back(pending.take(2))
    assert pending.take(5).entries == []  # the second would be in time by itself
    assert pending.ledger.expired == pending.ledger.produced == 2.0


def test_what_is_in_a_checkpoint_is_not_written_to() -> None:
    pending, vectors = contributed(0, 1, lent=[no, yes], vector_bytes=LARGE)
    pending.kept({}, 1)
    assert pending.take(2).vector is not vectors[0]
    assert firsts(vectors) == [1.0, 2.0]


def test_worlds_whose_size_is_no_power_of_two_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of a gradient is no gradient: a division before the sum changes its digits."""
    monkeypatch.setattr(gradient_views, "LEAST_BYTES", 0)
    script = joined(lambda world: trained("plain", {"wait_for": "all"}, world))
    assert [lent for _, lent in VirtualWorld(3).run(script)] == [0, 0, 0]
