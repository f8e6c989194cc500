"""Sparse attention in place of torch's module, and as the function of models of `transformers`."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quorate
from quorate.attention import BigBird, SparseMultiheadAttention, Window, pattern_mask, sparsify
from quorate.attention.transformers import attention_of_model
from quorate.core.errors import ConfigurationError, MissingExtra

LENGTH, WIDTH, HEADS = 21, 8, 2
PATTERN = BigBird(block=4, width=1)


def seen(layer: int = 0) -> Tensor:
    """The mask of positions of the pattern."""
    return pattern_mask(PATTERN, LENGTH, layer=layer, heads=HEADS)


def hides(mask: Tensor, batch: int = 2) -> Tensor:
    """The mask as torch's module takes it: True hides."""
    return ~mask.expand(batch, -1, -1, -1).flatten(0, 1)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["none", "padding", "mask", "both"])
def test_it_is_the_module_of_torch_with_a_mask(batch_first: bool, bias: bool, kind: str) -> None:
    torch.manual_seed(1)
    dense = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=batch_first, dtype=torch.float64)
    sparse = SparseMultiheadAttention(
        WIDTH, HEADS, bias=bias, batch_first=batch_first, pattern=PATTERN, dtype=torch.float64
    )
    sparse.load_state_dict(dense.state_dict())
    x = torch.randn(*((2, LENGTH) if batch_first else (LENGTH, 2)), WIDTH, dtype=torch.float64)
    padding = torch.arange(LENGTH) >= torch.tensor([[LENGTH], [15]]) if kind in ("padding", "both") else None
    mask = torch.randn(LENGTH, LENGTH, dtype=torch.float64) if kind in ("mask", "both") else None
    own = torch.zeros(2 * HEADS, LENGTH, LENGTH, dtype=torch.float64).masked_fill(hides(seen()), -torch.inf)
    if padding is not None:
        own = own.masked_fill(padding.repeat_interleave(HEADS, 0).unsqueeze(1), -torch.inf)
    whole, _ = dense(x, x, x, attn_mask=own if mask is None else own + mask, need_weights=False)
    attended, weights = sparse(x, x, x, key_padding_mask=padding, attn_mask=mask)
    assert weights is None
    assert (attended - whole).abs().max() < 1e-12
    one = x[0] if batch_first else x[:, 0]
    assert sparse(one, one, one)[0].shape == one.shape


@pytest.mark.parametrize("is_training", [False, True])
def test_an_encoder_calls_it(is_training: bool) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(is_training)
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    with torch.set_grad_enabled(is_training):
        for each in model.layers:
            each.self_attn.register_forward_pre_hook(lambda *_: None)  # which keeps torch from its own shortcut
        whole = x
        for number, each in enumerate(model.layers):
            whole = each(whole, src_mask=hides(seen(number)))
        parameters = list(model.parameters())
        assert sparsify(model, PATTERN) is model
        assert (model(x) - whole).abs().max() < 1e-12
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sparsify(nn.Linear(2, 2), "window"), "Linear has no torch.nn.MultiheadAttention"),
        (lambda: sparsify(nn.Sequential(nn.MultiheadAttention(4, 2, kdim=3)), "window"), "0 has keys of another width"),
        (lambda: SparseMultiheadAttention(4, 2, pattern="windy"), 'unknown attention pattern "windy"'),
        (
            lambda: SparseMultiheadAttention(4, 2, pattern="window")(*[torch.ones(3, 1, 4)] * 3, need_weights=True),
            "call it with need_weights=False",
        ),
    ],
)
def test_other_modules_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


class _Functions:
    """A registry as that of `transformers`."""

    known: dict[str, Any] = {}  # noqa: RUF012

    @classmethod
    def register(cls, name: str, function: Any) -> None:
        cls.known[name] = function


def test_models_of_transformers_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    masking = SimpleNamespace(AttentionMaskInterface=_Functions, flash_attention_mask=None)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AttentionInterface=_Functions))  # type: ignore[arg-type]
    with pytest.raises(MissingExtra, match="needs transformers"):
        quorate.attention.register("window")
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", masking)  # type: ignore[arg-type]

    class _Kept(_Functions):
        known: dict[str, Any] = {}  # noqa: RUF012

    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AttentionInterface=_Kept))  # type: ignore[arg-type]
    quorate.attention.register(PATTERN)
    assert "quorate" in _Functions.known
    q, k, v = (torch.randn(2, heads, LENGTH, 4, dtype=torch.float64) for heads in (HEADS, 1, 1))
    layer = SimpleNamespace(training=True, layer_idx=3, is_causal=False)
    padding = torch.arange(LENGTH) < torch.tensor([[LENGTH], [15]])
    attended, weights = _Kept.known["quorate"](layer, q, k, v, padding, scaling=0.3, dropout=0.0, use_cache=True)
    whole = F.scaled_dot_product_attention(q, k, v, seen(3) & padding[:, None, None], scale=0.3, enable_gqa=True)
    assert weights is None
    assert (attended - whole.transpose(1, 2)).abs().max() < 1e-12


def test_the_last_positions_of_a_sequence() -> None:
    """As in generation, with keys of earlier calls."""
    q, k, v = (torch.randn(1, 2, LENGTH, 4) for _ in range(3))
    layer: Any = SimpleNamespace(training=False, layer_idx=0)
    call = {"pattern": Window(block=4, width=2), "dropout": 0.5, "scaling": None}
    every = attention_of_model(layer, q, k, v, None, options={}, **call)  # type: ignore[arg-type]
    last = attention_of_model(layer, q[:, :, -3:], k, v, None, options={"is_causal": True}, **call)  # type: ignore[arg-type]
    assert torch.equal(last, every[:, -3:])
    for options, keys, words in (
        ({"sliding_window": 7}, k, "sliding_window=7"),
        ({"is_causal": False}, torch.randn(1, 2, 30, 4), "21 queries attend to 30 keys of another sequence"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            attention_of_model(layer, q, keys, keys, None, options=options, **call)  # type: ignore[arg-type]
