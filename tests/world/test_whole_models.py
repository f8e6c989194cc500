"""Models in stages and along a tensor axis that are whole for a while: in each worker, as in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quorate
from quorate.core.local_tensor import local
from tests.support.foreign_models import LENGTH
from tests.support.ordinary_loops import Cell, ended_for_real
from tests.support.processes import run_real_world
from tests.support.sampled import Few
from tests.support.staged import LENGTH as STAGED_LENGTH
from tests.support.staged import TOKENS, Tied
from tests.support.tensor_trainings import Tied as TiedVocabulary

STEPS = 3


class Grouped(nn.Module):
    """Attention of four query heads and one key head, which two workers hold in full."""

    def __init__(self) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = 4, 1, 4
        self.n_rep = self.n_heads // self.n_kv_heads
        self.wq, self.wo = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.wk, self.wv = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        q = self.wq(x).unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2)
        k, v = (
            layer(x).unflatten(-1, (self.n_kv_heads, self.head_dim)).transpose(1, 2).repeat_interleave(self.n_rep, 1)
            for layer in (self.wk, self.wv)
        )
        return x + self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Fused(nn.Module):
    """Attention whose query, key and value lie in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.c_attn, self.c_proj = 4, nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        return x + self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Language(nn.Module):
    """Attention between a vocabulary that does not divide and a norm with statistics."""

    def __init__(self, attention: Callable[[], nn.Module] = Grouped) -> None:
        super().__init__()
        self.tokens, self.attention = nn.Embedding(61, 16), attention()
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, 61)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.attention(self.tokens(ids))
        return self.head(self.norm(x.flatten(0, 1)).unflatten(0, x.shape[:2]))


class Shifted(nn.Module):
    """A layer with buffers, of which one is in no state dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("shift", torch.randn(8))
        self.register_buffer("scale", torch.rand(8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.scale * torch.tanh(self.linear(x)) + self.shift
        return found


class Buffered(nn.Module):
    """Blocks with buffers, numbers outside of any module, and a recurrent module."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gain = nn.Embedding(11, 8), nn.Parameter(torch.ones(8))
        self.blocks = nn.ModuleList(Shifted() for _ in range(3))
        self.rest = nn.LSTM(8, 11, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) * self.gain
        for block in self.blocks:
            x = x + block(x)
        return self.rest(x)[0]


FUSED = {"tokens": "embedding", "attention.c_attn": "fused", "attention.c_proj": "rows", "head": "head"}


@dataclass(frozen=True)
class Case:
    """A model, and the mesh that divides it."""

    build: Callable[[], nn.Module]
    mesh: dict[str, int]
    length: int = LENGTH
    entries: int = 61
    chosen: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return max(1, self.mesh.get("stages", 1) * self.mesh.get("tensor", 1) * self.mesh.get("shards", 1))


PAIRS = [
    Case(TiedVocabulary, {"tensor": 2}),
    Case(partial(Language, Fused), {"tensor": 2}, chosen={"tensor": FUSED}),
    Case(Language, {"tensor": 2}),
    Case(Tied, {"stages": 2}, STAGED_LENGTH, TOKENS),
    Case(Buffered, {"stages": 2}, 6, 11, {"microbatches": 2}),
]
SQUARES = [
    Case(partial(Language, Fused), {"shards": 2, "tensor": 2}, chosen={"tensor": FUSED}),
    Case(partial(Tied, is_tied=False), {"stages": 2, "shards": 2}, STAGED_LENGTH, TOKENS, {"zero": 2}),
    Case(TiedVocabulary, {"shards": 2, "tensor": 2}, chosen={"zero": 1}),
]


def drawn(case: Case, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, case.entries - 1, (4, case.length), generator=generator)


def logits(model: nn.Module, ids: Tensor) -> Tensor:
    output = model(ids)
    found: Tensor = getattr(output, "logits", output)
    return found


def loss_of(model: nn.Module, case: Case, step: int) -> Tensor:
    ids = drawn(case, step)
    return F.cross_entropy(logits(model, ids).flatten(0, 1), ids.roll(1, 1).flatten())


def generated(model: nn.Module, case: Case, count: int) -> Tensor:
    """Draw so many tokens behind a window."""
    ids = drawn(case, 99)
    for _ in range(count):
        probabilities = logits(model, ids)[:, -1].softmax(-1)
        ids = torch.cat([ids[:, 1:], probabilities.multinomial(1)], 1)
    return ids


def built(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return case.build().double()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)


def trained_alone(case: Case) -> list[dict[str, Tensor]]:
    """Return the state after each step in this process; all shards have the same batches."""
    model, states = built(case), list[dict[str, Tensor]]()
    optimizer = adam(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, case, step).backward()
        optimizer.step()
        states.append({name: x.clone() for name, x in model.state_dict().items()})
    return states


def looked_at(case: Case, world: Any) -> None:
    """Train, and look at the whole model after each step."""
    torch.set_num_threads(1)
    expected = trained_alone(case)
    plain = built(case).eval()
    model = quorate.parallelize(built(case), world.mesh(**case.mesh), **case.chosen)
    optimizer = quorate.distribute(adam(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, case, step).backward()
        optimizer.step()
        pieces = [local(p).clone() for p in model.parameters()]
        with quorate.whole(model) as inside, torch.no_grad():
            state = inside.state_dict()
            assert list(state) == list(expected[step])
            for name, x in state.items():
                torch.testing.assert_close(x, expected[step][name], rtol=0, atol=1e-9, msg=name)
            plain.load_state_dict(state)
            inside.eval()
            for number in range(1 + 2 * world.rank):  # unequally long, and unequally often
                torch.manual_seed(number)
                tokens = generated(inside, case, 2 + world.rank)
                torch.manual_seed(number)
                assert torch.equal(tokens, generated(plain, case, 2 + world.rank))
            inside.train()
            twin = copy.deepcopy(inside).eval()
        assert all(torch.equal(a, local(b)) for a, b in zip(pieces, model.parameters(), strict=True))
        ids = drawn(case, 7)
        with torch.no_grad():
            torch.testing.assert_close(logits(twin, ids), logits(plain, ids), rtol=0, atol=1e-12)
    with quorate.whole(model), torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)
    with quorate.whole(model):
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), 0.5 * expected[-1][name], rtol=0, atol=1e-9)


def looked_at_each(cases: list[Case], world: Any) -> None:
    for case in cases:
        looked_at(case, world)


def test_two_workers_hold_the_whole_model_for_a_while(few: Few) -> None:
    run_real_world(2, partial(looked_at_each, few(PAIRS)), 120.0)


def test_four_workers_hold_the_whole_model_for_a_while(few: Few) -> None:
    run_real_world(4, partial(looked_at_each, few(SQUARES)), 120.0)


def of_branches(cell: Cell) -> None:
    block = quorate.branches([nn.Linear(4, 2), nn.Linear(4, 3)], "concatenate")
    model = quorate.parallelize(nn.Sequential(nn.Linear(4, 4), block), cell.world.mesh(tensor=2), tensor={})
    with quorate.whole(model):
        pass


def trained_inside(cell: Cell) -> None:
    model = quorate.parallelize(Tied(), cell.world.mesh(stages=2))
    ids = torch.zeros(4, STAGED_LENGTH, dtype=torch.int64)
    with quorate.whole(model):
        quorate.forward_backward(model, ids, ids, lambda output, labels: output.sum())


def changed_by_one(cell: Cell) -> None:
    model = quorate.parallelize(Tied(), cell.world.mesh(stages=2))
    with quorate.whole(model), torch.no_grad():
        if cell.world.is_first:
            model.positions.zero_()


@pytest.mark.parametrize(
    ("loop", "sentence"),
    [
        (of_branches, "does not gather quorate.branches"),
        (trained_inside, "leave quorate.whole before quorate.forward_backward"),
        (changed_by_one, "all workers must change parameters alike inside quorate.whole"),
    ],
)
def test_what_is_refused(loop: Any, sentence: str) -> None:
    ended_for_real(loop, "all-reduce").refused(sentence)
