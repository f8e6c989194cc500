"""Training of models whose layers several workers compute together, and the same in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support import foreign_models
from tests.support.foreign_models import LENGTH, TOKENS, WIDTH
from tests.support.joined import joined
from tests.support.layered import layered

BATCH, STEPS = 4, 3


def mlp() -> nn.Module:
    """Two pairs, a norm, and a layer that nobody shares."""
    pair = lambda: nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))  # noqa: E731
    return nn.Sequential(pair(), nn.LayerNorm(12), pair(), nn.Linear(12, 5))


def bert() -> nn.Module:
    """That of `transformers`, from a configuration; with an entry for padding, and a bias that is tied."""
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"vocab_size": 62, "hidden_size": WIDTH, "intermediate_size": 96, "max_position_embeddings": LENGTH}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForMaskedLM(BertConfig(**sizes, **rates, num_hidden_layers=2, num_attention_heads=4))


def gpt2() -> nn.Module:
    """With a vocabulary of which the second worker has an entry less."""
    from transformers import GPT2Config, GPT2LMHeadModel

    rates = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "use_cache": False}
    sizes = {"vocab_size": 61, "n_positions": LENGTH, "n_embd": WIDTH, "n_layer": 2, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(**sizes, **rates))


class Tied(nn.Module):
    """A tied vocabulary, of which the last worker has fewer entries, around a pair of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(61, 16, padding_idx=60)
        self.inside = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.head = nn.Linear(16, 61)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.inside(self.tokens(ids)))
        return logits


class SparseHeads(nn.Module):
    """Attention whose heads see random blocks of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.n_heads = 4
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = quorate.sparse_attention(q, k, v, "bigbird:block=1,width=1,random=1", is_causal=True)
        attended: Tensor = self.o_proj(y.transpose(1, 2).flatten(2))
        return attended


def sparse() -> nn.Module:
    """One such attention between a vocabulary and logits."""
    return nn.Sequential(nn.Embedding(TOKENS, WIDTH), SparseHeads(), nn.Linear(WIDTH, TOKENS))


def next_token(model: Any, ids: Tensor) -> Tensor:
    """The loss of each next token."""
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def of_its_own(model: Any, ids: Tensor) -> Tensor:
    """What a model of `transformers` calculates itself."""
    ids = ids[:, :-1].contiguous()
    loss: Tensor = model(input_ids=ids, labels=ids).loss
    return loss


def images(model: Any, ids: Tensor) -> Tensor:
    """A loss of numbers made of tokens."""
    x = (ids[:, :1].double() * torch.linspace(0.1, 1.0, 12)).sin().float()
    return F.cross_entropy(model(x), ids[:, 0] % 5)


@dataclass(frozen=True)
class Cut:
    """A model, what it is trained on, and how many of its layers are to be cut."""

    make: Callable[[], nn.Module]
    loss_of: Callable[[Any, Tensor], Tensor] = of_its_own
    styles: dict[str, int] = field(default_factory=dict)


MODELS = {
    "mlp": Cut(mlp, images, {"columns": 2, "rows": 2}),
    "tied": Cut(Tied, next_token, {"columns": 1, "rows": 1, "embedding": 1, "head": 1}),
    "sparse": Cut(sparse, next_token, {"columns": 3, "rows": 1, "embedding": 1, "head": 1}),
    "gpt2": Cut(gpt2, styles={"fused": 2, "columns": 2, "rows": 4, "embedding": 1, "head": 1}),
    "llama": Cut(foreign_models.llama, styles={"columns": 10, "rows": 4}),
    "bert": Cut(bert, styles={"columns": 8, "rows": 4, "embedding": 1, "head": 1}),
}


@dataclass(frozen=True)
class Case:
    """One training; `mesh` is what `world.mesh` is given."""

    model: str = "mlp"
    mesh: dict[str, int] = field(default_factory=lambda: {"tensor": 2})
    strategy: str = "all-reduce"
    settings: dict[str, Any] = field(default_factory=dict)
    zero: int = 3
    clip: float | None = 0.05
    sequence: bool = False
    optimizer: str = "sgd"


@dataclass
class End:
    """What is compared."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, Tensor]
    """After the first backward pass, before they are clipped; mean of a replica."""
    parameters: dict[str, Tensor]


def batch(step: int, number: int) -> Tensor:
    """The one of these that all workers of a tensor group have."""
    draw = torch.Generator().manual_seed(1000 * step + number)
    return torch.randint(0, TOKENS, (BATCH, LENGTH + 1), generator=draw)


def whole(p: Any) -> Tensor:
    """All of a tensor that may be in pieces."""
    found: Tensor = p.full_tensor() if hasattr(p, "full_tensor") else p
    return found.detach().clone()


def optimizer_of(model: nn.Module, name: str = "sgd") -> torch.optim.Optimizer:
    if name != "sgd":
        return layered(name, model.named_parameters())
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(case: Case, model: Any, optimizer: Any, backward: Callable[[int], float]) -> End:
    losses, norms, gradients = [], [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        losses.append(backward(step))
        if step == 0:
            gradients = {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        if case.clip is not None:
            norms.append(float(whole(torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip))))
        optimizer.step()
    if hasattr(optimizer, "finish"):
        optimizer.finish()
    return End(losses, norms, gradients, {name: whole(p) for name, p in model.named_parameters()})


def cut(case: Case, world: Any) -> End:
    """On one of several workers; their models begin differently."""
    torch.set_num_threads(1)
    mesh = world.mesh(**case.mesh)
    torch.manual_seed(1 + world.rank)
    model = MODELS[case.model].make()
    plan = quorate.tensor_plan(model, case.mesh["tensor"], sequence=case.sequence)
    made = quorate.parallelize(model, mesh, zero=case.zero, tensor=plan)
    number = world.rank // case.mesh["tensor"]
    return distributed(case, made, range(number, number + 1))


def distributed(case: Case, model: Any, batches: range) -> End:
    """On the mean of the losses of `batches`, of which the first one's is kept."""
    about = MODELS[case.model]
    optimizer = quorate.distribute(optimizer_of(model, case.optimizer), model, case.strategy, **case.settings)

    def backward(step: int) -> float:
        losses = [about.loss_of(model, batch(step, number)) for number in batches]
        torch.stack(losses).mean().backward()
        return losses[0].item()

    return train(case, model, optimizer, backward)


def whole_replicas(case: Case, workers: int) -> list[End]:
    """The same of workers that hold the whole model each."""
    replicas = case.mesh.get("replicas", 1)
    each = workers // case.mesh["tensor"] // replicas

    def one(world: Any) -> End:
        torch.manual_seed(1)
        return distributed(case, MODELS[case.model].make(), range(each * world.rank, each * (world.rank + 1)))

    return VirtualWorld(replicas).run(joined(one))


def kept(case: Case, root: Path, until: int, world: Any) -> dict[str, Tensor]:
    """The parameters at step `until` of a training that goes on from the newest checkpoint in `root`, saves one at the
    end, and has the same two batches in each step, however many share them."""
    torch.set_num_threads(1)
    current.here().context(CheckpointContext).root = root
    torch.manual_seed(1 + world.rank)
    about, model = MODELS[case.model], MODELS[case.model].make()
    groups, own = world.size, world.rank
    if case.mesh:
        model = quorate.parallelize(model, world.mesh(**case.mesh), zero=case.zero)
        groups, own = world.size // case.mesh.get("tensor", 1), world.rank // case.mesh.get("tensor", 1)
    optimizer: Any = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4), model, case.strategy)
    loader = quorate.loader(TensorDataset(torch.arange(64)), 2)
    steps = quorate.load() or 0
    batches = iter(loader)
    for step in range(steps, until):
        next(batches)
        optimizer.zero_grad()
        losses = [about.loss_of(model, batch(step, number)) for number in range(2) if number % groups == own]
        torch.stack(losses).mean().backward()
        optimizer.step()
    quorate.save()
    with world.evaluate(at="replica"):
        return {name: whole(p) for name, p in model.named_parameters()}
