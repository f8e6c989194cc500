"""Which of a model's trained parameters are tables of embeddings: their rows have directions, they have none."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn import Embedding, EmbeddingBag, Module, Parameter


def tables_in(model: Module, trained: Sequence[Parameter]) -> frozenset[int]:
    """The places among `trained` of the weights of `Embedding` and `EmbeddingBag`, also if a layer shares them."""
    found = {id(module.weight) for module in model.modules() if isinstance(module, Embedding | EmbeddingBag)}
    return frozenset(place for place, p in enumerate(trained) if id(p) in found)
