"""Models made on the meta device, and spread: pieces of one model, the same in any number of shards."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError
from tests.support.processes import run_real_world
from tests.support.sampled import Few
from tests.support.sharded_trainings import Block, Model, batch, whole


class Normed(nn.Module):
    """It has buffers, one of whole numbers, and one that is made elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Model(tied=True)
        self.norm = nn.BatchNorm1d(31)
        self.register_buffer("made", torch.arange(3.0, device="cpu"))

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.inner(ids).flatten(0, 1))


class Own(nn.Module):
    """A parameter, which nothing initialises."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.linear = nn.Parameter(torch.ones(5)), nn.Linear(5, 5)
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(5))])


def made(mesh: Any, seed: int, **chosen: Any) -> Any:
    with torch.device("meta"):
        model = Normed()
    torch.manual_seed(seed)
    return quorate.parallelize(model, mesh, **chosen)


def begun(world: Any) -> tuple[list[Tensor], list[Tensor], float]:
    """The numbers that a model begins with, and its buffers; and how far a step of it has come."""
    torch.set_num_threads(1)
    model = made(world.mesh(shards=2) if world.size == 4 else None, 3 + world.rank)
    assert model.inner.head.weight is model.inner.tokens.weight
    first, buffers = [whole(p) for p in model.parameters()], [x.clone() for x in model.buffers()]
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        ids, targets = batch(0, range(1))
        loss = F.cross_entropy(model(ids), targets.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    optimizer.finish()
    return first, buffers, losses[-1] / losses[0]


def test_all_begin_with_the_same_numbers_in_any_number_of_shards(few: Few) -> None:
    (first, buffers, _), *others = [one for size in few([1, 2, 3, 4]) for one in run_real_world(size, begun, 60.0)]
    for numbers, theirs, learned in others:
        assert all(map(torch.equal, numbers, first)) and all(map(torch.equal, theirs, buffers))
        assert learned < 0.8
    assert len({float(x.std()) for x in first if x.dim() == 2}) == len([x for x in first if x.dim() == 2])
    assert all(0 < float(x.std()) < 2 for x in first if x.dim() == 2)
    assert [x.tolist() for x in buffers if x.numel() < 4] == [[0.0, 1.0, 2.0], 0]


def largest(world: Any) -> list[int]:
    """Of the model, the numbers that are whole while a module is initialised."""
    sizes, every = list[int](), list[nn.Module]()

    def seen(module: nn.Module) -> None:
        sizes.append(sum(p.numel() for p in every[0].parameters() if type(p) is nn.Parameter))
        for p in module.parameters(recurse=False):
            nn.init.constant_(p, 2.0)
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()

    with torch.device("meta"):
        model: Any = Normed()
    every.append(model)
    quorate.parallelize(model, initialize=seen)
    assert all(torch.equal(whole(p), torch.full(p.shape, 2.0)) for p in model.parameters())
    return sizes


def test_one_block_is_whole_at_a_time() -> None:
    for sizes in run_real_world(2, largest, 60.0):
        assert max(sizes) == sum(p.numel() for p in Block().parameters()) > 2 * sum(sizes[-1:])


def refused(world: Any) -> list[str]:
    told = []

    def ask(model: nn.Module) -> None:
        try:
            quorate.parallelize(model)
        except ConfigurationError as error:
            told.append(str(error))

    with torch.device("meta"):
        own, mixed = Own(), Model()
        flagged = nn.Linear(3, 3)
        flagged.register_buffer("flags", torch.ones(3, dtype=torch.bool))
        ask(own)
    mixed.head = nn.Linear(64, 31)
    for model in (own, mixed, flagged):
        ask(model)
    return told


def test_refused_by_name() -> None:
    for told in run_real_world(2, refused, 60.0):
        assert [one.partition(";")[0] for one in told] == [
            'quorate.parallelize was called inside torch.device("meta")',
            "nothing has initialized weights.0, scale of a model on the meta device",
            "some parameters are on the meta device, and head.weight, head.bias not",
            "flags on the meta device cannot be seen to be initialized, being of few values",
        ]


def of_transformers(world: Any) -> list[tuple[bool, float]]:
    import transformers

    torch.set_num_threads(1)
    some: dict[str, Any] = {"vocab_size": 64}
    llama: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    configs: list[Any] = [
        transformers.GPT2Config(n_positions=16, n_embd=64, n_layer=2, n_head=4, **some),
        transformers.LlamaConfig(max_position_embeddings=32, **llama, **heads, **some),
    ]
    kinds: list[Any] = [transformers.GPT2LMHeadModel, transformers.LlamaForCausalLM]
    told = []
    for kind, config in zip(kinds, configs, strict=True):
        there = kind(config)
        with torch.device("meta"):
            model = kind(config)
        quorate.parallelize(model)
        ids = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(world.rank))
        apart = max(
            abs(float(whole(p).std(correction=0)) - float(q.std(correction=0)))
            for p, q in zip(model.parameters(), there.parameters(), strict=True)
        )
        buffers = dict(there.named_buffers())
        is_right = all(torch.equal(x, buffers[name]) for name, x in model.named_buffers())
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        told.append((is_right and bool(torch.isfinite(loss)), apart))
    return told


def test_models_of_transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed; make test-interop installs it")
    for told in run_real_world(2, of_transformers, 120.0):
        assert all(is_right and apart < 0.004 for is_right, apart in told), told
