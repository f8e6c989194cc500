"""Models as others write them, small: how they name and repeat their parts, tie weights and keep buffers.

Each is made by a function without arguments; `loss_of(model, batch)` is what it is trained on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKENS, WIDTH, LENGTH, BATCH = 61, 48, 8, 3


class SelfAttention(nn.Module):
    """With its mask in a buffer, as in nanoGPT."""

    bias: Tensor

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.c_attn, self.c_proj, self.heads = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), heads
        self.register_buffer("bias", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(self.bias == 0, -math.inf)
        return self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """28,000 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), SelfAttention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(WIDTH, 4 * WIDTH), "c_proj": nn.Linear(4 * WIDTH, WIDTH)})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x))))


class NanoShape(nn.Module):
    """Blocks in a `ModuleList` of a `ModuleDict`, and the embedding tied to the head."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(TOKENS, WIDTH),
                "wpe": nn.Embedding(LENGTH, WIDTH),
                "h": nn.ModuleList(Block() for _ in range(2)),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, ids: Tensor) -> Tensor:
        parts: Any = self.transformer
        x = parts["wte"](ids) + parts["wpe"](torch.arange(ids.shape[1]))
        for block in parts["h"]:
            x = block(x)
        return self.lm_head(parts["ln_f"](x))


class Residual(nn.Module):
    """Two convolutions, each with statistics of its batches."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1, self.act1 = nn.BatchNorm2d(after), nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResidualNetwork(nn.Module):
    """A stem, two stages of two blocks, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32)
        self.layer1 = nn.Sequential(Residual(32, 32), Residual(32, 32))
        self.layer2 = nn.Sequential(Residual(32, 48, 2), Residual(48, 48))
        self.fc = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x)))))
        return self.fc(x.mean((-2, -1)))


class EncoderDecoder(nn.Module):
    """torch's own layers, in two stacks of unlike blocks; both ends share one embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, chosen = nn.Embedding(TOKENS, WIDTH), {"dropout": 0.0, "batch_first": True}
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 4, 96, **chosen), 2)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, 4, 96, **chosen), 2)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.shared.weight

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        kept = self.encoder(self.shared(ids.flip(1)))
        return self.head(self.decoder(self.shared(ids), kept, tgt_mask=mask, tgt_is_causal=True))


def gpt2() -> nn.Module:
    """That of `transformers`, from a configuration."""
    from transformers import GPT2Config, GPT2LMHeadModel

    rates = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "use_cache": False}
    sizes = {"vocab_size": TOKENS, "n_positions": LENGTH, "n_embd": WIDTH, "n_layer": 2, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(**sizes, **rates))


def llama() -> nn.Module:
    """That of `transformers`, from a configuration; its positions are buffers that no state_dict has."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=TOKENS,
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=LENGTH,
            use_cache=False,
        )
    )


def on_tokens(model: Any, ids: Tensor) -> Tensor:
    """Of the next token."""
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def of_its_own(model: Any, ids: Tensor) -> Tensor:
    """What a model of `transformers` calculates itself."""
    return model(input_ids=ids[:, :-1], labels=ids[:, :-1]).loss


def on_images(model: Any, ids: Tensor) -> Tensor:
    """Of pictures that are made of the tokens."""
    images = (ids.double()[:, :, None, None] * torch.linspace(0.1, 1.0, 192).view(1, 1, 8, 24)).sin().mean(1)
    return F.cross_entropy(model(images.view(-1, 3, 8, 8).float()), ids[:, 0] % 10)


@dataclass(frozen=True)
class Foreign:
    """A model, what it is trained on, and the names of the blocks that a person would choose."""

    make: Callable[[], nn.Module]
    loss_of: Callable[[Any, Tensor], Tensor]
    blocks: tuple[str, ...]
    tied: tuple[str, str] | None = None


WRITTEN = {
    "nanoGPT": Foreign(
        NanoShape, on_tokens, ("transformer.h.0", "transformer.h.1"), ("transformer.wte.weight", "lm_head.weight")
    ),
    "residual": Foreign(ResidualNetwork, on_images, ("layer1.0", "layer1.1", "layer2.0", "layer2.1")),
    "encoder-decoder": Foreign(
        EncoderDecoder,
        on_tokens,
        ("encoder.layers.0", "encoder.layers.1", "decoder.layers.0", "decoder.layers.1"),
        ("shared.weight", "head.weight"),
    ),
}
TRANSFORMERS = {
    "gpt2": Foreign(
        gpt2, of_its_own, ("transformer.h.0", "transformer.h.1"), ("transformer.wte.weight", "lm_head.weight")
    ),
    "llama": Foreign(llama, of_its_own, ("model.layers.0", "model.layers.1")),
}
FOREIGN = WRITTEN | TRANSFORMERS


def batch(step: int, rank: int) -> Tensor:
    """Tokens for one worker."""
    return torch.randint(0, TOKENS, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(1000 * step + rank))


def parameter(model: nn.Module, name: str) -> Tensor:
    """By a name that a tied one may have beside another."""
    module, _, last = name.rpartition(".")
    found: Tensor = getattr(model.get_submodule(module), last)
    return found
