"""Sparse attention equals dense attention with the mask of the pattern, and so do its gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import quorate
from quorate.attention import Dense, Window, pattern_mask, sparse
from quorate.attention.flex import bias_of, block_mask_of
from quorate.attention.pattern import Blocks, block_mask
from quorate.core.errors import ConfigurationError
from tests.unit.attention.drawings import BLOCK, PATTERNS

BATCH, HEADS, KEY_HEADS, SIZE = 2, 4, 2, 6


def tensors(length: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Query, key, value and the gradient of the output."""
    draw = torch.Generator().manual_seed(length)
    shapes = [(heads, length, size) for heads, size in ((HEADS, SIZE), (KEY_HEADS, SIZE), (KEY_HEADS, 5), (HEADS, 5))]
    drawn = [torch.randn(BATCH, *shape, generator=draw, dtype=torch.float64).to(dtype) for shape in shapes]
    return [*(x.requires_grad_() for x in drawn[:3]), drawn[3]]


def results(output: Tensor, q: Tensor, k: Tensor, v: Tensor, gradient: Tensor) -> list[Tensor]:
    """The output and the three gradients."""
    return [output, *torch.autograd.grad(output, (q, k, v), gradient)]


def largest_difference(results: list[Tensor], others: list[Tensor]) -> float:
    """The largest difference of a number."""
    return max((a - b).abs().max().item() for a, b in zip(results, others, strict=True))


def hidden(kind: str, length: int) -> tuple[Tensor | None, Any, Tensor]:
    """A mask and documents of one kind, and the mask of positions that says the same."""
    if kind == "padding":
        padding = torch.arange(length) < torch.tensor([[length], [length - 11]])
        return padding.view(BATCH, 1, 1, length), None, padding.view(BATCH, 1, 1, length)
    if kind == "documents":
        lengths = [30, 0, 21, length - 51]
        numbers = torch.arange(4).repeat_interleave(torch.tensor(lengths))
        return None, lengths, numbers.unsqueeze(1) == numbers
    draw = torch.Generator().manual_seed(5)
    if kind == "booleans":
        mask = torch.rand(HEADS, length, length, generator=draw) > 0.3
        return mask, None, mask
    if kind == "numbers":
        mask = torch.randn(BATCH, 1, 1, length, generator=draw, dtype=torch.float64)
        return mask, None, mask
    return None, None, torch.ones(1, 1, dtype=torch.bool)


@pytest.mark.parametrize("kind", ["none", "padding", "documents", "booleans", "numbers"])
@pytest.mark.parametrize("length", [96, 101])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", PATTERNS)
def test_it_is_masked_dense_attention(name: str, is_causal: bool, length: int, kind: str) -> None:
    q, k, v, gradient = tensors(length)
    mask, documents, seen = hidden(kind, length)
    positions = pattern_mask(PATTERNS[name], length, is_causal=is_causal, layer=3, heads=HEADS)
    whole = positions & seen if seen.dtype == torch.bool else seen.masked_fill(~positions, -torch.inf)
    dense = F.scaled_dot_product_attention(q, k, v, whole, scale=0.3, enable_gqa=True)
    sparse = quorate.sparse_attention(
        q, k, v, PATTERNS[name], mask, is_causal=is_causal, scale=0.3, enable_gqa=True, documents=documents, layer=3
    )
    assert largest_difference(results(sparse, q, k, v, gradient), results(dense, q, k, v, gradient)) < 1e-12


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_dtypes(dtype: torch.dtype, tolerance: float) -> None:
    q, k, v, gradient = tensors(200, dtype)
    mask = pattern_mask(PATTERNS["window"], 200, is_causal=True)
    sparse = quorate.sparse_attention(q, k, v, PATTERNS["window"], is_causal=True, enable_gqa=True)
    assert sparse.dtype == dtype
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    dense = F.scaled_dot_product_attention(*exact, mask, enable_gqa=True)
    ours = [x.double() for x in results(sparse, q, k, v, gradient)]
    assert largest_difference(ours, results(dense, *exact, gradient.double())) < tolerance


def test_gradients_in_double_precision() -> None:
    q, k, v = (
        x.detach()[:1, :heads, :, :3].clone().requires_grad_()
        for x, heads in zip(tensors(11)[:3], (2, 1, 1), strict=True)
    )

    def attended(q: Tensor, k: Tensor, v: Tensor, dropout_p: float) -> Tensor:
        torch.manual_seed(3)
        return quorate.sparse_attention(
            q, k, v, Window(width=2, block=4), dropout_p=dropout_p, is_causal=True, enable_gqa=True, documents=[5, 6]
        )

    for dropout_p in (0.0, 0.4):
        assert torch.autograd.gradcheck(attended, (q, k, v, dropout_p))


def test_dropout_leaves_the_mean() -> None:
    q, k, v, _ = tensors(40)
    pattern = Window(width=1, block=8)
    torch.manual_seed(1)
    dropped = [quorate.sparse_attention(q, k, v, pattern, dropout_p=0.25, enable_gqa=True) for _ in range(300)]
    mean = quorate.sparse_attention(q, k, v, pattern, enable_gqa=True)
    assert (torch.stack(dropped).mean(0) - mean).abs().mean() < 0.05 < (dropped[0] - mean).abs().mean()


def test_no_large_tensor_exists() -> None:
    """Nor is one kept for the backward pass."""
    length = 2048

    class Sizes(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                Sizes.largest = max(Sizes.largest, result.numel())
            return result

    q = torch.randn(1, 4, length, 16, requires_grad=True)
    with Sizes():
        quorate.sparse_attention(q, q, q, "window", is_causal=True).sum().backward()
    assert Sizes.largest < length**2 / 10


def test_where_all_blocks_are_in_the_pattern_it_is_the_attention_of_torch() -> None:
    q, k, v, _ = (x.float() for x in tensors(20))
    for pattern in (Dense(), "window:width=9"):
        attended = quorate.sparse_attention(q, k, v, pattern, is_causal=True, enable_gqa=True)
        assert torch.equal(attended, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
    mask, documents, seen = hidden("documents", 101)
    q, k, v, _ = tensors(101)
    attended = quorate.sparse_attention(q, k, v, "dense", mask, is_causal=True, enable_gqa=True, documents=documents)
    dense = F.scaled_dot_product_attention(q, k, v, seen.tril(), enable_gqa=True)
    assert torch.equal(attended, dense)


def test_blocks_without_a_common_document_are_not_computed() -> None:
    q = torch.randn(1, 2, 160, 4)
    lengths, numbers = [30, 50, 0, 40, 40], torch.arange(5).repeat_interleave(torch.tensor([30, 50, 0, 40, 40]))
    pattern = Dense(block=8)
    with FlopCounterMode(display=False) as counter:
        attended = quorate.sparse_attention(q, q, q, pattern, documents=lengths)
    wanted = quorate.sparse_attention(q, q, q, pattern, documents=numbers)
    assert torch.allclose(attended, wanted, atol=1e-6)
    blocks = 4 * 4 + 7 * 7 - 1 + 2 * 5 * 5  # documents begin at the positions 0, 30, 80 and 120; two share a block
    assert blocks <= counter.get_total_flops() / (2 * 4 * 4 * 8 * 8) <= 1.2 * blocks < 20 * 20 / 2


def test_autocast_and_more_dimensions() -> None:
    q = torch.randn(2, 3, 1, 50, 8)
    with torch.autocast("cpu", torch.bfloat16):
        attended = quorate.sparse_attention(q, q, q, Window(width=1, block=16))
    assert attended.dtype == torch.bfloat16
    assert attended.shape == q.shape
    numbers = (torch.arange(50) // 10).expand(2, 3, 50)
    each = quorate.sparse_attention(q, q, q, Window(width=1, block=16), documents=numbers)
    assert torch.equal(
        each[1, 2], quorate.sparse_attention(*[q[1, 2]] * 3, Window(width=1, block=16), documents=[10] * 5)
    )


def _in_tables(counts: Tensor, indices: Tensor) -> Tensor:
    """The blocks that tables of flex_attention name, (1, heads, rows, columns)."""
    is_named = torch.arange(indices.shape[-1]) < counts.unsqueeze(-1)
    return torch.zeros_like(is_named).scatter_(-1, indices.long(), is_named)


@pytest.mark.parametrize("kind", ["none", "padding", "documents", "booleans", "numbers"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_blocks_of_flex_attention(kind: str, is_causal: bool) -> None:
    """GPUs calculate full blocks, and of partial ones the pairs of positions that a function names."""
    length, pattern = 101, PATTERNS["bigbird"]
    q = tensors(length)[0]
    mask, documents, seen = hidden(kind, length)
    count = -(-length // BLOCK)
    blocks = block_mask(Blocks(pattern, count, is_causal, heads=HEADS))
    numbers = sparse.document_numbers(documents, q.shape[:1], length, q.device)
    unseen = sparse._hidden(mask, numbers, q, BLOCK, count, is_causal=is_causal, mask=blocks)
    tables = block_mask_of(blocks, unseen, BLOCK, q, is_causal=is_causal)
    partial, full = (
        _in_tables(*pair).repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)[..., :length, :length]
        for pair in (
            (tables.kv_num_blocks, tables.kv_indices),
            (tables.full_kv_num_blocks, tables.full_kv_indices),
        )
    )
    by_function = create_mask(tables.mask_mod, BATCH, HEADS, length, length, device="cpu")
    positions = pattern_mask(pattern, length, is_causal=is_causal, heads=HEADS)
    assert torch.equal(
        full | partial & by_function,
        (positions & (seen if seen.dtype == torch.bool else True)).expand(BATCH, -1, -1, -1),
    )
    bias = bias_of(unseen)
    assert (bias is None) == (kind != "numbers")
    if bias is not None:
        places = (torch.tensor(1), torch.tensor(0), torch.tensor(5), torch.arange(length))
        assert torch.equal(bias(torch.zeros(()), *places), seen[1, 0, 0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": torch.zeros(5, 4)}, r"takes floating-point tensors of \(..., heads, positions, head size\)"),
        ({"key": torch.zeros(1, 2, 9, 4)}, "of the same positions, in one dtype"),
        ({"key": torch.zeros(1, 2, 5, 6)}, "the same size, not 4, 6"),
        ({"key": torch.zeros(1, 1, 5, 4)}, "query has 2 heads, key 1 and value 2"),
        ({"query": torch.zeros(1, 4, 5, 4)}, "with enable_gqa=True those of query a multiple"),
        ({"attn_mask": torch.ones(4, 4)}, r"of the shape \(4, 4\), which does not fit \(1, 2, 5, 5\)"),
        ({"attn_mask": torch.ones(5, 5).int()}, "it must have booleans or floating-point numbers"),
        ({"attn_mask": torch.ones(5, 5, requires_grad=True)}, "requires a gradient"),
        ({"documents": [2, 4]}, "documents have 6 positions by their lengths, and the sequence has 5"),
        ({"documents": torch.zeros(4)}, r"documents are of the shape \(4,\)"),
        ({"dropout_p": 1.5}, "dropout_p is 1.5"),
        ({"pattern": "bird"}, 'unknown attention pattern "bird"'),
    ],
)
def test_wrong_arguments(change: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {name: torch.zeros(1, 2, 5, 4) for name in ("query", "key", "value")}
    with pytest.raises(ConfigurationError, match=words):
        quorate.sparse_attention(**(usual | {"pattern": "window"} | change))
