"""The class that a script gets as torch's DistributedDataParallel where a strategy is asked for.

It calls the model, and lets the optimizers of the script be distributed; how workers agree is the strategy's.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Joinable
from torch.distributed.utils import _to_kwargs
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel as OfTorch

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.data.consumption import Consumed
from quorate.data.context import DataContext
from quorate.launch.takeover.agreed import AgreedState
from quorate.launch.takeover.evaluation import Evaluations
from quorate.launch.takeover.optimizers import FoundOptimizers
from quorate.launch.worker.join import join
from quorate.launch.worker.world import World
from quorate.means.equal_replicas import copy_tensors
from quorate.strategies import strategies
from quorate.train.chosen import Chosen
from quorate.train.loop import Loop, loops_of
from quorate.train.never_stepped import Undistributed
from quorate.train.pauses import pause
from quorate.wire import current
from quorate.wire.current import Place

_BatchNorm = torch.nn.modules.batchnorm._BatchNorm

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
_HALF: dict[str, dict[str, object]] = {
    "allreduce_hook": {},
    "fp16_compress_hook": {"compress": "half", "dtype": "float16", "dense_below": 0},
    "bf16_compress_hook": {"compress": "half", "dtype": "bfloat16", "dense_below": 0},
}
_POWER = ("powerSGD_hook", "batched_powerSGD_hook")


@dataclass
class TakenOver:
    """The models in wrappers of one worker, and their optimizers."""

    optimizers: FoundOptimizers = field(default_factory=FoundOptimizers)
    evaluations: Evaluations | None = None
    agreed: AgreedState | None = None
    consumed: Consumed = field(default_factory=Consumed)
    wire: Wire | None = None
    """A channel for copies of models as wrappers are made."""
    has_own_buffers: bool = False
    """Whether each worker keeps its buffers between evaluations (`broadcast_buffers=False`)."""

    def begin(self, place: Place, world: World) -> None:
        """Take over the models of this worker's script, once."""
        if self.evaluations is not None:
            return
        agreed = self.agreed = AgreedState(place)
        self.consumed = place.context(Consumed)
        modules = self.optimizers.alive
        self.evaluations = Evaluations(
            place,
            world,
            needs_buffers=lambda: self.has_own_buffers or has_running_statistics(modules()),
            agreed=agreed,
            modules=modules,
        )
        place.context(Undistributed).close()
        place.context(DataContext).is_of_script = True
        place.leaving.append(agreed.ended)  # once optimizers, which are distributed later, have ended
        self.optimizers.watch(place, self.distribute)

    def distribute(self) -> bool:
        """Distribute optimizers that are new, whose steps evaluations watch then; return whether there are any."""
        are_new = self.optimizers.distribute()
        if are_new and self.evaluations is not None:
            self.evaluations.begin()
        return are_new

    def add(self, module: Module, place: Place) -> None:
        """Take over `module`, whose parameters all workers have alike."""
        self.optimizers.modules.append(ref(module))
        module.register_state_dict_post_hook(_StateHook(place, self))
        module.register_load_state_dict_post_hook(_Forgets(place, self))


class _Reducer:
    """The part of torch's wrapper that libraries tell of a backward pass after or inside its forward pass."""

    def __init__(self, wrapper: DistributedDataParallel) -> None:
        self._wrapper = ref(wrapper)

    def prepare_for_backward(self, outputs: Any) -> None:
        """Let the backward pass to come agree, or only add to `.grad`, as the wrapper says by now."""
        if (wrapper := self._wrapper()) is not None:
            wrapper.put_off()

    def _rebuild_buckets(self) -> bool:
        return False

    def _delay_all_reduce(self) -> None:
        pass


class DistributedDataParallel(OfTorch):
    """Looks like torch's class, and agrees as the strategy that was asked for says.

    Every worker has rank 0's parameters and buffers once it is made. The optimizers of the parameters are distributed
    at the first forward pass with gradients. `eval()` and `train()` are a pause of training: see `evaluation`.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Any = None,
        param_to_hook_all_reduce: Any = None,
        mixed_precision: Any = None,
        device_mesh: Any = None,
        **more: Any,
    ) -> None:
        Module.__init__(self)
        Joinable.__init__(self)
        unknown = sorted(more.keys() - inspect.signature(OfTorch.__init__).parameters.keys())
        if unknown:
            raise TypeError(f"DistributedDataParallel.__init__() got an unexpected keyword argument {unknown[0]!r}")
        refused = {
            "delay_all_reduce_named_params": delay_all_reduce_named_params,
            "param_to_hook_all_reduce": param_to_hook_all_reduce,
            "mixed_precision": mixed_precision,
            "parameters to ignore": getattr(module, "_ddp_params_and_buffers_to_ignore", None),
        }
        for name, value in refused.items():
            if value:
                raise ConfigurationError(
                    f"DistributedDataParallel was given {name}, which a strategy of quorate does not have; leave it out"
                )
        parameters = list(module.parameters())
        if not any(p.requires_grad for p in parameters):
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameters that require a "
                "gradient."
            )
        if any(p.__class__.__name__ == "UninitializedParameter" for p in parameters):
            raise RuntimeError("Modules with uninitialized parameters can't be used with `DistributedDataParallel`.")
        world = join()
        self._place = place = current.here()
        if device_mesh is not None and process_group is None:
            process_group = device_mesh.get_group()
        if process_group is not None and process_group.size() != world.size:
            raise ConfigurationError(
                f"DistributedDataParallel was given a process group of {process_group.size()} of {world.size} workers, "
                "and a strategy of quorate is one of all; leave out process_group"
            )
        self.module = module
        self.device = parameters[0].device
        self.device_type, self.dim = self.device.type, dim
        self.device_ids = list(device_ids) if device_ids and self.device_type != "cpu" else None
        self.output_device = output_device
        default: Any = dist.group.WORLD if dist.is_initialized() else None
        self.process_group = process_group or default
        forward_sync_buffers = more.get("forward_sync_buffers")  # from torch 2.13 on
        self.broadcast_buffers = (
            broadcast_buffers if forward_sync_buffers is None else forward_sync_buffers
        ) is not False
        self.find_unused_parameters, self.static_graph = find_unused_parameters, static_graph
        self.gradient_as_bucket_view, self.mixed_precision = gradient_as_bucket_view, None
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.reducer: Any = _Reducer(self)
        self._paused: AbstractContextManager[object] | None = None
        taken = self._taken = place.context(TakenOver)
        if not self.broadcast_buffers:
            _keep_own_buffers(place)
            taken.has_own_buffers |= any(True for _ in module.buffers())
        taken.begin(place, world)
        if init_sync and world.size > 1 and not place.wire.is_newcomer:
            check_alike(module, world)
            taken.wire = taken.wire or place.wire.channel("taken over")
            copy_tensors([*parameters, *module.buffers()], taken.wire)
        taken.add(module, place)

    # -- forward, as a user calls it

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the model."""
        module: Any = self._modules["module"]  # Module looks an attribute up slowly
        if torch.is_grad_enabled():
            begin = self._begin_beside_graph if torch.compiler.is_dynamo_compiling() else self._begin
            begin(module, (*inputs, *kwargs.values()))
        if self.device_ids:
            device = torch.device(self.device_type, self.device_ids[0])
            (inputs, *_), (kwargs, *_) = _to_kwargs(inputs, kwargs, device, False)
        return module(*inputs, **kwargs)

    def _begin(self, module: Module, arguments: tuple[Any, ...]) -> None:
        """Begin a forward pass of `module` with gradients."""
        taken, place = self._taken, self._place
        if taken.evaluations is not None and current.place() is place:
            begin_forward(taken, module, arguments)
            if self.require_backward_grad_sync is (self._paused is not None):
                self.put_off()

    def put_off(self) -> None:
        """Let backward passes to come only add to `.grad`, or agree again, as `require_backward_grad_sync` says."""
        module: Any = self._modules["module"]
        self._paused = put_off(self._paused, self._taken, module, is_on=not self.require_backward_grad_sync)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _begin_beside_graph(self, module: Module, arguments: tuple[Any, ...]) -> None:
        """Do the same out of a graph that `torch.compile` makes; the decorator costs more than the rest."""
        self._begin(module, arguments)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes of what is computed inside only add to `.grad`, as in torch."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextmanager
    def _joined(self, weight: float) -> Iterator[None]:
        self._taken.distribute()  # here by all workers, as some may have no data
        of_gradients = [loop.worker.means for loop in loops_of(self._place) if _uses_gradients_of_all(loop)]
        for means in of_gradients:
            means.weight_of_paused = weight
        yield
        pause(self._place)
        for means in of_gradients:
            means.weight_of_paused = 0.0
        if self._taken.evaluations is not None:
            self._taken.evaluations.all_have_joined()
        if self._taken.agreed is not None and not any(
            loop.strategy.replicas == "differ" for loop in loops_of(self._place)
        ):
            self._taken.agreed.keep(self._taken.optimizers.alive())

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Any:
        """Return a context for loops of unequal length, in which workers that are through keep the others company.

        Their gradients count as zeros, or not at all where it does not divide by the initial size or under strategies
        that form other means.
        """
        if throw_on_early_termination:
            raise ConfigurationError("join(throw_on_early_termination=True) is not supported under a strategy")
        return self._joined(float(divide_by_initial_world_size)) if enable else ExitStack()

    def join_hook(self, **kwargs: Any) -> Any:
        """Raise `ConfigurationError`: torch's `Join` of several objects."""
        raise ConfigurationError(
            "torch's Join is not supported under a strategy of quorate; use model.join() of the wrapper alone"
        )

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Compress as torch's own hook does. Raises `ConfigurationError` for others, and after the first forward."""
        if self._taken.optimizers.are_there:
            raise ConfigurationError("register_comm_hook was called after the first forward pass; call it before")
        chosen = self._place.context(Chosen)
        chosen.settings = {**settings_of_hook(state, hook), **chosen.settings}

    def train(self, mode: bool = True) -> DistributedDataParallel:
        """Begin an evaluation, or continue the training."""
        turn(self.module, self._taken, is_training=mode)
        Module.train(self, mode)
        return self

    # -- what frameworks ask for

    def _set_static_graph(self) -> None:
        self.static_graph = True

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        return {}

    def will_sync_module_buffers(self) -> bool:
        """Return False: buffers are copied between forward passes."""
        return False

    def __getstate__(self) -> dict[str, Any]:
        own = dict(self.__dict__)
        for name in ("process_group", "_place", "_paused", "reducer"):
            own[name] = None
        own["_taken"] = TakenOver()
        return own

    def __setstate__(self, state: dict[str, Any]) -> None:
        nn.Module.__setstate__(self, state)


DistributedDataParallel.__name__ = DistributedDataParallel.__qualname__ = OfTorch.__name__


def _keep_own_buffers(place: Place) -> None:
    """Let no step copy buffers that forward passes read; evaluations of all workers and the end do."""
    chosen = place.context(Chosen)
    if chosen.strategy_name is not None and strategies.get(chosen.strategy_name).buffers == "rank0-each-step":
        chosen.settings = {"buffers": "rank0", **chosen.settings}


def begin_forward(taken: TakenOver, module: Module, arguments: Sequence[Any]) -> None:
    """Begin a forward pass of `module` with gradients; optimizers that are new are distributed."""
    evaluations, optimizers = taken.evaluations, taken.optimizers
    assert evaluations is not None
    if evaluations.are_open and module.training:  # Lightning sets the modules inside to training, and not the wrapper
        evaluations.left_by(module)
    if optimizers.distribute():
        evaluations.begin()
    if optimizers.modules[0]() is module:  # others are called in the same step
        count_examples(taken.consumed, arguments)


Paused = AbstractContextManager[object] | None


def put_off(paused: Paused, taken: TakenOver, module: Module, *, is_on: bool) -> Paused:
    """Let the backward passes of `module` to come only add to `.grad`, or agree again.

    `paused` and the result are the context in which they only add; None where they agree.
    """
    if is_on == (paused is not None):
        return paused
    if paused is not None:
        paused.__exit__(None, None, None)
        return None
    inside = ExitStack()
    for optimizer in taken.optimizers.of(module):
        inside.enter_context(optimizer.accumulate())
    return inside


def turn(module: Module, taken: TakenOver, *, is_training: bool) -> None:
    """Tell that the `module` of a wrapper is about to be in training, or in evaluation."""
    evaluations = taken.evaluations
    if evaluations is None:
        return
    if is_training:
        evaluations.left_by(module)
    elif module.training:
        evaluations.enter(module)


def turn_inside(module: Module, taken: TakenOver, *, is_training: bool) -> None:
    """Tell the same of a model in a wrapper; `module` may be any."""
    if any(reference() is module for reference in taken.optimizers.modules):
        turn(module, taken, is_training=is_training)


def settle(place: Place) -> None:
    """End the training: all workers have the agreed model."""
    taken = place.context(TakenOver)
    if taken.evaluations is not None:
        taken.evaluations.leave()
    for optimizer in taken.optimizers.all:
        optimizer.finish()
    if taken.agreed is not None:
        taken.agreed.ended()


def _uses_gradients_of_all(loop: Loop) -> bool:
    """Whether each step uses one mean of the gradients of all workers."""
    worker = loop.worker
    return loop.strategy.replicas == "equal" and worker.agrees_in_backward and not worker.has_rounds


def has_running_statistics(modules: Sequence[Module]) -> bool:
    """Return whether a model has batch norm whose statistics each worker keeps by itself."""
    parts = (part for module in modules for part in module.modules())
    return any(isinstance(part, _BatchNorm) and part.track_running_stats for part in parts)


def check_alike(module: Module, world: Any) -> None:
    """Raise `ConfigurationError` where workers have parameters or buffers of other names, shapes or dtypes."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    text = "\n".join(f"{name} {x.dtype} {tuple(x.shape)}" for name, x in tensors)
    digests = world.gather(hashlib.sha256(text.encode()).hexdigest())
    other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
    if other is not None:
        raise ConfigurationError(
            f"the model in DistributedDataParallel has other parameters or buffers on rank {other} than on rank 0; "
            "make the same model on all workers"
        )


class _Hook:
    """A hook of a model of one worker; in copies and pickles of the model it does nothing."""

    def __init__(self, place: Place | None = None, taken: TakenOver | None = None) -> None:
        self._place, self._taken = place, taken

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return type(self)()

    def __reduce__(self) -> Any:
        return type(self), ()


class _StateHook(_Hook):
    """A hook of a model's `state_dict()` that shows the agreed state, outside of an evaluation of all workers."""

    def __call__(self, module: Module, state: Any, prefix: str, metadata: Any) -> None:
        if self._taken is None or current.place() is not self._place or self._taken.agreed is None:
            return
        evaluations = self._taken.evaluations
        if evaluations is None or not evaluations.is_together:
            self._taken.agreed.show(module, state, prefix)
        else:
            self._taken.agreed.shown_to_all()


class _Forgets(_Hook):
    """A hook of a model's `load_state_dict()`, after which what all agreed on before is no state of it."""

    def __call__(self, module: Module, keys: Any) -> None:
        if self._taken is not None and self._taken.agreed is not None:
            self._taken.agreed.forget()


def settings_of_hook(state: Any, hook: Any) -> dict[str, object]:
    """Return the settings that compress as the hook does. Raises `ConfigurationError` for one that is not torch's."""
    name, module = getattr(hook, "__name__", type(hook).__name__), getattr(hook, "__module__", "")
    if module.startswith(_HOOKS) and name in _HALF:
        return dict(_HALF[name])
    if module.startswith(_HOOKS) and name in _POWER:
        return {
            "compress": "power-sgd",
            "rank": state.matrix_approximation_rank,
            "start": state.start_powerSGD_iter,
            "min_rate": state.min_compression_rate,
            "warm_start": state.warm_start,
        }
    raise ConfigurationError(
        f"register_comm_hook was given {name}, and under a strategy of quorate gradients are not DDP's buckets; of "
        f"torch's hooks {', '.join((*_HALF, *_POWER))} are known: give another codec with --set compress=NAME"
    )


def count_examples(counts: Consumed, arguments: Iterable[Any]) -> None:
    """Count the rows of the first tensor that a model in training is called with, in each step."""
    for x in arguments:
        if isinstance(x, Tensor):
            if x.dim() > 0:
                counts.note(0.0, x.shape[0], None)
                return
        elif isinstance(x, list | tuple | Mapping):  # the batch of a Lightning module
            inside = x.values() if isinstance(x, Mapping) else x
            if any(isinstance(y, Tensor) and y.dim() > 0 for y in inside):
                count_examples(counts, inside)
                return
