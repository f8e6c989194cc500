"""Tables of embeddings whose gradients are sparse, by rows over the workers of a replica. Imports torch.

Each of S workers holds a block of neighbouring rows, with the optimizer's state of them. In a forward pass a worker
sends the owners the indices of the rows that its batch needs, each once, and they send the rows. In the backward pass
it sends their gradients, which each owner adds in order of ranks and divides by S, as other gradients of a replica are
divided. The gradient of a block is sparse, as in one process.

Cost: a pass sends, for each row that a batch needs from another worker, an index, the row and its gradient. An index
has 4 bytes, and in tables of 2^31 rows 8. Neither time nor the memory of a pass depends on the size of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import Module, Parameter

from quorate.buckets.rows import Rows, RowsOfWorker, as_gradient, index_dtype, sparse_weights, sum_of
from quorate.core.axes import Axes, rows_of
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import as_piece_of, local
from quorate.sharding.experts import Exchange
from quorate.sharding.mesh import Coordinates
from quorate.sharding.script_access import take_whole_tensors
from quorate.sharding.tensor.branches import branches_in, is_in_branches
from quorate.sharding.tensor.plan import Plan
from quorate.sharding.tensor.sequence import blocks_in
from quorate.wire.metered import Metered


def tables_in(model: Module) -> dict[str, Any]:
    """Return the layers whose tables are divided by rows, by name: `Embedding(sparse=True)` and the like.

    A table that another module has as well, as an output layer that is tied to it, is divided as dense parameters are.
    """
    weights = sparse_weights(model)  # `module.weight` of a parametrization would be computed, as of a spectral norm
    return {
        name: module
        for name, module in model.named_modules()
        if any(id(p) in weights for p in module.parameters(recurse=False))
    }


def check_tables(tables: Iterable[str], axes: Axes, plan: Plan | None, model: Module) -> None:
    """Raise `ConfigurationError` for divisions that do not go together with these layers."""
    is_in_sequence = plan is not None and (plan.is_of_pieces or "sequence" in plan.values())
    blocks = [""] if plan is None or plan.is_of_pieces or not is_in_sequence else blocks_in(plan, model)
    for name in tables:
        refused = {
            "in stages": axes.stages > 1,
            "along shards and tensor at once": axes.shards > 1 and axes.tensor > 1,
            "in pieces of a sequence": is_in_sequence and name.startswith(tuple(blocks)),
            "in quorate.branches": axes.tensor > 1 and is_in_branches(name, branches_in(model)),
        }
        for how, is_asked in refused.items():
            if is_asked:
                raise ConfigurationError(
                    f"{name or 'the model'} has sparse gradients, so its table is divided by rows over shards or "
                    f"along tensor, not {how}; leave that out, or build it with sparse=False"
                )


def by_rows(
    tables: Mapping[str, Module], coordinates: Coordinates, precision: str | None
) -> tuple[set[Parameter], list[Any]]:
    """Give each worker its rows of the `tables`, in place.

    The workers are those along shards or tensor. The latter have equal batches, so that the mean of their gradients is
    the gradient. Returns the parameters that are now in pieces, and the handles of hooks. With `precision` rows are
    sent, and calculated with, in this dtype.
    """
    _define_operations()
    made, handles, dtype = dict[int, Parameter](), list[Any](), None if precision is None else getattr(torch, precision)
    wire = coordinates.beside if coordinates.parts is None else coordinates.together
    mesh = coordinates.shards if coordinates.parts is None else coordinates.parts
    exchange = Exchange(Metered(wire.channel("tables"), coordinates.traffic.meter), coordinates.traffic)
    for name, module in tables.items():
        weight = module._parameters["weight"]
        assert weight is not None
        if id(weight) not in made:
            made[id(weight)] = _block(weight, mesh)
        module._parameters["weight"] = made[id(weight)]
        handles += Lookups(name, exchange, dtype).hook(module)
        handles.append(module.register_load_state_dict_pre_hook(partial(take_whole_tensors, None)))
    return set(made.values()), handles


def _define_operations() -> None:
    """Let a GradScaler look at the numbers of sparse gradients in pieces, for which torch has no rule."""
    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    handlers[torch.ops.aten._values.default] = lambda _, args, kwargs: as_piece_of(args[0], local(args[0])._values())
    handlers[torch.ops.aten._coalesce.default] = lambda _, args, kwargs: as_piece_of(args[0], local(args[0]).coalesce())
    handlers[torch.ops.aten.is_coalesced.default] = lambda _, args, kwargs: local(args[0]).is_coalesced()


def _block(p: Parameter, mesh: DeviceMesh) -> Parameter:
    rows = rows_of(p.shape[0], mesh.size(), mesh.get_local_rank())
    held = p.detach()[rows.start : rows.stop].clone(memory_format=torch.contiguous_format)
    whole: dict[str, Any] = {"shape": p.shape, "stride": torch.empty(p.shape, device="meta").stride()}
    made = Parameter(DTensor.from_local(held, mesh, [Shard(0)], run_check=False, **whole), p.requires_grad)
    for key, value in vars(p).items():
        setattr(made, key, value)
    return made


class Lookups:
    """The calls of one layer, whose module looks its indices up in the rows that were received."""

    def __init__(self, name: str, exchange: Exchange, precision: torch.dtype | None = None) -> None:
        self._name, self._exchange, self._precision = name, exchange, precision
        self._kept: list[tuple[Any, Any, bool]] = []
        """For each call in progress the weight, the `padding_idx` and `sparse` of the module."""

    def hook(self, module: Module) -> list[Any]:
        """Let `module` calculate with the rows of other workers as well; return the handles of its hooks."""
        return [
            module.register_forward_pre_hook(self._before, with_kwargs=True),
            module.register_forward_hook(self._behind, always_call=True),
        ]

    def _before(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        weight, padding = module._parameters["weight"], module.padding_idx
        ids = args[0] if args else kwargs["input"]
        needed, places = torch.unique(ids, return_inverse=True)
        counts, first = self._counted(needed.long(), module.num_embeddings)
        dtype = self._precision or weight.dtype
        rows = _Fetched.apply(weight, self._exchange, needed, counts, first, padding, dtype)  # type: ignore[no-untyped-call]
        self._kept.append((weight, padding, module.sparse))
        module._parameters["weight"] = rows
        module.sparse = False  # the gradient of these rows has all of them
        if padding is not None:
            module.padding_idx = next(iter((needed == padding).nonzero().flatten().tolist()), None)
        places = places.to(ids.dtype)
        return ((places, *args[1:]), kwargs) if args else (args, {**kwargs, "input": places})

    def _counted(self, needed: Tensor, total: int) -> tuple[list[int], int]:
        """Return how many rows are needed from each worker, and the first row that lies here.

        Raises `IndexError` for rows that the table does not have.
        """
        size = self._exchange.size
        firsts = [*(rows_of(total, size, rank).start for rank in range(size)), total]
        reached: list[int] = torch.searchsorted(needed, torch.tensor(firsts, device=needed.device)).tolist()
        if reached[0] or reached[-1] != len(needed):
            outside = int(needed[0] if reached[0] else needed[-1])
            raise IndexError(f"{self._name or 'the model'} has {total} rows, and was asked for row {outside}")
        return [end - begin for begin, end in pairwise(reached)], firsts[self._exchange.rank]

    def _behind(self, module: Any, args: Any, output: Any) -> None:
        if self._kept:
            module._parameters["weight"], module.padding_idx, module.sparse = self._kept.pop()


class _Fetched(Function):
    """Rows of a table from their owners; its gradient is that of the rows held here, from all workers."""

    @staticmethod
    def forward(
        ctx: Any,
        p: Tensor,
        exchange: Exchange,
        needed: Tensor,
        counts: Sequence[int],
        first: int,
        padding: int | None,
        dtype: torch.dtype,
    ) -> Tensor:
        block = local(p).detach()
        asked = exchange.swap(needed.to(index_dtype(len(p))).split(list(counts)))
        own = [indices.to(torch.int64) - first for indices in asked]
        rows = [block[indices].to(dtype) for indices in own]
        received = exchange.swap(rows, [(count, *block.shape[1:]) for count in counts])
        ctx.how = p, exchange, counts, own, None if padding is None else padding - first
        return torch.cat(received)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        p, exchange, counts, own, padding = ctx.how
        pieces = [piece.contiguous() for piece in gradient.split(list(counts))]
        received = exchange.swap(pieces, [(len(indices), *gradient.shape[1:]) for indices in own])
        workers = []
        for indices, values in zip(own, received, strict=True):
            kept = slice(None) if padding is None else indices != padding
            workers.append(RowsOfWorker(1.0, (Rows(indices[kept], values[kept]),), (True,)))
        rows = sum_of(workers, 0, p)
        assert rows is not None
        rows.values.div_(exchange.size)
        _add(p, as_gradient(rows, p))
        return None, None, None, None, None, None, None


def _add(p: Tensor, gradient: Tensor) -> None:
    """Add to `.grad`, as autograd does where a tensor is in one piece: it asks sparse gradients for their indices, for
    which torch has no rule of pieces."""
    p.grad = gradient if p.grad is None else as_piece_of(p, local(p.grad) + local(gradient))
    for hook in (p._post_accumulate_grad_hooks or {}).values():
        hook(p)
