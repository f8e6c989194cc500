"""Models that calculate on pieces of sequences, on real workers: the numbers of one process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError, Mismatch
from quorate.sharding.sequence import InPieces
from quorate.wire import current
from tests.support.processes import run_real_world
from tests.support.sampled import Few
from tests.support.sequence_trainings import Case, Language, in_pieces, whole
from tests.support.tensor_trainings import End
from tests.world.test_tensor_parallel import far


def all_of(cases: Sequence[Case], world: Any) -> list[End]:
    return [in_pieces(case, world) for case in cases]


def check(cases: Sequence[Case], workers: int) -> None:
    for case, *found in zip(cases, *run_real_world(workers, partial(all_of, cases), 100.0), strict=True):
        wanted = whole(case)
        for rank, end in enumerate(found):
            same = wanted[rank * len(wanted) // workers]
            if rank < case.mesh["tensor"]:
                assert end.losses == pytest.approx(same.losses, rel=1e-9), case
            assert end.norms == pytest.approx(same.norms, rel=1e-9), case
            assert far(end.gradients, same.gradients) < 1e-9, case
            assert far(end.parameters, same.parameters) < 1e-9, case


def test_two_workers_share_sequences() -> None:
    """Of lengths that divide, and that do not."""
    check([Case({"tensor": 2}, length, by=by) for length, by in ((8, "heads"), (11, "heads"), (11, "ring"))], 2)


def test_four_workers_with_shards_and_with_replicas(few: Few) -> None:
    """And two heads of keys and values among four workers, where these go round."""
    both, apart = {"shards": 2, "tensor": 2}, {"replicas": 2, "tensor": 2}
    local = {"sync_every": 2, "momentum": "average"}
    rings = [Case({"tensor": 4}, 11, by="ring"), Case(both, 8, by="ring")]
    check(few([Case(both), Case(apart), Case(apart, strategy="local-sgd", settings=local, clip=None), *rings]), 4)


def ends_of(world: Any) -> list[str | int]:
    """What is refused, what differs, and what one attention has sent, forward and backward."""
    torch.set_num_threads(1)
    model = quorate.parallelize(Language(8), world.mesh(tensor=2), tensor="sequence")
    place = current.here()
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(2, 6, 8, 4, generator=draw)
    odd, short, other = torch.randn(1, 3, 2, 4), torch.arange(1), torch.full((1, 4), world.rank)
    alone = quorate.parallelize(torch.nn.Linear(3, 2), world.mesh(tensor=2), tensor="sequence")
    found: list[str | int] = []
    together = place.context(InPieces).together
    assert together is not None
    for call in (
        lambda: quorate.sequence_attention(odd, odd, odd),
        lambda: quorate.sequence_attention(x, x[:, :, :4], x),
        lambda: quorate.sequence_attention(x, x[:, :2], x[:, :2]),
        lambda: quorate.sequence_attention(x, x, x, dropout_p=0.1, by="ring"),
        lambda: quorate.sequence_attention(x, x, x, torch.ones(3, 3)),
        lambda: quorate.sequence_piece(short, 0),
        lambda: quorate.sequence_piece(model.scale.to_local(), 0),
        lambda: quorate.sequence_mean(x, x[0]),
        lambda: quorate.sequence_piece(other),
        lambda: alone(torch.zeros(1, 3)),
    ):
        try:
            call()
            found.append("it was not refused")
        except (ConfigurationError, Mismatch) as error:
            found.append(str(error))
    here = together.piece(x, 2).requires_grad_()
    sent = together.traffic.meter.bytes_out
    for by, operation in (("heads", "all_to_all"), ("ring", "exchange")):
        before = sent[operation]
        result = quorate.sequence_attention(here, here, here, by=by)  # type: ignore[arg-type]
        middle = sent[operation]
        result.sum().backward()
        found += [middle - before, sent[operation] - middle]
    for by in ("heads", "ring"):
        call: Any = {"pattern": "window:width=2,block=2", "is_causal": True}
        result = quorate.sequence_attention(here, here, here, by=by, **call)
        wanted = together.piece(quorate.sparse_attention(x, x, x, **call), 2)
        found.append(int((result - wanted).abs().max() > 1e-6))
    return found


REFUSED = (
    "query has 3 heads, which 2 workers cannot share evenly: 3 is not a multiple of 2",
    "sequence_attention is of one sequence",
    "query has 6 heads, key 2 and value 2; they are as many, or with enable_gqa=True",
    'by="ring" does not support attn_mask and dropout_p',
    "it is of the whole sequence, (..., 16, 16)",
    "a sequence of 1 positions cannot be divided among 2 workers",
    "sequence_piece divides the model's inputs, but this tensor has a gradient",
    "weights are of the shape",
    "were given different ones (call 1 of sequence_piece); load data with quorate.loader",
    "has not called quorate.sequence_attention",
)


def test_what_is_refused_and_what_is_sent() -> None:
    *refused, forward, backward, forward_ring, backward_ring, by_heads, by_ring = run_real_world(2, ends_of, 60.0)[0]
    assert by_heads == by_ring == 0, "sparse attention of pieces is that of the sequence"
    for told, words in zip(refused, REFUSED, strict=True):
        assert words in str(told)
    whole_bytes = 2 * 6 * 8 * 4 * 4
    assert forward == backward == whole_bytes  # 4 (T - 1) / T^2 of it
    assert (forward_ring, backward_ring) == (whole_bytes, 3 * whole_bytes)  # 2 (T - 1) / T, and 2 (2 T - 1) / T


class Dropped(nn.Module):
    """Dropout before attention; what it dropped is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.linear, self.masks = nn.Dropout(0.5), nn.Linear(4, 4), list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(x)
        self.masks.append((x == 0).detach())
        one = x.unsqueeze(1)
        found: Tensor = self.linear(quorate.sequence_attention(one, one, one, by="ring").squeeze(1))
        return found


def dropped(world: Any) -> tuple[list[Tensor], Tensor]:
    """The masks of two calls on three positions and on two, and the next number that is drawn."""
    torch.manual_seed(1 + world.rank)
    model = quorate.parallelize(Dropped(), world.mesh(tensor=2), tensor="sequence")
    for _ in range(2):
        model(quorate.sequence_piece(torch.ones(16, 5, 4)))
    return model.masks, torch.rand(())


def test_dropout_differs_between_pieces_and_later_draws_do_not() -> None:
    (first, drawn), (second, other) = run_real_world(2, dropped, 60.0)
    assert [mask.shape[1] for mask in (*first, *second)] == [3, 3, 2, 2]
    assert not any(torch.equal(one[:, :2], two) for one, two in zip(first, second, strict=True))
    assert torch.equal(drawn, other)
