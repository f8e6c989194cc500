"""Sparse attention in unedited models of `transformers`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quorate
from quorate.attention import Window, pattern_mask

pytest.importorskip("transformers", reason="transformers is not installed; make test-interop installs it")

LENGTH, PATTERN = 37, Window(block=4, width=3)


def model(kind: str) -> tuple[Any, bool]:
    """A small model with random parameters, and whether it is causal."""
    import transformers

    torch.manual_seed(2)
    sizes = {
        "vocab_size": 50,
        "hidden_size": 16,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 24,
    }
    if kind == "bert":
        config = transformers.BertConfig(**sizes, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
        return transformers.BertForMaskedLM(config), False
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config), True


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_it_is_the_attention_of_the_model_with_a_mask(kind: str) -> None:
    network, is_causal = model(kind)
    ids = torch.randint(0, 50, (2, LENGTH))
    padding = torch.ones(2, LENGTH, dtype=torch.bool)
    padding[1, 30:] = False
    network.set_attn_implementation("sdpa")
    whole = pattern_mask(PATTERN, LENGTH, is_causal=is_causal) & padding[:, None, None]
    dense = network(input_ids=ids, attention_mask=whole).logits
    quorate.attention.register(PATTERN)
    network.set_attn_implementation("quorate")
    sparse = network(input_ids=ids, attention_mask=padding.long()).logits
    assert (sparse - dense)[padding].abs().max() < 1e-5
    everywhere = network(input_ids=ids).logits
    assert (everywhere - sparse)[0].abs().max() < 1e-5
    gradients = [
        torch.autograd.grad(x[padding].square().mean(), network.get_input_embeddings().weight)[0]
        for x in (sparse, dense)
    ]
    assert (gradients[0] - gradients[1]).abs().max() < 1e-5


def test_it_generates_what_a_pass_over_the_whole_text_chooses() -> None:
    network, _ = model("llama")
    quorate.attention.register(PATTERN)
    network.set_attn_implementation("quorate")
    ids = torch.randint(0, 50, (1, 20))
    written = network.eval().generate(ids, max_new_tokens=8, do_sample=False)
    with torch.no_grad():
        chosen = network(written).logits.argmax(-1)
    assert torch.equal(chosen[:, 19:-1], written[:, 20:])
