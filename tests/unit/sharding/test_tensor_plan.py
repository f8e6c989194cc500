"""Plans for layers that several workers compute together: what is found, what is refused, how it is printed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.sharding.by_tensor import plan_for
from quorate.sharding.tensor.plan import Plan


class Attention(nn.Module):
    """With separate layers, and heads by their number."""

    def __init__(self, width: int = 24, heads: int = 6, *, more: nn.Module | None = None) -> None:
        super().__init__()
        self.n_heads = heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.o_proj = nn.Linear(width, width)
        if more is not None:
            self.more = more


class Model(nn.Module):
    def __init__(self, attention: nn.Module, vocabulary: int = 12, *, tied: bool = True) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, 24)
        self.blocks = nn.ModuleList([attention])
        self.head = nn.Linear(24, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight


def test_what_is_found() -> None:
    plan = quorate.tensor_plan(Model(Attention()), 2)
    inputs = {f"blocks.0.{letter}_proj": "columns" for letter in "qkv"}
    assert plan == inputs | {"blocks.0.o_proj": "rows", "tokens": "embedding", "head": "head"}
    assert plan.piece_of("blocks.0.q_proj") == (12, 24) and plan.piece_of("blocks.0.o_proj") == (24, 12)


def test_the_table() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(3)))
    assert str(quorate.tensor_plan(model, 2)).splitlines() == [
        "module  shape  style    piece",
        "0-2.0   8 x 4  columns  4 x 4",
        "0-2.2   4 x 8  rows     4 x 4",
    ]


@pytest.mark.parametrize(
    ("between", "styles"),
    [
        ([nn.GELU(), nn.Dropout(0.1)], ["columns", "rows"]),
        ([], ["columns", "rows"]),
        ([nn.LayerNorm(8)], []),
        ([nn.Softmax(-1)], []),
        ([nn.PReLU(8)], []),
    ],
)
def test_only_functions_of_single_numbers_are_between_a_pair(between: list[nn.Module], styles: list[str]) -> None:
    plan = quorate.tensor_plan(nn.Sequential(nn.Linear(4, 8), *between, nn.Linear(8, 4)), 2)
    assert list(plan.values()) == styles


def test_what_is_not_understood_stays_whole_and_is_said() -> None:
    odd = quorate.tensor_plan(Model(Attention(more=nn.LayerNorm(4)), vocabulary=1), 2)
    assert odd == {}
    assert odd.why["blocks.0"] == "it has parameters beside its linear layers"
    assert odd.why["tokens"] == odd.why["head"] == "1 entries are too few for 2 workers"
    silent = Attention()
    del silent.n_heads
    assert quorate.tensor_plan(Model(silent), 2).why["blocks.0"] == "it does not say how many heads it has"
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    assert quorate.tensor_plan(layer, 2) == {}


class Gated(nn.Module):
    """A pair by its names, with a norm of the width between."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)


def test_a_norm_between_a_named_pair() -> None:
    plan = quorate.tensor_plan(Gated(), 2)
    assert plan == {} and plan.why[""] == "it has parameters of the width between its linear layers"


@pytest.mark.parametrize(
    ("model", "workers", "words"),
    [
        (Model(Attention(heads=6)), 4, "blocks.0.q_proj has 6 heads of 4, which 4 workers cannot share evenly"),
        (nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 4)), 2, "1 takes 9 neurons, which 2 workers cannot share evenly"),
        (Model(Attention()), 0, "workers must be a whole number"),
        (Tensor(), 2, "tensor_plan takes a torch.nn.Module, not Tensor"),
    ],
)
def test_what_does_not_divide(model: nn.Module, workers: int, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        quorate.tensor_plan(model, workers)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"nobody": "rows"}, "the tensor plan names nobody, but the model has no such module"),
        ({"head": "diagonal"}, "diagonal"),
        ({"tokens": "rows"}, 'the tensor plan has "rows" for tokens, of the class Embedding; it is for a linear layer'),
        ({"tokens": "embedding"}, "tokens and head share their weight"),
        ({}, "cuts no layer"),
        ("columns", "is not a plan"),
    ],
)
def test_plans_that_cannot_be(plan: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        plan_for(Model(Attention()), plan, 2)


def test_a_plan_is_changed_as_a_dictionary() -> None:
    model = Model(Attention())
    plan = quorate.tensor_plan(model, 2)
    del plan["tokens"], plan["head"]
    assert plan_for(model, plan, 2) == plan and isinstance(plan_for(model, dict(plan), 2), Plan)


def test_a_sequence_is_cut_between_norms_only() -> None:
    class Block(nn.Module):
        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.norm, self.attention = norm, Attention()

    good = quorate.tensor_plan(Model(Block(nn.LayerNorm(24))), 2, sequence=True)
    assert good["blocks.0.norm"] == "sequence"
    with pytest.raises(ConfigurationError, match=r"blocks.0.norm, of the class Conv1d, is not cut"):
        quorate.tensor_plan(Model(Block(nn.Conv1d(4, 4, 3))), 2, sequence=True)
    with pytest.raises(ConfigurationError, match="no list"):
        quorate.tensor_plan(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)), 2, sequence=True)


def test_entries_of_tables_with_a_norm_stay_whole() -> None:
    model = Model(Attention())
    model.tokens.max_norm = 1.0
    assert "tokens" not in quorate.tensor_plan(model, 2)
    assert torch.equal(model.head.weight, model.tokens.weight)
