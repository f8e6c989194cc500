"""The plan by which layers are cut. It can be printed, and changed as a dictionary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from quorate.core.errors import ConfigurationError, unknown
from quorate.sharding.tensor.branches import branches_in, is_in_branches

STYLES = (
    "columns",
    "rows",
    "pieces",
    "channels",
    "fused",
    "embedding",
    "head",
    "logits",
    "repeated",
    "sequence",
    "whole",
)
FUSED = 3
"""Query, key and value, in one layer."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_TRANSPOSED = CONVOLUTIONS[3:]
CLOSED = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""Modules of torch that calculate with the parameters of others: modules inside them are not cut."""
_NORMS = ("torch.nn.modules.batchnorm", "torch.nn.modules.instancenorm")
_LOOKS_ELSEWHERE = (*CLOSED, nn.MultiheadAttention, nn.RNNBase, nn.GroupNorm, _NormBase)
"""Modules of torch in which a position depends on others."""


class Plan(dict[str, str]):
    """The styles of modules, by name; a module that is not in it is not cut.

    `columns` cuts a layer's outputs, `rows` its inputs: its input is a piece, its output the full sum. `pieces` cuts
    inputs, and gives a piece of the sum. `channels` is for modules that calculate channel by channel (norms, grouped
    convolutions): input and output are pieces. `fused` is `columns` for a layer that gives query, key and value in one.
    `embedding` and `head` cut the vocabulary of an embedding and of the layer that gives logits; their outputs are
    full. With `logits` the latter stay a `DTensor` in pieces. `repeated` is for layers of key or value heads that are
    fewer than workers: every worker holds the full layer, and calculates the head of its queries. `sequence` is for
    norms that work on a piece of the sequence. `columns` must be followed by `rows`, and between the two each neuron,
    channel or head must be calculated separately.
    """

    def __init__(
        self,
        model: nn.Module,
        workers: int,
        styles: Mapping[str, str] | None = None,
        why: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(styles or {})
        self.is_of_pieces = False
        """Whether nothing is cut but the sequence, of which the whole model calculates on a piece."""
        self.workers, self.why = workers, dict(why or {})
        """Reasons for modules that are not cut."""
        branches = branches_in(model)
        self.shapes = {
            name: tuple(module.weight.shape)
            for name, module in model.named_modules()
            if isinstance(getattr(module, "weight", None), Tensor) and module.weight.dim()
            if not is_in_branches(name, branches)
        }
        self._transposed = {name for name, module in model.named_modules() if is_transposed(module)}

    @property
    def in_words(self) -> str:
        """The message that is printed when a model is cut by it."""
        if self.is_of_pieces:
            return f"{self.workers} workers share sequences, each with a piece\n"
        return f"layers are computed by {self.workers} workers together:\n{self}\n"

    def piece_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of one worker's piece of a module's weight."""
        dim = cut_dim(self.get(name, "whole"), is_transposed=name in self._transposed)
        shape = self.shapes.get(name, ())
        return tuple(pieces_of(n, self.workers) if at == dim else n for at, n in enumerate(shape))

    def __str__(self) -> str:
        """Return a table: module, shape of its weight, style, piece, and the reason where it is not cut. Repeated
        blocks share a line."""
        lines: dict[tuple[str, ...], list[str]] = {}
        for name in dict.fromkeys([*self.shapes, *self, *self.why]):
            style = self.get(name, "whole")
            shown = (_dims(self.shapes.get(name, ())), style, _dims(self.piece_of(name)), self.why.get(name, ""))
            lines.setdefault((re.sub(r"\b\d+\b", "*", name), *shown), []).append(name)
        rows = [("module", "shape", "style", "piece", "")]
        for (_, shape, style, piece, why), names in lines.items():
            rows.append((_in_one(names), shape, style, piece, why))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join(
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]).rstrip()
            for row in rows
        )


def sequence_plan(model: nn.Module, workers: int) -> Plan:
    """Return the plan of a model that calculates on a piece of the sequence from beginning to end. Raises
    `ConfigurationError` for modules in which a position depends on others, and for branches."""
    if branches_in(model):
        raise ConfigurationError('quorate.branches cannot be combined with pieces of the sequence (tensor="sequence")')
    for name, module in model.named_modules():
        if isinstance(module, _LOOKS_ELSEWHERE):
            raise ConfigurationError(
                f"{name or 'the model'} is a {type(module).__name__}, which looks at positions of other workers; "
                'tensor="sequence" is for attention by quorate.sequence_attention'
            )
    plan = Plan(
        model,
        workers,
        {
            name: "sequence"
            for name, module in model.named_modules()
            if any(True for _ in module.parameters(recurse=False))
        },
    )
    plan.is_of_pieces = True
    return plan


def _dims(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _in_one(names: list[str]) -> str:
    """Return the names of repeated blocks as one: `h.0-11.attn.c_attn`."""
    if len(names) == 1:
        return names[0]
    parts = [name.split(".") for name in names]
    columns = [list(dict.fromkeys(column)) for column in zip(*parts, strict=True)]
    return ".".join(column[0] if len(column) == 1 else f"{column[0]}-{column[-1]}" for column in columns)


def is_transposed(module: nn.Module | None) -> bool:
    """Return whether the weight is transposed: of the `Conv1D` of `transformers`, or a transposed convolution."""
    return is_of_transformers(module) or type(module) in _TRANSPOSED


def is_of_transformers(module: nn.Module | None) -> bool:
    """Return whether this is the linear layer that `transformers` calls `Conv1D`."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf") and hasattr(module, "nx")


def is_linear(module: Any) -> bool:
    """Return whether this is a linear layer, transposed or not."""
    return isinstance(module, nn.Linear) or (isinstance(module, nn.Module) and is_of_transformers(module))


def is_convolution(module: Any) -> bool:
    """Return whether this is one of torch's convolutions, with its weight as a plain parameter."""
    return type(module) in CONVOLUTIONS and "weight" in module._parameters


def by_channel(module: Any) -> int | None:
    """Return the number of separate channel groups of a norm or a grouped convolution; None for other modules."""
    if is_convolution(module) and module.groups > 1:
        return int(module.groups)
    if isinstance(module, nn.GroupNorm):
        return int(module.num_groups)
    return int(module.num_features) if isinstance(module, _NormBase) and type(module).__module__ in _NORMS else None


def channel_dim(module: Any, x: Tensor) -> int:
    """Return the channel dimension of `x`, an input or output of a linear layer or a convolution."""
    return x.dim() - int(module.weight.dim()) + 1


def widths(layer: Any) -> tuple[int, int]:
    """Return the input and output widths (numbers or channels) of a linear layer, or of an ungrouped convolution."""
    first, second = layer.weight.shape[:2]
    return (first, second) if is_transposed(layer) else (second, first)


def cut_dim(style: str, *, is_transposed: bool) -> int | None:
    """Return the dimension along which the weight is cut; None where it is not cut."""
    if style in ("columns", "fused", "head", "logits", "embedding"):
        return 1 if is_transposed else 0
    if style in ("rows", "pieces"):
        return 0 if is_transposed else 1
    return 0 if style == "channels" else None


def check_plan(plan: Mapping[str, str], model: nn.Module, workers: int) -> None:
    """Raise `ConfigurationError` for modules that do not exist, cannot be cut this way, or do not divide."""
    named = dict(model.named_modules())
    closed, branches = [name for name, module in named.items() if isinstance(module, CLOSED)], branches_in(model)
    for name, style in plan.items():
        if name not in named:
            raise ConfigurationError(f"the tensor plan names {name}, but the model has no such module")
        if style not in STYLES:
            raise unknown("style of a layer", str(style), STYLES)
        if style in ("whole", "sequence"):
            continue
        if is_in_branches(name, branches):
            raise ConfigurationError(f"{name} is in a branch, which one worker calculates; its layers are not cut")
        module = named[name]
        fits, wanted = _is_for(style, module)
        if not fits:
            raise ConfigurationError(
                f'the tensor plan has "{style}" for {name}, of the class {type(module).__name__}; it is for {wanted}'
            )
        if style == "embedding" and module.max_norm is not None:
            raise ConfigurationError(f"{name} has a max_norm, which looks at whole rows of all; leave it whole")
        inside = next((other for other in closed if name.startswith(f"{other}.")), None)
        if inside is not None:
            kind = type(named[inside]).__name__
            raise ConfigurationError(f"{name} is in a {kind} of torch, which calculates with its layers itself")
        if is_convolution(module) and "sequence" in plan.values():
            raise ConfigurationError(f"{name} is a convolution, and the tensor plan cuts the sequence; leave it whole")
        _check_width(name, style, module, workers)
    _check_tied(plan, named)


def _is_for(style: str, module: nn.Module) -> tuple[bool, str]:
    """Return whether a module can have this style, and which modules can."""
    if style == "embedding":
        return type(module) is nn.Embedding, "a torch Embedding"
    if style == "channels":
        return by_channel(module) is not None, "a norm of torch's over channels, or its convolution in groups"
    if style in ("fused", "head", "logits", "repeated"):
        return is_linear(module), "a linear layer"
    is_plain = is_convolution(module) and by_channel(module) is None
    return is_linear(module) or is_plain, "a linear layer, or a convolution of torch's without groups"


def pieces_of(entries: int, workers: int) -> int:
    """Return the entries of a vocabulary that each worker has; the last one has the remaining ones."""
    return -(-entries // workers)


def divides_vocabulary(entries: int, workers: int) -> bool:
    """Return whether each worker has at least one entry."""
    return pieces_of(entries, workers) * (workers - 1) < entries


def _check_width(name: str, style: str, module: Any, workers: int) -> None:
    parts = FUSED if style == "fused" else 1
    for count, noun in _counts(style, module):
        if style in ("embedding", "head"):
            if not divides_vocabulary(count, workers):
                raise ConfigurationError(
                    f"{name} has {count} {noun}, too few for each of {workers} workers to have some"
                )
        elif count % (parts * workers):
            each = f"{FUSED} times {workers}" if parts > 1 else str(workers)
            raise ConfigurationError(
                f"{name} has {count} {noun}, which {workers} workers cannot share evenly: {count} is not a multiple of "
                f"{each}"
            )


def _counts(style: str, module: Any) -> list[tuple[int, str]]:
    if style == "embedding":
        return [(module.num_embeddings, "entries")]
    if style == "repeated":
        return []
    if style == "channels":
        is_norm = isinstance(module, _NormBase)
        return [(by_channel(module) or 0, "channels" if is_norm else "groups")]
    takes, gives = widths(module)
    return [(takes, "inputs")] * (style in ("rows", "pieces")) + [(gives, "outputs")] * (style != "rows")


def _check_tied(plan: Mapping[str, str], named: Mapping[str, nn.Module]) -> None:
    cut: dict[int, tuple[str, int | None]] = {}
    for name, module in named.items():
        if not (is_linear(module) or is_convolution(module) or isinstance(module, nn.Embedding)):
            continue
        cut_here = name, cut_dim(plan.get(name, "whole"), is_transposed=is_transposed(module))
        other, dim = cut.setdefault(id(module.weight), cut_here)
        if dim != cut_here[1]:
            raise ConfigurationError(
                f"{other} and {name} share their weight, and the tensor plan cuts it in one of them only, or otherwise"
            )
