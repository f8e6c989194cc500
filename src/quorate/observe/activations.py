"""Tensors that are saved for the backward pass, by the module that saved them."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules import module as hooks

Storage = tuple[str, int]
_Extent = tuple[int, int]


class Saved:
    """The most bytes that autograd keeps for the backward pass; storage that several tensors share counts once.

    Parameters are left out, and so are numbers that activation checkpointing computes again. Of storage that existed
    before the forward pass (a batch that is a slice of a data set) only the saved part counts.
    """

    def __init__(self) -> None:
        self.most = 0
        self._live = 0
        self._extents: dict[Storage, dict[_Extent, int]] = {}
        self._bytes: dict[Storage, int] = {}
        self._by: dict[Storage, Module | None] = {}
        self._at_most: dict[Storage, tuple[int, Module | None]] = {}
        self._grew = False
        self._inside: list[Module] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count the tensors that computations inside save, in this thread."""
        entering = hooks.register_module_forward_pre_hook(self._enter)
        leaving = hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack):
                yield
        finally:
            entering.remove()
            leaving.remove()

    def by_module(self, without: Mapping[Storage, Any]) -> dict[Module | None, int]:
        """Return the bytes at their most, by the innermost module that was computing, `without` these storages."""
        self._note_most()
        bytes_of: dict[Module | None, int] = defaultdict(int)
        for storage, (nbytes, module) in self._at_most.items():
            if storage not in without:
                bytes_of[module] += nbytes
        return dict(bytes_of)

    def _enter(self, module: Module, _: Any) -> None:
        self._inside.append(module)

    def _leave(self, module: Module, *_: Any) -> None:
        if module in self._inside:
            while self._inside.pop() is not module:
                pass

    def _pack(self, x: Tensor) -> Any:
        if x.layout != torch.strided or _is_parameter(x):
            return _Kept(x)
        kept, storage = _Kept(x), storage_of(x)
        extent = (int(x.storage_offset()), x.numel())
        extents = self._extents.setdefault(storage, {})
        extents[extent] = extents.get(extent, 0) + 1
        self._by.setdefault(storage, self._inside[-1] if self._inside else None)
        whole = x.untyped_storage().nbytes()
        self._count(storage, whole if x.grad_fn is not None else min(whole, _length(extents, x.element_size())))
        weakref.finalize(kept, self._freed, storage, extent).atexit = False
        return kept

    def _count(self, storage: Storage, nbytes: int) -> None:
        more = max(nbytes, self._bytes.get(storage, 0)) - self._bytes.get(storage, 0)
        self._bytes[storage] = self._bytes.get(storage, 0) + more
        self._live += more
        self._grew |= more > 0

    def _freed(self, storage: Storage, extent: _Extent) -> None:
        self._note_most()
        extents = self._extents[storage]
        extents[extent] -= 1
        if not extents[extent]:
            del extents[extent]
        if not extents:
            self._live -= self._bytes.pop(storage)
            del self._extents[storage], self._by[storage]

    def _note_most(self) -> None:
        if self._grew and self._live > self.most:
            self.most = self._live
            self._at_most = {storage: (nbytes, self._by[storage]) for storage, nbytes in self._bytes.items()}
        self._grew = False


class _Kept:
    """A saved tensor, for as long as autograd holds it."""

    __slots__ = ("__weakref__", "x")

    def __init__(self, x: Tensor) -> None:
        self.x = x


def _unpack(kept: _Kept) -> Tensor:
    return kept.x


def _length(extents: Mapping[_Extent, int], each: int) -> int:
    return each * sum(numel for _, numel in extents)


def storage_of(x: Tensor) -> Storage:
    """Return a key of the storage of a dense tensor."""
    return str(x.device), x.untyped_storage().data_ptr()


def _is_parameter(x: Tensor) -> bool:
    root = x if x._base is None else x._base
    return root.is_leaf and root.requires_grad
