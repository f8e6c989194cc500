"""From where a rule looks at vectors: its newest result, of which each worker has its own piece, or everyone all.

Elements are counted as real numbers here: complex ones are two each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from quorate.core.contracts import Wire
from quorate.core.vectors import Layout, bare_layout
from quorate.wire.cut import piece


class Centre(ABC):
    """The newest result, in the parts of `layout`; zero at the start."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._widths = [2 if part.dtype.is_complex else 1 for part in layout.parts]
        self._numbers = [
            width * part.numel for width, part in zip(self._widths, bare_layout(layout).parts, strict=True)
        ]
        self._known: Mapping[str, Tensor] = {}
        """What was last given away, which a checkpoint may put others in the place of."""

    @abstractmethod
    def looked_from(self, part: int, here: slice) -> Tensor:
        """That slice of a part: this worker's own piece, or all of it where a sum is formed anew."""

    @abstractmethod
    def room(self, part: int) -> Tensor | None:
        """Where this worker's piece of the next one is to be written, too; None: nowhere."""

    @abstractmethod
    def formed(self, parts: Sequence[Tensor], ranks: Sequence[int]) -> None:
        """The next one is this sum of what `ranks` have sent, formed anew: whole parts, perhaps with headers."""

    @abstractmethod
    def commit(self) -> None:
        """The newest sum counts."""

    def entries(self, *, is_asked: bool) -> dict[str, Tensor]:
        """What a checkpoint keeps, by tensor, flat; nothing, which takes no memory, unless it `is_asked` for."""
        parts = self._to_keep() if is_asked else []
        found = {name: parts[part][here] for name, part, here in self._tensors()} if is_asked else {}
        self._known = found
        return found

    def see(self, entries: Mapping[str, Tensor]) -> None:
        """Go on from these if a checkpoint has put them in the place of what was given away."""
        if entries is not self._known:
            self._load(entries)
        self._known = entries

    @abstractmethod
    def _to_keep(self) -> list[Tensor]:
        """Whole parts, of which a checkpoint keeps the tensors."""

    @abstractmethod
    def _load(self, entries: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint's."""

    # -- for sums that are formed anew

    def message(self) -> tuple[Tensor, ...]:
        """What others may not have."""
        return ()

    def gathered(self, messages: Sequence[Sequence[Tensor]]) -> None:
        """What all have sent of it, before they form a sum anew."""
        del messages  # everyone has it

    # --

    def _tensors(self) -> Iterator[tuple[str, int, slice]]:
        """The name of each tensor, its part, and where it lies there."""
        for one in self._layout.segments:
            width = self._widths[one.part]
            yield one.name, one.part, slice(width * one.offset, width * (one.offset + one.numel))

    def _read(self, entries: Mapping[str, Tensor]) -> list[Tensor]:
        """Whole parts of these tensors; zeros where there is none of that name and size."""
        found = [self._zeros(part, numel) for part, numel in enumerate(self._numbers)]
        for name, part, here in self._tensors():
            given = entries.get(name)
            if given is not None and reals(given).numel() == here.stop - here.start:
                found[part][here] = reals(given).to(found[part])
        return found

    def _zeros(self, part: int, numel: int) -> Tensor:
        about = self._layout.parts[part]
        return torch.zeros(numel, dtype=about.dtype.to_real(), device=about.device)


class WholeCentre(Centre):
    """On every worker, as each forms whole sums: two vectors of memory."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._now = self._read({})
        self._next: list[Tensor] | None = None
        self._spare: list[Tensor] = []
        """Memory of an older one."""
        self._is_lent = False
        """Whether a checkpoint may look at it."""

    def looked_from(self, part: int, here: slice) -> Tensor:
        return self._now[part][here]

    def room(self, part: int) -> Tensor | None:
        return None

    def formed(self, parts: Sequence[Tensor], ranks: Sequence[int]) -> None:
        self._next = self._next or self._spare or [torch.empty_like(x) for x in self._now]
        self._spare = []
        for into, x in zip(self._next, parts, strict=True):
            into.copy_(reals(x)[: into.numel()])

    def commit(self) -> None:
        if self._next is not None:
            self._spare = [] if self._is_lent else self._now
            self._now, self._next, self._is_lent = self._next, None, False

    def _to_keep(self) -> list[Tensor]:
        self._is_lent = True
        return self._now

    def _load(self, entries: Mapping[str, Tensor]) -> None:
        self._now = self._read(entries)


class OwnedCentre(Centre):
    """Of each part the piece that this worker owns: a P-th of a vector of memory among P workers.

    Owners write a result over the one that they have looked from. Where the same sum is then formed again, it is looked
    at from there. For a sum that is formed anew, workers send what they have; zero is what nobody has any more.
    """

    def __init__(self, layout: Layout, wire: Wire) -> None:
        super().__init__(layout)
        self._wire = wire
        self._whole: list[Tensor] | None = None
        """All parts, where a checkpoint has brought them; until the next result."""
        self._own: list[tuple[int, Tensor]] = []
        """Of each part, where this worker's piece begins, and the piece; zeros where there is none."""
        self._next: list[tuple[int, Tensor]] | None = None
        """The pieces of a sum that was formed anew."""
        self._gathered: list[Tensor] | None = None
        """All parts, while a sum is formed anew."""

    def looked_from(self, part: int, here: slice) -> Tensor:
        if self._gathered is not None:
            return self._gathered[part][here]
        begin, own = self._here()[part]
        assert (begin, begin + len(own)) == (here.start, here.stop)
        return own

    def room(self, part: int) -> Tensor | None:
        return self._here()[part][1]

    def formed(self, parts: Sequence[Tensor], ranks: Sequence[int]) -> None:
        self._next = []
        for numel, x in zip(self._numbers, parts, strict=True):
            here = slice(0, 0)
            if self._wire.rank in ranks:
                here = piece(numel, sorted(ranks).index(self._wire.rank), len(ranks))
            self._next.append((here.start, reals(x)[here].clone()))

    def commit(self) -> None:
        if self._next is not None:
            self._own, self._next, self._whole = self._next, None, None
        self._gathered = None

    def _here(self) -> list[tuple[int, Tensor]]:
        """This worker's pieces as sums of all workers need them."""
        cuts = [piece(numel, self._wire.rank, self._wire.size) for numel in self._numbers]
        fits = [(begin, begin + len(own)) for begin, own in self._own] == [(cut.start, cut.stop) for cut in cuts]
        if self._whole is not None or not fits:
            whole = self._all()
            self._own, self._whole = [(cut.start, x[cut].clone()) for cut, x in zip(cuts, whole, strict=True)], None
        return self._own

    def _all(self) -> list[Tensor]:
        """What this worker has, in whole parts."""
        if self._whole is not None:
            return self._whole
        found = self._read({})
        for into, (begin, x) in zip(found, self._own, strict=False):
            into[begin : begin + x.numel()] = x
        return found

    def message(self) -> tuple[Tensor, ...]:
        own = self._own if self._whole is None else self._here()
        return torch.tensor([begin for begin, _ in own], dtype=torch.int64), *(x for _, x in own)

    def gathered(self, messages: Sequence[Sequence[Tensor]]) -> None:
        whole = self._read({})
        for begins, *pieces in messages:
            for into, begin, x in zip(whole, begins.tolist(), pieces, strict=False):
                into[begin : begin + x.numel()] = x.to(into)
        self._gathered = whole

    def _to_keep(self) -> list[Tensor]:
        """This worker's pieces, and zeros."""
        if self._whole is not None:
            self._here()
        return self._all()

    def _load(self, entries: Mapping[str, Tensor]) -> None:
        self._whole = self._read(entries)


def reals(x: Tensor) -> Tensor:
    """Complex numbers as twice as many real ones, in the same memory; others as they are."""
    return torch.view_as_real(x).flatten() if x.is_complex() else x
