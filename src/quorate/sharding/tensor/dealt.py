"""Branches of a module on the workers that compute it together: their parameters, and their messages.

The parameters of a worker's branches form one vector, of equal length on all workers. It is a `DTensor` cut along its
first dimension, so that torch's clipping, FSDP2, optimizers and checkpoints treat it like any other. Parameters that
several branches share, or that the model uses elsewhere, are held in full by all. Importing this module imports torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor, Shard
from torch.nn import Module, Parameter, RNNBase

from quorate.core.contracts import Message
from quorate.core.errors import ConfigurationError
from quorate.sharding.tensor.activations import Together
from quorate.wire.swap import Envelope, Swap

SHARED = "shared_"


@dataclass
class Dealt:
    """The branches of one module, as one worker sees them."""

    together: Together
    items: list[Module]
    owners: list[int]
    """The worker of each branch."""
    is_each: bool
    """Whether each branch has an input of its own."""
    slots: list[tuple[Module, str, int, torch.Size]] = field(default_factory=list)
    """The parameters in the vector, with the offset and shape of each."""
    shares: list[tuple[Module, str, int]] = field(default_factory=list)
    """The modules and keys that use a shared parameter, with its index."""
    length: int = 0
    """Elements of the vector."""
    shared: int = 0
    calls: Iterator[int] = field(default_factory=itertools.count)
    shapes: dict[Hashable, list[Any]] = field(default_factory=dict)
    """Shapes and dtypes of the tensors of each worker, for inputs of each shape."""

    @property
    def name(self) -> str:
        """The name of the vector, such as `of_0_1_0`: the workers of the branches, in order.

        A checkpoint of branches that were distributed otherwise has another name for it, and is not mistaken for this
        one.
        """
        return f"of_{'_'.join(map(str, self.owners))}"

    def of(self, worker: int) -> list[int]:
        """Return the branches of a worker."""
        return [number for number, owner in enumerate(self.owners) if owner == worker]

    def buffers(self, worker: int) -> list[Tensor]:
        """Return the buffers of a worker's branches."""
        return [x for number in self.of(worker) for x in self.items[number].buffers()]

    @contextmanager
    def placed(self, flat: Tensor | None, shared: Sequence[Tensor]) -> Iterator[None]:
        """Inside, the modules of the branches here have parameters."""
        every: list[tuple[Any, str, Any]] = [(module, key, shared[which]) for module, key, which in self.shares]
        if flat is not None:
            every += [
                (module, key, flat[begin : begin + shape.numel()].view(shape))
                for module, key, begin, shape in self.slots
            ]
        for module, key, x in every:
            module._parameters[key] = x
        try:
            yield
        finally:
            for module, key, _ in every:
                module._parameters[key] = None

    def _messages(self, tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """Return the tensors of every worker, sent as messages."""
        wire, tag = self.together.wire, f"branches/{next(self.calls)}"
        operation = f"outputs of {len(self.owners)} branches"
        message = Message(tuple(tensors), Envelope(operation).header())
        others = [peer for peer in range(wire.size) if peer != wire.rank]
        sends = [wire.send(message, peer, tag) for peer in others]
        receives = [wire.receive(peer, tag, others) for peer in others]
        swap = Swap(wire, operation, others, receives, sends, message, list)
        return [message.tensors for message in self.together.traffic.wait(swap, wire.clock)]

    def _exchanged(self, tensors: Sequence[Tensor], key: Hashable, device: torch.device) -> list[Sequence[Tensor]]:
        """Return the tensors of every worker. Their shapes are agreed on once for inputs of the same shapes, the `key`.

        Raises `ConfigurationError` where those of this worker have changed since."""
        together, wire = self.together, self.together.wire
        own = [[list(x.shape), str(x.dtype).removeprefix("torch.")] for x in tensors]
        if key not in self.shapes:
            self.shapes[key] = together.values_of_all(f"outputs of {len(self.owners)} branches", own)
        shapes = self.shapes[key]
        if own != shapes[wire.rank]:
            raise ConfigurationError(
                f"a branch returned tensors of {own}, and before of {shapes[wire.rank]}, for inputs of the same "
                "shapes; on several GPUs the shapes of outputs must depend on those of inputs alone"
            )
        likes = [
            (peer, torch.empty(shape, dtype=getattr(torch, dtype), device=device))
            for peer, every in enumerate(shapes)
            if peer != wire.rank
            for shape, dtype in every
        ]
        sends = [(peer, x) for peer in range(wire.size) if peer != wire.rank for x in tensors]
        left = iter(together.traffic.wait(wire.exchange(sends, likes, "branches"), wire.clock))
        return [tensors if peer == wire.rank else [next(left) for _ in every] for peer, every in enumerate(shapes)]

    def gathered(
        self, own: dict[int, Tensor], device: torch.device, key: Hashable, *, with_buffers: bool
    ) -> list[Tensor]:
        """Return the outputs of all branches, on `device`; buffers become those of the workers that have calculated.

        Where tensors have the shapes that `key` stands for, those of the outputs do not change.
        """
        wire = self.together.wire
        local_outputs = [x.detach().contiguous() for x in own.values()]
        buffers = [x.detach() for x in self.buffers(wire.rank)] if with_buffers else []
        tensors = [*local_outputs, *buffers]
        is_carried = wire.carries(torch.empty(1, device=device))
        received = self._exchanged(tensors, key, device) if is_carried else self._messages(tensors)
        others = [peer for peer in range(wire.size) if peer != wire.rank]
        outputs: dict[int, Tensor] = {number: x.clone() for number, x in zip(own, local_outputs, strict=True)}
        for peer in others:
            numbers = self.of(peer)
            outputs.update(zip(numbers, [x.to(device) for x in received[peer]], strict=False))
            if with_buffers:
                for here, there in zip(self.buffers(peer), received[peer][len(numbers) :], strict=True):
                    here.copy_(there)
        return [outputs[number] for number in range(len(self.owners))]


def deal(costs: Sequence[float], workers: int) -> list[int]:
    """Return the worker of each branch: the most costly first, to the worker with the least load by then. Among equal
    loads it is the first worker with the fewest branches."""
    loads, counts, owners = [0.0] * workers, [0] * workers, [0] * len(costs)
    for number in sorted(range(len(costs)), key=lambda number: -costs[number]):
        owner = min(range(workers), key=lambda worker: (loads[worker], counts[worker]))
        owners[number] = owner
        loads[owner] += costs[number]
        counts[owner] += 1
    return owners


def deal_out(module: Any, name: str, model: Module, together: Together) -> Tensor | None:
    """Remove the parameters of the branches of `module`, and record their placement in `module.dealt`.

    Shared ones become parameters of `module`, including those that other parts of `model` use. Returns the vector of
    this worker, for `attach`. Raises `ConfigurationError` for branches that cannot be distributed.
    """
    items = list(module.items)
    dealt = Dealt(together, items, deal(module.costs, together.size), module.inputs == "each")
    inside = {id(part) for part in module.items.modules()}
    outside = {id(p) for part in model.modules() if id(part) not in inside for p in part._parameters.values()}
    users: dict[int, set[int]] = {}
    for number, branch in enumerate(items):
        for p in branch.parameters():
            users.setdefault(id(p), set()).add(number)
    _check(name, items)
    lengths, numbers, shared = [0] * together.size, list[Tensor](), dict[int, Parameter]()
    places: dict[int, int] = {}
    seen = set[int]()
    for branch, owner in zip(items, dealt.owners, strict=True):
        for part in branch.modules():
            for p in part.parameters(recurse=False):
                if len(users[id(p)]) > 1 or id(p) in outside:
                    shared.setdefault(id(p), p)
                elif id(p) not in places:
                    places[id(p)] = lengths[owner]
                    lengths[owner] += p.numel()
                    if owner == together.rank:
                        numbers.append(p.detach().flatten())
        if owner != together.rank:
            continue
        for part in branch.modules():
            if id(part) in seen:
                continue
            seen.add(id(part))
            for key, p in part.named_parameters(recurse=False, remove_duplicate=False):
                if id(p) in shared:
                    dealt.shares.append((part, key, list(shared).index(id(p))))
                else:
                    dealt.slots.append((part, key, places[id(p)], p.shape))
    dtype, device = next(iter(_dtypes(items)), None), _device(items)
    for part in module.items.modules():
        for key in part._parameters:
            part._parameters[key] = None
    for which, p in enumerate(shared.values()):
        module.register_parameter(f"{SHARED}{which}", p)
    dealt.length, dealt.shared = max(lengths), len(shared)
    module.dealt = dealt
    if not dealt.length:
        return None
    flat = torch.zeros(dealt.length, dtype=dtype, device=device)
    if numbers:
        torch.cat(numbers, out=flat[: lengths[together.rank]])
    return flat


def _device(items: Sequence[Module]) -> torch.device | None:
    return next((p.device for branch in items for p in branch.parameters()), None)


def _dtypes(items: Sequence[Module]) -> set[torch.dtype]:
    return {p.dtype for branch in items for p in branch.parameters()}


def _check(name: str, items: Sequence[Module]) -> None:
    if any(isinstance(part, RNNBase) for branch in items for part in branch.modules()):
        raise ConfigurationError(
            f"the branches of {name} have a recurrent module of torch, which keeps a list of its parameters; such "
            "branches are not assigned to workers"
        )
    if len(_dtypes(items)) > 1:
        raise ConfigurationError(f"the branches of {name} have parameters of several dtypes; use one dtype")
    if any(not p.requires_grad for branch in items for p in branch.parameters()):
        raise ConfigurationError(
            f"the branches of {name} have parameters that are not trained; such branches cannot be placed on workers"
        )
    buffers = [id(x) for branch in items for x in branch.buffers()]
    if len(buffers) != len(set(buffers)):
        raise ConfigurationError(
            f"branches of {name} share buffers (statistics of batches), which two workers would change at a time; give "
            "each its own"
        )


def attach(module: Any, flat: Tensor | None, together: Together) -> None:
    """Make the vector a parameter of `module`, cut so that each worker has its part."""
    if flat is not None:
        made = DTensor.from_local(flat, together.mesh, [Shard(0)], run_check=False)
        module.register_parameter(module.dealt.name, Parameter(made))


class _Run(Function):
    """Runs the local branches; backward, it sums the gradients of inputs over all workers."""

    @staticmethod
    def forward(
        ctx: Any, dealt: Dealt, inputs: int, learns: bool, trains: bool, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the outputs of all branches. `tensors` are inputs, shared parameters, and the vector."""
        together = dealt.together
        with torch.set_grad_enabled(learns):
            leaves = [x.detach().requires_grad_(learns and x.requires_grad) for x in tensors]
            ctx.parts = _parts(dealt, leaves, inputs)
            branch_inputs = leaves[:inputs]
            own = {}
            together.draw_apart()
            with dealt.placed(*ctx.parts):
                for number in dealt.of(together.rank):
                    output = dealt.items[number](*([branch_inputs[number]] if dealt.is_each else branch_inputs))
                    if not isinstance(output, Tensor):
                        raise ConfigurationError(f"a branch must return one tensor, not {type(output).__name__}")
                    own[number] = output
            together.draw_alike()
        ctx.kept = dealt, inputs, leaves, own
        key = trains, torch.is_autocast_enabled(tensors[0].device.type), *((x.shape, x.dtype) for x in tensors[:inputs])
        return tuple(dealt.gathered(own, tensors[0].device, key, with_buffers=trains))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return summed gradients for inputs and shared parameters, and the local gradient of the vector."""
        dealt, inputs, leaves, own = ctx.kept
        wanted = [x for x in leaves if x.requires_grad]
        ends = [(x, gradients[number]) for number, x in own.items() if x.requires_grad]
        with dealt.placed(*ctx.parts):  # for activations that are calculated again
            computed = (
                torch.autograd.grad([x for x, _ in ends], wanted, [g for _, g in ends], allow_unused=True)
                if ends
                else [None] * len(wanted)
            )
        totals = {id(x): torch.zeros_like(x) if g is None else g for x, g in zip(wanted, computed, strict=True)}
        common = [x for x in leaves[: inputs + dealt.shared] if x.requires_grad]
        for dtype in dict.fromkeys(x.dtype for x in common):
            some = [x for x in common if x.dtype == dtype]
            total = dealt.together.sum(torch.cat([totals[id(x)].flatten() for x in some]))
            for x, part in zip(some, total.split([x.numel() for x in some]), strict=True):
                totals[id(x)] = part.view(x.shape)
        return None, None, None, None, *(totals.get(id(x)) for x in leaves)


def _parts(dealt: Dealt, leaves: Sequence[Tensor], inputs: int) -> tuple[Tensor | None, Sequence[Tensor]]:
    shared = leaves[inputs : inputs + dealt.shared]
    return (leaves[-1] if dealt.length else None), shared


def run(module: Module, dealt: Dealt, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the outputs of all branches, on all workers."""
    if not all(isinstance(x, Tensor) for x in inputs):
        raise ConfigurationError("branches on several workers take tensors only")
    held: list[Any] = [module._parameters[f"{SHARED}{which}"] for which in range(dealt.shared)]
    held += [module._parameters[dealt.name]] if dealt.length else []
    outputs: tuple[Tensor, ...] = _Run.apply(  # type: ignore[no-untyped-call]
        dealt, len(inputs), torch.is_grad_enabled(), module.training, *inputs, *held
    )
    return outputs
