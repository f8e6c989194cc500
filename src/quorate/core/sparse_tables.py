"""Tables of embeddings whose gradients are sparse."""

from __future__ import annotations

from torch.nn import Embedding, EmbeddingBag, Module


def sparse_weights(model: Module) -> set[int]:
    """Return the `id`s of the weights of `Embedding(sparse=True)` and the like that no other module has.

    A weight that another module has as well, as an output layer that is tied to it, has dense gradients.
    """
    sparse, others = set[int](), set[int]()
    for module in model.modules():
        ids = sparse if isinstance(module, Embedding | EmbeddingBag) and module.sparse else others
        ids.update(id(p) for p in module.parameters(recurse=False))
    return sparse - others
