"""The state of a model and an optimizer besides parameters, as plain JSON and tensors, and back."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import as_piece_of, is_sharded, local
from quorate.replica.plain_step import step_unseen

_OF_TORCH = ("state", "param_groups", "defaults")


def beside(model: Module, every: list[Any]) -> list[Tensor]:
    """Return the parameters of a model that are not in `every`, and its buffers."""
    own = {id(p) for p in every}
    return [*(p for p in model.parameters() if id(p) not in own), *model.buffers()]


def caches_in(model: Module) -> set[str]:
    """Return the names of buffers that are no part of the model's state: a module may make them longer as it needs."""
    modules = model.named_modules()
    return {f"{name}.{key}" if name else key for name, module in modules for key in module._non_persistent_buffers_set}


def write_back(tensors: Sequence[Tensor], numbers: Tensor) -> None:
    """Write `numbers`, one after the other, into `tensors`; see `write_numbers`."""
    pieces = [local(x) for x in tensors]
    for x, part in zip(pieces, numbers.split([x.numel() for x in pieces]), strict=True):
        write_numbers(x, part)


def write_numbers(x: Tensor, numbers: Tensor) -> None:
    """Write `numbers`, in any shape, into `x`; an expanded `x` gets those that it holds."""
    target, source = x, numbers.view(x.shape)
    for place in range(x.dim()):
        if x.stride(place) == 0 and x.shape[place] > 1:
            target, source = target.narrow(place, 0, 1), source.narrow(place, 0, 1)
    target.copy_(source)


def optimizer_to_plain(optimizer: Optimizer) -> tuple[dict[str, Any], list[Tensor]]:
    """Return an optimizer's state and options, those inside included, as JSON and its own tensors."""
    tensors: list[Tensor] = []
    inner = {path: _own_to_plain(held, tensors) for path, held in inner_optimizers(optimizer).items()}
    about = _own_to_plain(optimizer, tensors)
    return {**about, "inner": inner} if inner else about, tensors


def _own_to_plain(optimizer: Optimizer, tensors: list[Tensor]) -> dict[str, Any]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        "states": [_plain(optimizer.state[p], tensors) if p in optimizer.state else None for p in parameters],
        "options": [_plain(options_of(group), tensors) for group in optimizer.param_groups],
        "beside": beside_parameters(optimizer, tensors),
    }


_ATTRIBUTES = "_quorate_attributes"
"""The attribute of an optimizer that holds its numbers at the time it was distributed."""


def note_attributes(optimizer: Optimizer) -> None:
    """Remember the numbers among an optimizer's attributes, and of those inside: steps may count in them."""
    for held in (optimizer, *inner_optimizers(optimizer).values()):
        vars(held)[_ATTRIBUTES] = _numbers_among(vars(held))


def _numbers_among(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: x for key, x in attributes.items() if type(x) in (int, float) and not key.startswith("_")}


def beside_parameters(optimizer: Optimizer, tensors: list[Tensor] | None = None) -> dict[str, Any]:
    """Return an optimizer's state beside parameters and options, as JSON: named state, and changed attributes.

    Tensors are appended to `tensors`; without it they are left out.
    """
    state: dict[str, Any] = {}
    names: Any = optimizer.state
    for key, x in names.items():
        behind: list[Tensor] = [] if tensors is None else tensors
        count = len(behind)
        if isinstance(key, str):
            written = _plain(x, behind)
            if tensors is not None or len(behind) == count:
                state[key] = written
    before = vars(optimizer).get(_ATTRIBUTES, {})
    changed = {key: x for key, x in _numbers_among(vars(optimizer)).items() if key in before and before[key] != x}
    return {"state": state, "attributes": changed}


def put_beside_parameters(optimizer: Optimizer, beside: Mapping[str, Any], tensors: Sequence[Tensor] = ()) -> None:
    """Restore the state that `beside_parameters` returned."""
    names: Any = optimizer.state
    for key, written in beside.get("state", {}).items():
        names[key] = _rebuilt(written, tensors, names.get(key))
    vars(optimizer).update(beside.get("attributes", {}))


def states_to_plain(optimizer: Optimizer, parameters: Sequence[Tensor]) -> tuple[list[Any], list[Tensor]]:
    """Return an optimizer's state of `parameters`, as JSON (None: there is none) and its own tensors."""
    tensors: list[Tensor] = []
    return [_plain(optimizer.state[p], tensors) if p in optimizer.state else None for p in parameters], tensors


def states_from_plain(
    optimizer: Optimizer, parameters: Sequence[Tensor], states: Sequence[Any], tensors: Sequence[Tensor]
) -> None:
    """Restore the state that `states_to_plain` returned; the tensors are the optimizer's from then on."""
    for p, state in zip(parameters, states, strict=True):
        if state is None:
            optimizer.state.pop(p, None)
        else:
            optimizer.state[p] = _rebuilt(state, tensors, optimizer.state.get(p), p)


def optimizer_from_plain(optimizer: Optimizer, about: dict[str, Any], tensors: Sequence[Tensor]) -> None:
    """Restore the state that `optimizer_to_plain` returned; the tensors are the optimizer's from then on."""
    own = inner_optimizers(optimizer)
    for path, inner in about.get("inner", {}).items():
        if path in own:
            _own_from_plain(own[path], inner, tensors)
    _own_from_plain(optimizer, about, tensors)


def _own_from_plain(optimizer: Optimizer, about: dict[str, Any], tensors: Sequence[Tensor]) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states_from_plain(optimizer, parameters, about["states"], tensors)
    for group, options in zip(optimizer.param_groups, about["options"], strict=True):
        group.update(_rebuilt(options, tensors, group))
    put_beside_parameters(optimizer, about.get("beside", {}), tensors)


def options_of(group: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a parameter group without its parameters."""
    return {name: value for name, value in group.items() if name != "params"}


def optimizer_from_other(
    optimizer: Optimizer, about: dict[str, Any], tensors: Sequence[Tensor], written: Sequence[set[str]] = ()
) -> None:
    """Restore the state of another worker's optimizer, as `optimizer_from_plain`.

    Options stay as this worker's scheduler has set them, apart from those that the optimizer's steps have `written`.
    """
    by_steps = [*written, *(set() for _ in range(len(optimizer.param_groups) - len(written)))]
    own = [
        {name: x for name, x in options_of(group).items() if name not in names}
        for group, names in zip(optimizer.param_groups, by_steps, strict=True)
    ]
    optimizer_from_plain(optimizer, about, tensors)
    for group, options in zip(optimizer.param_groups, own, strict=True):
        group.update(options)


def _plain(value: Any, tensors: list[Tensor]) -> Any:
    """Return `value` as JSON: everything becomes a marked list, tensors are put aside, others leave only a mark."""
    if isinstance(value, Tensor):
        tensors.append(local(value).detach())
        return ["tensor", len(tensors) - 1]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return ["dict", {key: _plain(item, tensors) for key, item in value.items()}]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [_plain(item, tensors) for item in value]]
    if value is None or isinstance(value, bool | int | float | str):
        return ["value", value]
    return ["kept"]


def _rebuilt(written: Any, tensors: Sequence[Tensor], before: Any, of: Tensor | None = None) -> Any:
    """Return the value of what `_plain` wrote (`of` a parameter), or `before` where it wrote only a mark."""
    kind = written[0]
    if kind == "tensor":
        x = tensors[written[1]]
        return x if of is None or not is_sharded(of) or x.shape != local(of).shape else as_piece_of(of, x)
    if kind == "dict":
        old = before if isinstance(before, dict) else {}
        return {key: _rebuilt(item, tensors, old.get(key), of) for key, item in written[1].items()}
    if kind in ("list", "tuple"):
        items = [_rebuilt(item, tensors, None, of) for item in written[1]]
        return tuple(items) if kind == "tuple" else items
    return written[1] if kind == "value" else before


def trial_of(
    plain: type[Optimizer], group: Mapping[str, Any], parameters: list[Parameter], **options: Any
) -> Optimizer:
    """Return an optimizer of class `plain` on these small `parameters`, with the options of `group` and `options`.

    Flags of `group` that its constructor lacks are added, and `train()` is called. Raises the errors of the class.
    """
    takes = inspect.signature(plain).parameters
    chosen = {key: copy.deepcopy(x) for key, x in group.items() if key in takes and key != "params"}
    chosen |= {key: x for key, x in options.items() if key in takes}
    optimizer: Any = plain(parameters, **chosen)
    for own in optimizer.param_groups:
        own.update({key: x for key, x in group.items() if isinstance(x, bool | str) and key in own.keys() - chosen})
    if callable(switch := getattr(optimizer, "train", None)):
        switch()
    return cast("Optimizer", optimizer)


def keys_like_parameters(plain: type[Optimizer], group: Mapping[str, Any]) -> list[str]:
    """Return the names of the state that an optimizer of class `plain` keeps in the shape of a parameter.

    They are seen from one step on a vector, or on a matrix where that fails, with the options of `group`. Raises
    `ConfigurationError` where both fail.
    """
    failure = ""
    for shape in ((3,), (2, 3)):
        tried = Parameter(torch.zeros(shape))
        tried.grad = torch.ones(shape)
        try:
            alone = trial_of(plain, group, [tried])
            step_unseen(alone)
        except Exception as error:  # the class is foreign code, and may raise anything
            failure = failure or str(error) or type(error).__name__
            continue
        kept = alone.state[tried]
        return sorted(key for key, x in kept.items() if isinstance(x, Tensor) and x.shape == tried.shape)
    raise ConfigurationError(
        f"what {plain.__name__} keeps cannot be averaged, as a trial step on a small tensor failed: {failure}; "
        'pass momentum="keep", and each worker keeps its own'
    )


def growth_with_gradient(plain: type[Optimizer], group: Mapping[str, Any]) -> Literal[1, 2] | None:
    """Return the factor by which the first step of class `plain` grows where its gradient is doubled.

    2: as a step of SGD; 1: as a step that normalizes its gradient (Muon); None: another factor, or the trial failed.
    """
    gradient = torch.cos(torch.arange(6.0)).view(2, 3)
    steps = [_tried(plain, group, [factor * gradient])[0] for factor in (1, 2)]
    if not steps[0].any():
        return None
    for factor in (1, 2):
        if float((steps[1] - factor * steps[0]).norm()) < 0.01 * float(steps[1].norm()):
            return 1 if factor == 1 else 2
    return None


def keeps_squares(plain: type[Optimizer], group: Mapping[str, Any]) -> bool:
    """Return whether `exp_avg_sq` of class `plain` is a mean of the squares of each number of the gradient.

    It is not if the optimizer first converts gradients to another basis, as SOAP does.
    """
    gradient = torch.cos(torch.arange(6.0)).view(2, 3)
    squares = _tried(plain, group, [gradient] * 3)[1].get("exp_avg_sq")
    if not isinstance(squares, Tensor) or squares.shape != gradient.shape:
        return False
    ratios = squares / gradient.square()
    return bool(ratios.max() <= 1.01 * ratios.min())


def clears_gradients(plain: type[Optimizer], group: Mapping[str, Any]) -> bool:
    """Return whether a step of class `plain` clears the gradients that it has used; False if the trial failed."""
    tried = Parameter(torch.ones(2, 3))
    tried.grad = torch.ones(2, 3)
    try:
        step_unseen(trial_of(plain, group, [tried]))
    except Exception:  # the class is foreign code, and may raise anything
        return False
    left: Any = tried.grad
    return left is None or not left.any()


def _tried(
    plain: type[Optimizer], group: Mapping[str, Any], gradients: Sequence[Tensor]
) -> tuple[Tensor, Mapping[str, Any]]:
    """Return how far trial steps with these gradients move a small matrix, and its state; zeros if a step fails."""
    tried = Parameter(torch.ones_like(gradients[0]))
    try:
        optimizer = trial_of(plain, group, [tried], lr=0.1, weight_decay=0.0)
        for gradient in gradients:
            tried.grad = gradient.clone()
            step_unseen(optimizer)
    except Exception:  # the class is foreign code, and may raise anything
        return torch.zeros_like(tried), {}
    return tried.detach() - 1, optimizer.state[tried]


def inner_optimizers(optimizer: Optimizer) -> dict[str, Optimizer]:
    """Return the optimizers among the attributes of `optimizer`, and of these in turn, by their path."""
    optimizers: dict[str, Optimizer] = {}
    _look(optimizer, "", optimizers)
    return {name: inner for name, inner in optimizers.items() if inner is not optimizer}


def _look(optimizer: Optimizer, path: str, optimizers: dict[str, Optimizer]) -> None:
    for name, value in vars(optimizer).items():
        if name.startswith("_quorate"):
            continue
        values = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else [value]
        for place, inner in enumerate(values if name not in _OF_TORCH else ()):
            if isinstance(inner, Optimizer) and not any(inner is other for other in (optimizer, *optimizers.values())):
                key = f"{path}{name}" if values is not value and len(list(values)) == 1 else f"{path}{name}.{place}"
                optimizers[key] = inner
                _look(inner, f"{key}.", optimizers)
