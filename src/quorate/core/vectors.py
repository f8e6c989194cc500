"""Many tensors as one vector: `Segment` and `Layout` say what lies where, `Flat` holds the numbers, which `pack` and
`unpack` copy there and back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from quorate.core.device_copies import Move, waiting_once
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.core.masks import Mask

_NBYTES = attrgetter("nbytes")
_SMALL = 1 << 14
"""Mean elements of a tensor up to which two passes over a part are faster than one with a call for each tensor."""


@dataclass(frozen=True)
class Segment:
    """One parameter inside a part: `shape` elements from `offset` on."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    part: int
    offset: int
    whole: int | None = None
    """Elements of the tensor of which this is a piece; None: it is no piece."""
    _mask: Mask | None = None
    """The numbers of the tensor that lie here; None: all. With a mask, `shape` has one dimension."""

    @cached_property
    def numel(self) -> int:
        """Its number of elements."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Part:
    """One flat piece of memory that travels as a whole."""

    numel: int
    dtype: torch.dtype
    device: torch.device
    coded: bool = False
    """Whether a codec may write it small: it has full tensors only, and no header."""


@dataclass(frozen=True)
class Layout:
    """The places of all tensors: `segments` in the order of the tensors given, `parts` in the order they travel.

    The last `header` elements of the last part belong to no tensor; they carry counts that are summed with the rest.
    """

    segments: tuple[Segment, ...]
    parts: tuple[Part, ...]
    header: int
    _tables: tuple[str, ...] = ()
    """The names, dtypes and shapes of tables that are trained beside the vector, as their gradients are sparse."""

    @cached_property
    def _digest(self) -> str:
        text = repr([(s.name, s.shape, str(s.dtype), s.part, s.offset) for s in self.segments])
        text += repr([(s.name, s._mask.digest) for s in self.segments if s._mask is not None]) * self._has_masks
        text += repr([(p.numel, str(p.dtype)) + (p.coded,) * p.coded for p in self.parts]) + repr(self.header)
        text += repr(self._tables) if self._tables else ""
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def _has_masks(self) -> bool:
        return any(segment._mask is not None for segment in self.segments)

    @cached_property
    def _bare(self) -> Layout:
        if not self.header:
            return self
        *parts, last = self.parts
        return replace(self, parts=(*parts, replace(last, numel=last.numel - self.header)), header=0)

    @cached_property
    def _on_cpu(self) -> Layout:
        parts = tuple(replace(part, device=torch.device("cpu")) for part in self.parts)
        return self if parts == self.parts else replace(self, parts=parts)

    @cached_property
    def _by_part(self) -> tuple[tuple[int, ...], ...]:
        indices: list[list[int]] = [[] for _ in self.parts]
        for index, segment in enumerate(self.segments):
            indices[segment.part].append(index)
        return tuple(map(tuple, indices))

    @cached_property
    def _runs(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """For each part, its segments in the order of their offsets and the end of the last one.

        A part with gaps between its segments has no segments here.
        """
        runs = []
        for indices in self._by_part:
            ordered, end = sorted(indices, key=lambda index: self.segments[index].offset), 0
            for index in ordered:
                if self.segments[index].offset != end:
                    ordered = []
                    break
                end += self.segments[index].numel
            runs.append((tuple(ordered), end))
        return tuple(runs)

    @cached_property
    def _coded(self) -> dict[int, tuple[Segment, ...]]:
        inside = {
            number: [self.segments[i] for i in self._by_part[number]] for number, p in enumerate(self.parts) if p.coded
        }
        return {
            number: tuple(sorted(segments, key=lambda segment: segment.offset)) for number, segments in inside.items()
        }


class Flat:
    """A vector over a `Layout`: one tensor per part. Arithmetic is element-wise and keeps the layout."""

    layout: Layout
    parts: tuple[Tensor, ...]
    """The tensors that hold the numbers."""

    def __init__(self, parts: Sequence[Tensor], layout: Layout) -> None:
        self.parts, self.layout = tuple(parts), layout
        self._views: tuple[Tensor, ...] | None = None

    @classmethod
    def zeros(cls, layout: Layout) -> Flat:
        """A new vector of zeros."""
        return cls([torch.zeros(p.numel, dtype=p.dtype, device=p.device) for p in layout.parts], layout)

    def segment(self, index: int) -> Tensor:
        """The numbers of segment `index`, in its shape (a view, in the part's dtype)."""
        return self.segments()[index]

    def segments(self) -> tuple[Tensor, ...]:
        """The numbers of every segment, in order (views)."""
        if self._views is None:
            parts = self.parts
            self._views = tuple(
                parts[s.part][s.offset : s.offset + s.numel].view(s.shape) for s in self.layout.segments
            )
        return self._views

    def map(self, function: Callable[..., Tensor], *others: Flat) -> Flat:
        """A new vector of `function` applied part by part."""
        columns = zip(self.parts, *(other.parts for other in others), strict=True)
        return Flat([function(*column) for column in columns], self.layout)

    def clone(self) -> Flat:
        """A copy, in memory of its own."""
        return self.map(Tensor.clone)

    def bare(self) -> Flat:
        """The same numbers (views) without the header."""
        if not self.layout.header:
            return self
        *parts, last = self.parts
        return Flat([*parts, last[: last.numel() - self.layout.header]], self.layout._bare)

    def copy_(self, other: Flat) -> Flat:
        """Take the numbers of `other`, whose header may be longer or shorter: then both stay without it."""
        own, theirs = (self, other) if self.layout.header == other.layout.header else (self.bare(), other.bare())
        for there, numbers in zip(own.parts, theirs.parts, strict=True):
            there.copy_(numbers)
        return self

    def add_(self, other: Flat, alpha: float = 1.0) -> Flat:
        """Add `alpha` times `other`, in place."""
        for own, theirs in zip(self.parts, other.parts, strict=True):
            own.add_(theirs, alpha=alpha)
        return self

    def mul_(self, factor: float) -> Flat:
        """Multiply in place; returns itself."""
        for own in self.parts:
            own.mul_(factor)
        return self

    def __add__(self, other: Flat) -> Flat:
        return self.map(torch.add, other)

    def __sub__(self, other: Flat) -> Flat:
        return self.map(torch.sub, other)

    def __mul__(self, factor: float) -> Flat:
        return self.map(lambda part: part * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Flat:
        return self.map(lambda part: part / divisor)


def digest_of(layout: Layout) -> str:
    """Return a digest that is equal on workers with equal layouts: names, shapes, dtypes and places, not devices."""
    return layout._digest


def with_tables(layout: Layout, tables: Sequence[str]) -> Layout:
    """Return `layout` beside which tables of these names, dtypes and shapes are trained."""
    return replace(layout, _tables=tuple(tables))


def tables_beside(layout: Layout) -> tuple[str, ...]:
    """Return the names, dtypes and shapes of the tables that are trained beside the vector."""
    return layout._tables


def bare_layout(layout: Layout) -> Layout:
    """Return `layout` without a header."""
    return layout._bare


def with_longer_header(layout: Layout, more: int) -> Layout:
    """Return `layout` with `more` numbers behind its header, which count as part of it."""
    *parts, last = layout.parts
    return replace(layout, parts=(*parts, replace(last, numel=last.numel + more)), header=layout.header + more)


def layout_on_cpu(layout: Layout) -> Layout:
    """Return `layout` with all parts on the CPU."""
    return layout._on_cpu


def segments_by_part(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Return the indices of the segments of each part."""
    return layout._by_part


def coded_segments(layout: Layout) -> dict[int, tuple[Segment, ...]]:
    """Return the segments of each part that codecs may write small, in order, by the number of the part."""
    return layout._coded


def empty_vector(layout: Layout, on_cpu: Callable[[int, torch.dtype], Tensor] | None = None) -> Flat:
    """Return a new vector of arbitrary numbers; `on_cpu(numel, dtype)` allocates its parts on the CPU."""
    parts = [
        torch.empty(p.numel, dtype=p.dtype, device=p.device)
        if on_cpu is None or p.device.type != "cpu"
        else on_cpu(p.numel, p.dtype)
        for p in layout.parts
    ]
    return Flat(parts, layout)


def placeholder(layout: Layout) -> Flat:
    """Return a vector that takes no memory; it is neither written nor read."""
    return Flat([torch.zeros(1, dtype=p.dtype, device=p.device).expand(p.numel) for p in layout.parts], layout)


def header_in(x: Flat) -> Tensor:
    """Return the header at the end of the last part (a view); it is empty if the layout has none."""
    last = x.parts[-1]
    return last[last.numel() - x.layout.header :]


def nbytes_of(x: Flat) -> int:
    """Return the number of bytes of all parts."""
    return sum(map(_NBYTES, x.parts))


def count_holders(x: Flat) -> int:
    """Return the number of tensors that share the memory of `x`, its own parts and `segments` among them."""
    return sum([torch._C._storage_Use_Count(part.untyped_storage()._cdata) for part in x.parts])


def in_layout(x: Flat, layout: Layout) -> Flat:
    """Return `x` under an equal `layout`, each part on the device named there; parts already there are shared."""
    with waiting_once() as move:
        return Flat([move(part, p.device) for part, p in zip(x.parts, layout.parts, strict=True)], layout)


def vector_on_cpu(x: Flat) -> Flat:
    """Return `x` on the CPU."""
    return x if x.layout._on_cpu is x.layout else in_layout(x, x.layout._on_cpu)


def add_into(x: Flat, other: Flat, into: Flat) -> Flat:
    """Write the sum of `x` and `other` into `into`, which is returned."""
    for part, other_part, place in zip(x.parts, other.parts, into.parts, strict=True):
        torch.add(part, other_part, out=place)
    return into


def scale_into(x: Flat, factor: float, into: Flat, reads: Callable[[Any], None] | None = None) -> Flat:
    """Write `factor` times `x` into `into`, which is returned.

    Without `reads`, a GPU onto which `x` is copied is waited for. Else nothing is: `reads` gets the event after which
    the GPU has read `x`, which is not to be written before.
    """
    elsewhere = []
    for part, place in zip(x.parts, into.parts, strict=True):
        if part.device != place.device:
            elsewhere.append((part, place))
        elif factor == 1.0:
            place.copy_(part)
        else:
            torch.mul(part, factor, out=place)
    if elsewhere:
        with waiting_once(reads) as move:
            for part, place in elsewhere:
                if place.device.type == "cpu":  # what is copied to it is there only at the end of the context
                    move(part if factor == 1.0 else part * factor, place)
                else:
                    move(part, place).mul_(factor)
    return into


def pack(tensors: Sequence[Tensor | None], into: Flat, *, part: int | None = None, scale: float = 1.0) -> None:
    """Copy `scale` times each tensor into its segment; None is written as zeros. With `part`, only its tensors.

    Raises `ConfigurationError` for a tensor that is sparse.
    """
    layout = into.layout
    indices = range(len(tensors)) if part is None else segments_by_part(layout)[part]
    present = [x if type(x) is Tensor else local(x) for index in indices if (x := tensors[index]) is not None]
    if any(x.layout is not torch.strided for x in present):
        names = [
            layout.segments[i].name for i in indices if (x := tensors[i]) is not None and x.layout != torch.strided
        ]
        raise ConfigurationError(
            f"the gradient of {names[0]} is sparse; only dense gradients can be exchanged, so build the layer with "
            "sparse=False"
        )
    if layout._has_masks:
        pairs = zip(layout.segments, tensors, strict=True)
        tensors = [x if x is None or s._mask is None else s._mask.gather(local(x)) for s, x in pairs]
    numbers = sorted({layout.segments[index].part for index in indices}) if part is None else (part,)
    with torch.no_grad():
        if present and present[0].device.type != "cpu":
            with waiting_once() as move:
                for number in numbers:
                    _pack_on_device(tensors, into, number, scale, move)
            return
        for number in numbers:
            if not _pack_joined(tensors, into, number, scale):
                _pack_each(tensors, into, number, scale)


def _pack_joined(tensors: Sequence[Tensor | None], into: Flat, part: int, scale: float) -> bool:
    """Pack the small tensors of one part by two operations; return whether they allow that."""
    indices, end = into.layout._runs[part]
    if not indices or end > _SMALL * len(indices):
        return False
    numbers, joined = into.parts[part][:end], list[Tensor]()
    for index in indices:
        x = tensors[index]
        if x is None or x.dtype is not numbers.dtype:
            return False
        joined.append(x if type(x) is Tensor else local(x))
    flat = torch._C._nn.flatten_dense_tensors(joined)
    if flat.numel() != end:
        return False
    torch.mul(flat, scale, out=numbers)
    return True


def _pack_each(tensors: Sequence[Tensor | None], into: Flat, part: int, scale: float) -> None:
    """Pack the tensors of one part one by one."""
    segments = into.segments()
    for index in segments_by_part(into.layout)[part]:
        x, place = tensors[index], segments[index]
        if x is None:
            place.zero_()
        elif (x := local(x)).shape != place.shape:
            raise other_shape(into.layout.segments[index].name, x, place.shape)
        elif x.dtype != place.dtype:
            place.copy_(x)
            place.mul_(scale)
        elif scale == 1.0:
            place.copy_(x)
        else:
            torch.mul(x, scale, out=place)


def other_shape(name: str, x: Tensor, shape: Sequence[int]) -> ConfigurationError:
    """Return the error for a parameter `x` that had another `shape` when it was laid out."""
    return ConfigurationError(
        f"{name} has the shape {tuple(x.shape)} now, and had {tuple(shape)} when it was distributed. A parameter of "
        "another shape is to take its place, in the model and in optimizer.param_groups, on all workers between two "
        "steps"
    )


def _pack_on_device(tensors: Sequence[Tensor | None], into: Flat, part: int, scale: float, move: Move) -> None:
    """Pack one part of tensors on a GPU: few kernels, and one copy where `into` is on the CPU."""
    indices, place = segments_by_part(into.layout)[part], into.parts[part]
    present = [(local(x), into.layout.segments[index]) for index in indices if (x := tensors[index]) is not None]
    if not present:
        place[: sum(into.layout.segments[index].numel for index in indices)].zero_()
        return
    device = present[0][0].device
    stage = place if place.device == device else torch.empty_like(place, device=device)
    views = [stage[s.offset : s.offset + s.numel].view(s.shape) for _, s in present]
    for index in indices:
        if tensors[index] is None:
            segment = into.layout.segments[index]
            stage[segment.offset : segment.offset + segment.numel].zero_()
    torch._foreach_copy_(views, [x for x, _ in present])
    numbers = stage[: max(into.layout.segments[index].offset + into.layout.segments[index].numel for index in indices)]
    if scale != 1.0:
        numbers.mul_(scale)
    if stage is not place:
        move(numbers, place[: len(numbers)])


def unpack(vector: Flat, into: Sequence[Tensor]) -> None:
    """Copy each segment into its tensor."""
    device = local(into[0]).device if into else torch.device("cpu")
    if device.type != "cpu" and all(part.device.type == "cpu" for part in vector.parts):
        there = tuple(replace(part, device=device) for part in vector.layout.parts)
        vector = in_layout(vector, replace(vector.layout, parts=there))
    with torch.no_grad():
        for x, place in zip(into, full_segments(vector), strict=True):
            local(x).copy_(place)


def mask_of(segment: Segment) -> Mask | None:
    """Return the mask of the tensor of which only the kept numbers lie in the segment; None: all do."""
    return segment._mask


def has_masks(layout: Layout) -> bool:
    """Return whether some tensors have only their kept numbers in vectors of `layout`."""
    return layout._has_masks


def full_segments(x: Flat) -> tuple[Tensor, ...]:
    """Return the numbers of every segment in the shape of its tensor: views, or with a mask copies with zeros."""
    if not x.layout._has_masks:
        return x.segments()
    pairs = zip(x.layout.segments, x.segments(), strict=True)
    return tuple(numbers if s._mask is None else s._mask.scatter(numbers) for s, numbers in pairs)


def carried(numbers: Tensor, before: Segment, now: Segment) -> Tensor:
    """Return the numbers of a tensor, laid out as `before`, as they are laid out `now` that masks have changed."""
    if before._mask == now._mask:
        return numbers
    full = numbers if before._mask is None else before._mask.scatter(numbers)
    return full if now._mask is None else now._mask.gather(full)


def carry_coded(old: Flat, into: Flat) -> None:
    """Copy the numbers of `old` into the coded tensors of the same names in `into`: see `carried`."""
    there = {segment.name: index for index, segment in enumerate(old.layout.segments)}
    for index, segment in enumerate(into.layout.segments):
        place = there.get(segment.name)
        if place is not None and into.layout.parts[segment.part].coded:
            into.segment(index).copy_(carried(old.segment(place), old.layout.segments[place], segment))
