"""Modules that FSDP2 has sharded, as plain modules: with their original classes, and without FSDP's hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.nn import Module

from quorate.sharding.collectives import groups_of

_KEPT = (STATE_KEY, REGISTRY_KEY)


@contextmanager
def without_hooks(modules: Sequence[Any], also: Sequence[Any] = ()) -> Iterator[None]:
    """Inside, calls of `modules` and their state dictionaries do not reach FSDP, and hooks of the handles `also` are
    removed; hooks keep their order."""
    handles = [handle for module in modules for handle in _handles(module)] + list(also)
    kept: dict[int, tuple[Any, list[tuple[int, Any]], set[int]]] = {}
    for handle in handles:
        hooks = handle.hooks_dict_ref()
        if hooks is not None and handle.id in hooks:
            kept.setdefault(id(hooks), (hooks, list(hooks.items()), set()))[2].add(handle.id)
    for hooks, _, removed in kept.values():
        for key in removed:
            del hooks[key]
    try:
        yield
    finally:
        for hooks, before, removed in kept.values():
            now = dict(hooks)
            hooks.clear()
            hooks.update({key: hook for key, hook in before if key in removed or key in now})
            hooks.update({key: hook for key, hook in now.items() if key not in hooks})


def _handles(module: Any) -> Iterator[Any]:
    state = module._get_fsdp_state()
    yield state._pre_forward_hook_handle
    yield state._post_forward_hook_handle
    for group in groups_of(module):
        yield from group._module_to_pre_save_state_dict_hook_handle.values()
        yield from group._module_to_pre_load_state_dict_hook_handle.values()
        yield from (p._post_load_hook_handle for p in group.fsdp_params)


@contextmanager
def plain_classes(modules: Sequence[Any]) -> Iterator[None]:
    """Inside, `modules` have the classes of the script, and no attributes of `fully_shard`."""
    kept = [
        (module, type(module), {key: vars(module).pop(key) for key in _KEPT if key in vars(module)})
        for module in modules
    ]
    try:
        for module, kind, _ in kept:
            module.__class__ = kind.__mro__[2]
        yield
    finally:
        for module, kind, values in kept:
            module.__class__ = kind
            vars(module).update(values)


def replace_parameters(model: Module, replaced: Callable[[Any], Any]) -> None:
    """Replace each parameter p of `model` by `replaced(p)`, wherever modules share it."""
    for module in list(model.modules()):
        for key, p in list(module._parameters.items()):
            if p is not None:
                module._parameters[key] = replaced(p)
