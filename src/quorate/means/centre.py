"""The centre of a rule: its newest result, from which it looks at vectors. Each worker has one piece of it, or all.

Elements are counted as real numbers: a complex number is two of them.
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
        self._lent: Mapping[str, Tensor] = {}
        """The newest return value of `entries`. A checkpoint may have replaced it before `see`."""

    @abstractmethod
    def looked_from(self, part: int, here: slice) -> Tensor:
        """Return this slice of a part: the piece of this worker, or more where a sum is formed again."""

    @abstractmethod
    def room(self, part: int) -> Tensor | None:
        """Return memory into which the piece of the next result is written as well; None: there is none."""

    @abstractmethod
    def formed(self, parts: Sequence[Tensor], ranks: Sequence[int]) -> None:
        """Take `parts`, with or without headers, as the next result, formed again of the messages of `ranks`."""

    @abstractmethod
    def commit(self) -> None:
        """Make the newest sum the result."""

    def entries(self, *, is_asked: bool) -> dict[str, Tensor]:
        """Return flat tensors for a checkpoint, by name; none, at no cost in memory, unless it `is_asked`."""
        parts = self._to_keep() if is_asked else []
        entries = {name: parts[part][here] for name, part, here in self._tensors()} if is_asked else {}
        self._lent = entries
        return entries

    def see(self, entries: Mapping[str, Tensor]) -> None:
        """Continue from `entries` if they are not the newest return value of `entries`, but a checkpoint's."""
        if entries is not self._lent:
            self._load(entries)
        self._lent = entries

    @abstractmethod
    def _to_keep(self) -> list[Tensor]:
        """Return full parts for a checkpoint."""

    @abstractmethod
    def _load(self, entries: Mapping[str, Tensor]) -> None:
        """Continue from the entries of a checkpoint."""

    # -- for sums that are formed again

    def message(self) -> tuple[Tensor, ...]:
        """Return the tensors that other workers lack for a sum that is formed again."""
        return ()

    def gathered(self, messages: Sequence[Sequence[Tensor]]) -> None:
        """Take the `message` of every worker, before a sum is formed again."""
        del messages  # everyone has it

    # --

    def _tensors(self) -> Iterator[tuple[str, int, slice]]:
        """Yield the name of each tensor, its part, and its slice of the part."""
        for segment in self._layout.segments:
            width = self._widths[segment.part]
            yield segment.name, segment.part, slice(width * segment.offset, width * (segment.offset + segment.numel))

    def _read(self, entries: Mapping[str, Tensor]) -> list[Tensor]:
        """Return full parts with the numbers of `entries`; zeros for a missing name or another size."""
        parts = [self._zeros(part, numel) for part, numel in enumerate(self._numbers)]
        for name, part, here in self._tensors():
            entry = entries.get(name)
            if entry is not None and reals(entry).numel() == here.stop - here.start:
                parts[part][here] = reals(entry).to(parts[part])
        return parts

    def _zeros(self, part: int, numel: int) -> Tensor:
        about = self._layout.parts[part]
        return torch.zeros(numel, dtype=about.dtype.to_real(), device=about.device)


class WholeCentre(Centre):
    """A centre that every worker holds in full, as each forms whole sums. Cost: two vectors of memory."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._now = self._read({})
        self._next: list[Tensor] | None = None
        self._spare: list[Tensor] = []
        """Memory of an older result."""
        self._is_lent = False
        """Whether a checkpoint may read `_now`."""

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
    """A centre of which each worker holds the piece that it owns. Cost: a P-th of a vector among P workers.

    Owners write a new result over the old one, so a sum that is formed again looks from the new one. For a sum formed
    again, workers send their pieces to each other; a piece that no worker has any more is zero.
    """

    def __init__(self, layout: Layout, wire: Wire) -> None:
        super().__init__(layout)
        self._wire = wire
        self._whole: list[Tensor] | None = None
        """Full parts from a checkpoint, until the next result."""
        self._own: list[tuple[int, Tensor]] = []
        """For each part, where the piece of this worker begins, and the piece."""
        self._next: list[tuple[int, Tensor]] | None = None
        """The pieces of a sum that was formed again."""
        self._gathered: list[Tensor] | None = None
        """Full parts, while a sum is formed again."""

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
        """Return the pieces of this worker as a sum of all workers needs them."""
        cuts = [piece(numel, self._wire.rank, self._wire.size) for numel in self._numbers]
        fits = [(begin, begin + len(own)) for begin, own in self._own] == [(cut.start, cut.stop) for cut in cuts]
        if self._whole is not None or not fits:
            whole = self._all()
            self._own, self._whole = [(cut.start, x[cut].clone()) for cut, x in zip(cuts, whole, strict=True)], None
        return self._own

    def _all(self) -> list[Tensor]:
        """Return full parts with the pieces of this worker, and zeros elsewhere."""
        if self._whole is not None:
            return self._whole
        parts = self._read({})
        for into, (begin, x) in zip(parts, self._own, strict=False):
            into[begin : begin + x.numel()] = x
        return parts

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
        if self._whole is not None:
            self._here()
        return self._all()

    def _load(self, entries: Mapping[str, Tensor]) -> None:
        self._whole = self._read(entries)


def reals(x: Tensor) -> Tensor:
    """View complex numbers as twice as many real ones, in the same memory; others are returned unchanged."""
    return torch.view_as_real(x).flatten() if x.is_complex() else x
