"""Contributions as a codec has written them: how long codes are, and what they stand for; pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from quorate.core.codec import Codec, Draw, shapes_in
from quorate.core.vectors import Flat, Layout, Part, digest_of


class Codes:
    """Those of `codec`, which has no memories; the `seed` is that of all workers."""

    def __init__(self, codec: Codec, seed: int) -> None:
        self._codec, self._seed = codec, seed
        self._known: dict[str, Layout | None] = {}

    def layout(self, of: Layout) -> Layout | None:
        """How the code of a vector lies in memory, part by part; None where that depends on the numbers."""
        if digest_of(of) not in self._known:
            parts = list(of.parts)
            for number, shapes in shapes_in(of).items():
                part = self._code_of(parts[number], shapes)
                if part is None:
                    parts = []
                    break
                parts[number] = part
            self._known[digest_of(of)] = Layout((), tuple(parts), 0) if parts else None
        return self._known[digest_of(of)]

    def _code_of(self, part: Part, shapes: tuple[tuple[int, ...], ...]) -> Part | None:
        nbytes = self._codec.wire_bytes(shapes)
        if nbytes is None:
            return None
        if not self._codec.is_linear:
            return Part(nbytes, torch.uint8, part.device)
        code, _ = self._codec.encode(torch.zeros(part.numel, dtype=part.dtype, device=part.device), shapes, {}, Draw())
        return replace(part, numel=code.numel(), dtype=code.dtype, coded=False)

    def draw(self, number: int, rank: int, part: int) -> Draw:
        """Of what `rank` gives to round `number`."""
        return Draw(self._seed, number, rank, part)

    def decoded(self, code: Flat, of: Layout, number: int, rank: int, blank: Callable[[Layout], Flat]) -> Flat:
        """What the code of a vector laid out so stands for, which `rank` has given to round `number`."""
        found, shapes = blank(of), shapes_in(of)
        for part, x in enumerate(code.parts):
            if part in shapes:
                x = self._codec.decode(x, shapes[part], self.draw(number, rank, part))
            found.parts[part].copy_(x)
        return found
