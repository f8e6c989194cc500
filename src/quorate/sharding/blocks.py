"""Which modules of a model are sharded as one: found from the model's structure.

What repeats is a block: children of one class, several of them, in one list (`ModuleList`, `Sequential`), taken where
they are outermost. Everything else forms one more piece, with the root of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from torch.nn import Module, ModuleList, Sequential

from quorate.core.errors import ConfigurationError

SMALLEST = 1 << 14
"""Numbers in a block; a smaller one stays with the root, as it costs as many messages as a large one."""


def blocks_of(model: Module) -> list[tuple[str, Module]]:
    """The blocks of `model` by name, in its order.

    A module whose parameters another one has as well (tied embeddings) is no block.
    """
    holders = _holders(model)
    return [
        (name, module)
        for name, module in _repeated(model, "")
        if _size(module) >= SMALLEST and not _shares(module, holders)
    ]


def named_blocks(model: Module, wanted: Sequence[str | Module | type[Module]]) -> list[tuple[str, Module]]:
    """The blocks that a script has listed: names, modules, or classes of modules.

    Of a block whose parameters another one has as well (tied weights), those parts are blocks that share none; the rest
    of it, with the tied weight, is gathered with the root. Raises `ConfigurationError`.
    """
    named = dict(model.named_modules())
    names = {id(module): name for name, module in named.items()}
    found: dict[str, Module] = {}
    for one in wanted:
        if isinstance(one, str) and one in named:
            chosen = [(one, named[one])]
        elif isinstance(one, Module) and id(one) in names:
            chosen = [(names[id(one)], one)]
        elif isinstance(one, type):
            chosen = [(name, module) for name, module in named.items() if isinstance(module, one)]
        else:
            chosen = []
        if not chosen:
            what = one if isinstance(one, str) else one.__name__ if isinstance(one, type) else type(one).__name__
            raise ConfigurationError(
                f"blocks has {what}, but the model has no such module; list names (as in model.named_modules()), "
                "modules of the model, or their classes"
            )
        found.update(chosen)
    found.pop("", None)  # the root is a piece anyhow
    holders, parts = _holders(model), dict[str, Module]()
    for name, module in found.items():
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
    """How many modules have each parameter, by its `id`."""
    return Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))


def _size(module: Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _shares(module: Module, holders: Counter[int]) -> bool:
    inside = Counter(id(p) for part in module.modules() for p in part.parameters(recurse=False))
    return any(holders[key] > count for key, count in inside.items())


def in_words(blocks: Sequence[tuple[str, Module]], *, of_stages: bool = False) -> str:
    """As in: `12 blocks of GPTBlock (h.0 to h.11), and the rest as one piece`; of the stages of one worker there is no
    rest."""
    if not blocks:
        return "one piece"
    kinds = sorted({class_of(module) for _, module in blocks})
    first, last = blocks[0][0], blocks[-1][0]
    where = first if first == last else f"{first} to {last}"
    number = "1 block" if len(blocks) == 1 else f"{len(blocks)} blocks"
    rest = " on the first worker of the pipeline" if of_stages else ", and the rest as one piece"
    return f"{number} of {', '.join(kinds)} ({where}){rest}"


def class_of(module: Module) -> str:
    """The name of its class, and not of what torch's `fully_shard` makes of it."""
    kinds = type(module).__mro__
    return next(kind.__name__ for kind in kinds if not kind.__module__.startswith("torch.distributed."))
