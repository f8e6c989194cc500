"""What a worker's codec makes of the fragments that it hands in, and what it leaves out, by fragment.

What is handed in is cumulative, and what a round takes of a fragment is given small; the error joins what the next
round takes of it. A round that passes by gives both back as they were. Where all settle, what was handed in is given as
it is, and the error waits on: all errors at once would be a way that an outer step with momentum takes too far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from quorate.core.vectors import Flat, Layout
from quorate.rounds.coding import Coding, Given


class CodedFragments:
    """That of one worker; `whole` knows the codec, and how parameters are laid out. Not locked: see `fragments`."""

    def __init__(self, whole: Coding, layouts: Sequence[Layout]) -> None:
        self._whole = whole
        self._own = [whole.of(layout) for layout in layouts]

    def lay_out(self, layouts: Sequence[Layout]) -> None:
        """Of fragments, from here on; the error of tensors that stay goes on."""
        errors = _by_name(one.error for one in self._own)
        self._own = [self._whole.of(layout) for layout in layouts]
        self._take(errors)

    def given(self, place: int, vector: Flat, number: int) -> Given:
        """What is given of a fragment to round `number` in place of `vector`."""
        return self._own[place].given(vector, number, Flat.empty)

    def undo(self, place: int, given: Given) -> None:
        """It was not taken: what was handed in waits again."""
        own = self._own[place]
        own.error = own.undone(given, own.error)

    def error_without(self, given: Iterable[tuple[int, Given]]) -> Flat | None:
        """What would have been left out had these (by fragment, the newest first) not been given.

        Laid out as the parameters; None where that is nothing.
        """
        errors = [one.error for one in self._own]
        for place, one in given:
            errors[place] = self._own[place].undone(one, errors[place])
        if all(error is None for error in errors):
            return None
        found, known = Flat.zeros(self._whole.layout.bare), _by_name(errors)
        for segment, numbers in zip(found.layout.segments, found.segments(), strict=True):
            if segment.name in known:
                numbers.copy_(known[segment.name])
        return found

    def restore(self, error: Flat | None) -> None:
        """Let this be what was left out, laid out as the parameters."""
        self._own = [one.of(one.layout) for one in self._own]
        self._take(_by_name([error]))

    def _take(self, errors: dict[str, Tensor]) -> None:
        for one in self._own if errors else ():
            one.error = Flat.zeros(one.layout.bare)
            for segment, numbers in zip(one.layout.segments, one.error.segments(), strict=True):
                if segment.name in errors and one.layout.parts[segment.part].coded:
                    numbers.copy_(errors[segment.name])


def _by_name(errors: Iterable[Flat | None]) -> dict[str, Tensor]:
    """By the name of the tensor, of those that are written small."""
    found: dict[str, Tensor] = {}
    for error in errors:
        if error is not None:
            parts, named = error.layout.parts, zip(error.layout.segments, error.segments(), strict=True)
            found |= {one.name: x for one, x in named if parts[one.part].coded}
    return found
