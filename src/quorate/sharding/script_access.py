"""Access of a script to parameters in shards, where torch's own methods have no effect or fail.

torch's FSDP gives a module its full parameters only inside the forward and backward pass; a script holds shards
(`DTensor`). For these, `p.data = x`, `p.register_hook`, `numpy()` and `tolist()` are replaced here, and modules accept
full tensors in `load_state_dict`. A step costs nothing; a forward pass checks once for each block whether it runs in
inference mode.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import Module, Parameter
from torch.utils.hooks import RemovableHandle

from quorate.core.axes import rows_of
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import as_piece_of, is_sharded, local

Hook = Callable[[Tensor], Tensor | None]

_roots: WeakSet[Module] = WeakSet()
_hooks: WeakKeyDictionary[Any, OrderedDict[int, Hook]] = WeakKeyDictionary()
"""Hooks of `register_hook`, by torch's record of the parameter."""
_records: dict[int, tuple[Any, Any]] = {}
"""By the `id` of a parameter: weak references to torch's record of it, and to the module that gathers it."""
_apart: WeakKeyDictionary[Module, frozenset[int]] = WeakKeyDictionary()
"""The `id`s of the parameters that `quorate.parallelize` has not cut, by model."""
_plain_data: Any = Tensor.data
_plain_register_hook: Any = Tensor.register_hook


def records_of(model: Module) -> Iterator[tuple[Any, Any]]:
    """Yield torch's record (`FSDPParam`) of each parameter in shards, and the module that gathers it."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            for group in (state._fsdp_param_group,) if groups is None else groups:  # several from torch 2.13 on
                for record in () if group is None else group.fsdp_params:
                    yield record, module


class HooksBefore:
    """Hooks that a script has registered on the parameters of a model that is not in shards yet."""

    def __init__(self, model: Module) -> None:
        self._of_gradients: dict[tuple[int, str], Any] = {}
        self._of_sums: dict[tuple[int, str], Any] = {}
        for module in model.modules():
            for key, p in module._parameters.items():
                if p is not None and p._backward_hooks:
                    self._of_gradients[id(module), key] = p._backward_hooks
                if p is not None and p._post_accumulate_grad_hooks:
                    self._of_sums[id(module), key] = p._post_accumulate_grad_hooks

    def move(self, model: Module) -> None:
        """Register the hooks on the parameters that the model has in shards."""
        for record, module in records_of(model) if self._of_gradients or self._of_sums else ():
            place = id(record._module_info.module), record._module_info.param_name
            if place in self._of_gradients:
                _let_run(record, module, self._of_gradients[place])
            for hook in self._of_sums.get(place, {}).values():
                record.sharded_param.register_post_accumulate_grad_hook(hook)


def check_shardable(model: Module) -> None:
    """Raise `ConfigurationError` for a module that cannot be in shards; make weights contiguous, as torch cuts them. A
    convolution takes inputs in `channels_last` with contiguous weights."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ConfigurationError(
                f"{name or 'the model'} is a ScriptModule, which cannot gather parameters in shards; give "
                "quorate.parallelize the module before torch.jit.script, or train without shards"
            )
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.max_norm is not None:
            raise ConfigurationError(
                f"{name or 'the model'} has max_norm={module.max_norm}, which writes into its weight in the forward "
                "pass, where a model in shards loses it. Leave max_norm out, and scale rows after optimizer.step(): "
                "w.mul_((max_norm / w.norm(dim=1, keepdim=True)).clamp(max=1)) under torch.no_grad()"
            )
    for p in model.parameters():
        if not p.is_contiguous() and not is_sharded(p):
            p.data = p.data.contiguous()


def give_access(model: Module) -> list[RemovableHandle]:
    """Let a script use the parameters of a sharded `model` as torch documents; return the hooks that do so."""
    kind: Any = DTensor
    kind.data = property(_plain_data.__get__, _set_data, _plain_data.__delete__)
    kind.register_hook, kind.numpy, kind.tolist = _register_hook, _numpy, _tolist
    _roots.add(model)
    _apart[model] = frozenset(id(p) for p in model.parameters() if not is_sharded(p))
    holders: dict[int, tuple[Module, Any]] = {}
    for record, module in records_of(model):
        _cut_gradients(record.sharded_param)
        info = record._module_info
        holders.update({id(holder): (holder, module) for holder in (info.module, *info.shared_modules)})
    handles = [
        holder.register_load_state_dict_pre_hook(partial(take_whole_tensors, module))
        for holder, module in holders.values()
    ]
    for module in model.modules():
        if isinstance(module, FSDPModule):
            hooked: Any = module
            handles.append(hooked.register_forward_pre_hook(_gather_for_inference, prepend=True))
            handles += _FirstPass(hooked, [record for record, holder in records_of(model) if holder is module]).handles
    _replace(torch.nn.utils.stateless, "_functional_call", _functional_call)
    _replace(torch.autograd, "grad", _gradients)
    _replace(FSDPModule, "_apply", _apply)
    return handles


def _cut_gradients(p: Any) -> None:
    """Let gradients from arithmetic with shards be cut like `p`: torch leaves those of a single row on all workers."""

    def cut(gradient: Any) -> Any:
        if not isinstance(gradient, DTensor) or gradient.placements == placements:
            return None
        return gradient.redistribute(mesh, placements)

    mesh, placements, is_trained = p.device_mesh, p.placements, p.requires_grad
    p.requires_grad_(True)  # else it takes no hook, and it may be trained later
    _plain_register_hook(p, cut)
    p.requires_grad_(is_trained)


def is_left_whole(model: Module, p: Tensor) -> bool:
    """Return whether `quorate.parallelize` has left this parameter of `model` uncut."""
    return id(p) in _apart.get(model, ())


def _record_of(p: Tensor) -> tuple[Any, Any] | None:
    """Return torch's record of a parameter in shards, and the module that gathers it; None for another tensor."""
    for is_new in (False, True):
        if is_new:
            _records.clear()
            pairs = (pair for root in _roots for pair in records_of(root))
            _records.update({id(record.sharded_param): (ref(record), ref(module)) for record, module in pairs})
        record, module = (reference() for reference in _records.get(id(p), (_nothing, _nothing)))
        if record is not None and module is not None and record.sharded_param is p:
            return record, module
    return None


def _nothing() -> None:
    return None


def piece_of(p: Any, whole: Tensor) -> Tensor:
    """Return this worker's piece of a full tensor that is cut like `p`; a view where that is possible."""
    mesh, placements = p.device_mesh, p.placements
    if mesh.ndim == 1 and placements == (Shard(0),):
        rows = rows_of(whole.shape[0], mesh.size(), mesh.get_local_rank())
        return whole[rows.start : rows.stop]
    return local(distribute_tensor(whole, mesh, placements, src_data_rank=None))


def _set_data(p: Any, x: Any) -> None:
    """Implement `p.data = x` for a tensor in shards; of a full tensor `x` each worker takes its rows."""
    if x.shape != p.shape:
        raise ConfigurationError(
            f"p.data = x of a tensor in shards has {tuple(x.shape)} in place of {tuple(p.shape)}; give it a tensor of "
            "the same shape, or change the model before quorate.parallelize"
        )
    if x.dtype != p.dtype:
        raise ConfigurationError(
            f"p.data = x of a tensor in shards has {x.dtype} in place of {p.dtype}; convert the model by model.to() "
            "before quorate.parallelize"
        )
    with torch.no_grad():
        if isinstance(x, DTensor):
            if x.device_mesh != p.device_mesh or x.placements != p.placements:
                x = x.redistribute(p.device_mesh, p.placements)
            numbers = local(x)
        else:
            numbers = piece_of(p, x.to(local(p).device)).clone()
        entry = _record_of(p) if isinstance(p, Parameter) else None
        if entry is None:
            p._local_tensor = numbers
        elif entry[0].offload_to_cpu:
            local(p).copy_(numbers)
        else:
            _stand_on(entry[0], p, numbers.detach().contiguous())


def _stand_on(record: Any, p: Any, numbers: Tensor) -> None:
    """Let a parameter, and what torch gathers of it, use the memory of `numbers`, or a padded copy."""
    padded, size = numbers, record.padded_sharded_param_size
    if numbers.shape != size:
        padded = numbers.new_zeros(size)
        padded[: numbers.shape[0]].copy_(numbers)
        numbers = padded[: numbers.shape[0]]
    p._local_tensor, record._sharded_param_data = numbers, padded.view(-1)


def _register_hook(p: Any, hook: Hook) -> RemovableHandle:
    """Implement `register_hook`; the hook gets the full gradient of this worker, before means are formed."""
    entry = _record_of(p) if isinstance(p, Parameter) and p.requires_grad else None
    if entry is None:
        return _plain_register_hook(p, hook)  # type: ignore[no-any-return]
    record, module = entry
    hooks = _hooks.get(record)
    if hooks is None:
        hooks = OrderedDict()
        _let_run(record, module, hooks)
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _let_run(record: Any, module: Any, hooks: OrderedDict[int, Hook]) -> None:
    """Call `hooks` with the gradients of the full parameter, which torch makes in the first forward pass."""
    _hooks[record] = hooks

    def run(gradient: Tensor) -> Tensor:
        for hook in tuple(hooks.values()):
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
        return gradient

    is_begun = False

    def begin(*_: object) -> None:
        nonlocal is_begun
        if record._unsharded_param.requires_grad and not is_begun:  # copies of the module call it, too
            is_begun = True
            handle.remove()
            _plain_register_hook(record._unsharded_param, run)

    handle = module.register_forward_pre_hook(begin)


def _numpy(p: Any, *_: object, **__: object) -> Any:
    raise ConfigurationError(
        "numpy() of a tensor in shards; gather it by p.full_tensor() on all workers first: p.full_tensor().numpy()"
    )


def _tolist(p: Any) -> Any:
    raise ConfigurationError(
        "tolist() of a tensor in shards; gather it by p.full_tensor() on all workers first: p.full_tensor().tolist()"
    )


class _FirstPass:
    """Refuses a module that writes to its parameters in the forward pass: changes are lost with the gathered
    parameters.

    It checks the first pass, and removes itself.
    """

    def __init__(self, module: Any, records: Sequence[Any]) -> None:
        self._records = records
        self.handles = [module.register_forward_pre_hook(self._begin), module.register_forward_hook(self._end)]
        self._versions: list[int] = []

    def _begin(self, *_: object) -> None:
        self._versions = [record._unsharded_param._version for record in self._records]

    def _end(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()
        for record, before in zip(self._records, self._versions, strict=True):
            if record._unsharded_param._version != before:
                raise ConfigurationError(
                    f"the model writes into {record._param_fqn} in its forward pass, and a model in shards loses that; "
                    "write after optimizer.step(), under torch.no_grad()"
                )


def _replace(owner: Any, name: str, by: Callable[..., Any]) -> None:
    """Replace a function of torch by `by`, once; `by` gets that function as its first argument."""
    plain = getattr(owner, name)
    if getattr(plain, "_quorate_replaces", None) is not by:

        @functools.wraps(plain)
        def replacing(*args: Any, **kwargs: Any) -> Any:
            return by(plain, *args, **kwargs)

        replacing._quorate_replaces = by  # type: ignore[attr-defined]
        setattr(owner, name, replacing)


def _gradients(plain: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Implement `torch.autograd.grad`: the graph has gathered parameters, which no script can name."""
    if any(is_sharded(x) for x in ([inputs] if isinstance(inputs, Tensor) else inputs) if isinstance(x, Tensor)):
        raise ConfigurationError(
            "torch.autograd.grad with respect to parameters in shards finds none of them in the graph; use "
            "loss.backward(), and p.grad"
        )
    return plain(outputs, inputs, *args, **kwargs)


def _apply(plain: Any, module: Any, function: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
    """Implement `model.to()` and the like: shards stay contiguous, and once gathered keep their dtype."""

    def contiguous(x: Tensor) -> Tensor:
        changed = function(x)
        if is_sharded(changed) and not local(changed).is_contiguous():
            changed = changed.contiguous(memory_format=torch.contiguous_format)
        return changed

    plain(module, contiguous, *args, **kwargs)
    for record, _ in records_of(module):
        if hasattr(record, "_unsharded_param") and record.sharded_param.dtype != record.orig_dtype:
            raise ConfigurationError(
                f"the model in shards was converted to {record.sharded_param.dtype} after its first forward pass; "
                "convert it before quorate.parallelize, or give that a precision="
            )
    return module


def _functional_call(plain: Any, module: Module, replacements: Any, *args: Any, **kwargs: Any) -> Any:
    """Implement `torch.func.functional_call`, which under FSDP would use the module's parameters in place of passed
    ones."""
    if any(isinstance(part, FSDPModule) for part in module.modules()):
        own = dict(module.named_parameters(remove_duplicate=False))
        changed_names = [name for name, x in replacements.items() if name in own and x is not own[name]]
        if changed_names:
            raise ConfigurationError(
                f"functional_call gives other parameters ({changed_names[0]}) to a model in shards, which gathers its "
                "own; write them into the parameters under torch.no_grad(), or train without shards"
            )
    return plain(module, replacements, *args, **kwargs)


def _gather_for_inference(module: Any, *_: object) -> None:
    """Gather into ordinary tensors, not inference tensors, since training goes on with them."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():
            module.unshard()


def take_whole_tensors(
    gathering: Any, holder: Module, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any], *_: object
) -> None:
    """Replace full tensors by this worker's pieces; with `assign=True` the parameters stay the same objects."""
    if gathering is not None:
        gathering.reshard()
    for key, p in holder._parameters.items():
        x = state_dict.get(prefix + key)
        if p is None or not is_sharded(p) or not isinstance(x, Tensor) or x.shape != p.shape or x.is_meta:
            continue
        if not isinstance(x, DTensor):
            x = as_piece_of(p, piece_of(p, x.detach()))
        if metadata.get("assign_to_params_buffers", False):
            with torch.no_grad():
                p.copy_(x)
            x = p
        state_dict[prefix + key] = x
