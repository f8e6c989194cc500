"""The modules of a model that are sharded as units, from the model's structure.

Repeated modules are blocks: several children of one class in one list (`ModuleList`, `Sequential`), the outermost
ones. All other parameters form one more piece, with the root of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from torch.nn import Module, ModuleList, Sequential

from quorate.core.errors import ConfigurationError

SMALLEST = 1 << 14
"""Elements of the smallest block; a smaller module stays with the root, as it costs as many messages as a large one."""


def blocks_of(model: Module) -> list[tuple[str, Module]]:
    """Return the blocks of `model` with their names, in its order. A module that shares parameters with another module
    (tied embeddings) is no block."""
    holders = _holders(model)
    return [
        (name, module)
        for name, module in _repeated(model, "")
        if _size(module) >= SMALLEST and not _shares(module, holders)
    ]


def named_blocks(model: Module, wanted: Sequence[str | Module | type[Module]]) -> list[tuple[str, Module]]:
    """Return the blocks that a script has listed: by name, as modules, or by class.

    A block that shares parameters with another module (tied weights) is divided. Its parts that share none are blocks,
    and the remainder, with the tied weight, is gathered with the root. Raises `ConfigurationError`.
    """
    named = dict(model.named_modules())
    names = {id(module): name for name, module in named.items()}
    blocks: dict[str, Module] = {}
    for entry in wanted:
        if isinstance(entry, str) and entry in named:
            chosen = [(entry, named[entry])]
        elif isinstance(entry, Module) and id(entry) in names:
            chosen = [(names[id(entry)], entry)]
        elif isinstance(entry, type):
            chosen = [(name, module) for name, module in named.items() if isinstance(module, entry)]
        else:
            chosen = []
        if not chosen:
            kind = entry if isinstance(entry, type) else type(entry)
            label = entry if isinstance(entry, str) else kind.__name__
            raise ConfigurationError(
                f"blocks has {label}, but the model has no such module; list names (as in model.named_modules()), "
                "modules of the model, or their classes"
            )
        blocks.update(chosen)
    blocks.pop("", None)  # the root is a piece anyhow
    holders, parts = _holders(model), dict[str, Module]()
    for name, module in blocks.items():
        parts.update(_without_shared(module, name, holders))
    return [(name, module) for name, module in named.items() if name in parts]


def _without_shared(module: Module, name: str, holders: Counter[int]) -> Iterator[tuple[str, Module]]:
    if not _shares(module, holders):
        yield name, module
        return
    for key, child in module.named_children():
        if _size(child) >= SMALLEST:
            yield from _without_shared(child, f"{name}.{key}", holders)


def _repeated(module: Module, name: str) -> Iterator[tuple[str, Module]]:
    children = [(f"{name}.{key}" if name else key, child) for key, child in module.named_children()]
    children = [(key, child) for key, child in children if _size(child)]
    often = Counter(type(child) for _, child in children)
    is_list = isinstance(module, ModuleList | Sequential)
    for key, child in children:
        if is_list and often[type(child)] > 1:
            yield key, child
        else:
            yield from _repeated(child, key)


def _holders(model: Module) -> Counter[int]:
    """Return how many modules have each parameter, by its `id`."""
    return Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))


def _size(module: Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _shares(module: Module, holders: Counter[int]) -> bool:
    inside = Counter(id(p) for part in module.modules() for p in part.parameters(recurse=False))
    return any(holders[key] > count for key, count in inside.items())


def in_words(blocks: Sequence[tuple[str, Module]], *, of_stages: bool = False) -> str:
    """Describe blocks: `12 blocks of GPTBlock (h.0 to h.11), and the rest as one piece`; the stages of one worker
    have no rest.
    """
    if not blocks:
        return "one piece"
    kinds = sorted({class_of(module) for _, module in blocks})
    first, last = blocks[0][0], blocks[-1][0]
    where = first if first == last else f"{first} to {last}"
    number = "1 block" if len(blocks) == 1 else f"{len(blocks)} blocks"
    rest = " on the first worker of the pipeline" if of_stages else ", and the rest as one piece"
    return f"{number} of {', '.join(kinds)} ({where}){rest}"


def class_of(module: Module) -> str:
    """Return the name of the class that `fully_shard` has wrapped, or else of the module's class."""
    kinds = type(module).__mro__
    return next(kind.__name__ for kind in kinds if not kind.__module__.startswith("torch.distributed."))
