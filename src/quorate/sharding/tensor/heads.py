"""The number of heads of an attention module, and its attributes where it has only some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.nn import Module

from quorate.attention.names import RANK_OF_HEADS
from quorate.core.errors import ConfigurationError
from quorate.sharding.tensor.plan import FUSED, is_linear, widths

_SIZES = ("head_dim", "attention_head_size", "head_size", "dim_per_head", "d_head")
_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
_KEY_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head")
_GROUPS = ("num_key_value_groups", "n_rep", "num_queries_per_kv")
"""Query heads for each key head."""
_WIDTHS = ("all_head_size", "split_size", "inner_dim")


def _number(module: Module, names: Sequence[str]) -> int | None:
    values = (vars(module).get(name) for name in names)
    return next((value for value in values if type(value) is int and value > 0), None)


def head_size(module: Module, inputs: Sequence[Any], *, is_fused: bool) -> int | None:
    """Return the numbers in one head, from the module's attributes; None where no attribute fits."""
    width = widths(inputs[0])[1] // (FUSED if is_fused else 1)
    size, count = _number(module, _SIZES), _number(module, _COUNTS)
    if size is None and count is not None and width % count == 0:
        size = width // count
    fits = size is not None and all(widths(layer)[1] % size == 0 for layer in inputs)
    return size if fits else None


def is_repeatable(heads: int, workers: int) -> bool:
    """Return whether equally many of `workers` can hold each key head, as there are fewer heads than workers."""
    return 0 < heads < workers and workers % heads == 0


def repeated_head(plan: Mapping[str, str], model: Module, name: str, workers: int) -> tuple[int, int]:
    """Return the number of heads of the layer `name`, whose style is "repeated", and the numbers in each. Raises
    `ConfigurationError` where its module does not say how many, or where the workers cannot share them equally."""
    parent = name.rpartition(".")[0]
    module = model.get_submodule(parent)
    inside = {f"{parent}.{key}" if parent else key: child for key, child in module.named_children()}
    queries = [child for key, child in inside.items() if plan.get(key) == "columns" and is_linear(child)]
    layer: Any = model.get_submodule(name)
    size = head_size(module, [queries[0], layer], is_fused=False) if queries else None
    heads = 0 if size is None else widths(layer)[1] // size
    if size is None or not is_repeatable(heads, workers) or "sequence" in plan.values():
        raise ConfigurationError(
            f'the tensor plan has "repeated" for {name}, which is for key and value heads beside a query with columns. '
            f"Each head must belong to equally many of the {workers} workers, and the sequence must not be in pieces"
        )
    return heads, size


def tell_heads(name: str, module: Module, width: int, workers: int, rank: int, queries: int | None = None) -> None:
    """Set the attributes of an attention module to the number of heads of one worker, and tell sparse attention which
    these are.

    `width` is the full width of its query; `queries` is the number of query heads of a worker for its one key head,
    where key heads are repeated. Raises `ConfigurationError` where its heads cannot be shared evenly.
    """
    for key in (*_COUNTS, *_KEY_COUNTS):
        count = vars(module).get(key)
        if type(count) is int:
            if queries is not None and key in _KEY_COUNTS:
                setattr(module, key, 1)
                continue
            if count % workers:
                raise ConfigurationError(
                    f"{name or 'the model'} has {key}={count}, which {workers} workers cannot share evenly"
                )
            setattr(module, key, count // workers)
    for key in _GROUPS if queries is not None else ():
        if type(vars(module).get(key)) is int:
            setattr(module, key, queries)
    for key in _WIDTHS:
        if vars(module).get(key) == width:
            setattr(module, key, width // workers)

    def before(*_: Any) -> None:
        RANK_OF_HEADS.set(rank)

    def behind(*_: Any) -> None:
        RANK_OF_HEADS.set(0)

    module.register_forward_pre_hook(before)
    module.register_forward_hook(behind, always_call=True)
