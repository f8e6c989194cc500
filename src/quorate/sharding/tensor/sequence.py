"""Blocks in which each worker has a piece of the sequence between cut layers (sequence parallelism).

Between the cut layers, activations are pieces along the sequence, dimension 1: so norms, dropout and sums are
calculated once by all together. After `rows`, the sum is left in pieces; attention and the layers after a norm take all
pieces (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2). As many bytes are sent as without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import Module, ModuleList

from quorate.core.errors import ConfigurationError
from quorate.sharding.tensor.activations import Together, joined, joined_for_parts, piece_of

_CUT = ("columns", "rows", "fused")


def blocks_in(plan: Mapping[str, str], model: Module) -> list[str]:
    """Return the names of the blocks, in order, that work on pieces of the sequence. Raises `ConfigurationError` where
    no single list has all cut layers."""
    cut = [name for name, style in plan.items() if style in _CUT]
    for name, module in model.named_modules():
        blocks = [f"{name}.{key}" if name else key for key in module._modules]
        if (
            isinstance(module, ModuleList)
            and cut
            and all(layer.startswith(tuple(f"{b}." for b in blocks)) for layer in cut)
        ):
            return blocks
    raise ConfigurationError(
        "a sequence is cut between the first and the last of a list of blocks (ModuleList), and the model has no list "
        "with all layers that the tensor plan cuts"
    )


def styles_in_blocks(plan: Mapping[str, str], why: Mapping[str, str], model: Module) -> dict[str, str]:
    """Return the norms' styles. Raises `ConfigurationError` for blocks with layers that need the full sequence."""
    inside = tuple(f"{block}." for block in blocks_in(plan, model))
    styles = {}
    for name, module in model.named_modules():
        if not name.startswith(inside) or plan.get(name) in _CUT:
            continue
        if name in why:
            raise ConfigurationError(
                f"{name} stays whole ({why[name]}), and needs the whole sequence: leave that whole"
            )
        if any(True for _ in module.parameters(recurse=False)):
            if not (isinstance(module, nn.LayerNorm) or type(module).__name__.endswith("RMSNorm")):
                raise ConfigurationError(
                    f"{name}, of the class {type(module).__name__}, is not cut, and may need the whole sequence; "
                    "do not cut that"
                )
            styles[name] = "sequence"
    return styles


def attentions_in(plan: Mapping[str, str], model: Module, blocks: list[str]) -> list[str]:
    """Return the modules that are given the full sequence: those that hold query, key and value."""
    holders = [name.rpartition(".")[0] for name, style in plan.items() if style in ("columns", "fused")]
    inside = tuple(f"{block}." for block in blocks)
    return [
        name
        for name, _ in model.named_modules()
        if name.startswith(inside)
        and (holders.count(name) >= 3 or any(plan.get(f"{name}.{key}") == "fused" for key in _keys(model, name)))
    ]


def _keys(model: Module, name: str) -> list[str]:
    return list(model.get_submodule(name)._modules)


class Pieces:
    """Cuts the sequence before the first block, and joins it after the last one and for attention."""

    def __init__(self, together: Together) -> None:
        self._together = together

    def hook(self, model: Module, blocks: list[str], attentions: list[str]) -> None:
        """Install the hooks in `model`."""
        for name in attentions:
            model.get_submodule(name).register_forward_pre_hook(self._join, with_kwargs=True)
        model.get_submodule(blocks[0]).register_forward_pre_hook(self._cut, with_kwargs=True)
        model.get_submodule(blocks[-1]).register_forward_hook(self._end)

    def _cut(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        together = self._together
        x = args[0] if args else kwargs["hidden_states"]
        if x.dim() < 3 or x.shape[1] % together.size:
            raise ConfigurationError(
                f"activations of the shape {tuple(x.shape)} cannot be cut along the sequence, dimension 1, for "
                f"{together.size} workers; pad it to a multiple, or leave sequence=True out"
            )
        if module.training:
            together.draw_apart()
        return _with(piece_of(x, together, 1), args, kwargs)

    def _join(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["hidden_states"]
        return _with(joined_for_parts(x, self._together, 1), args, kwargs)

    def _end(self, module: Module, args: tuple[Any, ...], output: Any) -> Any:
        self._together.draw_alike()
        if isinstance(output, Tensor):
            return joined(output, self._together, 1)
        return (joined(output[0], self._together, 1), *output[1:])


def _with(x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})
