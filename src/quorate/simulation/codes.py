"""Codecs in simulated exchanges: the bytes of codes, and the seconds of encoding and decoding.

Bytes are the codec's own `wire_bytes`, and the summation of codes is chosen as `means.reduction` does. Parameters are
assumed to lie in matrices of 512 x 512, all of them compressed; other numbers are exact.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from quorate.core.errors import ConfigurationError
from quorate.simulation.links import FIRST_PART, PART, Links, Taken, parts_of
from quorate.strategies import strategies

if TYPE_CHECKING:
    from quorate.core.codec import Codec, Shapes
    from quorate.means.reduction import Reduction

SIDE = 512
"""Side of the matrices in which parameters are assumed to lie."""
_MEASURED = 1 << 20
"""Numbers of the vector that is encoded for a measurement."""
_REPEATS = 3


@dataclass(frozen=True, kw_only=True)
class CodingCost:
    """Seconds for each number."""

    encode: float = 0.0
    """Includes the codec's memory, if it has one."""
    decode: float = 0.0
    is_measured: bool = False
    """Measured here and now, or given."""


@dataclass(frozen=True, kw_only=True)
class Codes:
    """The messages in place of one vector, among a number of workers."""

    parts: Sequence[tuple[int, int]]
    """The numbers of each part, and the bytes of its code; in two phases, those of one worker's piece of it."""
    dense: int
    """Bytes besides the codes."""
    way: Literal["sum", "gather", "two-phase", "hierarchical"]
    """The summation: as for dense vectors, or by `reduce`."""
    cost: CodingCost

    @property
    def nbytes(self) -> int:
        """Bytes of one worker's code, unless it is sent in two phases."""
        return self.dense + sum(nbytes for _, nbytes in self.parts)

    @property
    def numel(self) -> int:
        """Numbers that are compressed."""
        return sum(numel for numel, _ in self.parts)

    def encoding(self, numel: int) -> float:
        """Return the seconds before a part of so many numbers is sent."""
        return numel * self.cost.encode

    def written(self, numel: int) -> float:
        """Return the seconds in which a worker encodes its contribution to a round, and computes what the code
        leaves out."""
        return numel * (self.cost.encode + self.cost.decode)

    def decoding(self, numel: int, links: Links, size: int) -> float:
        """Return the seconds after the exchange of a part, including those between two phases."""
        if self.way == "two-phase":
            return numel * (2 * self.cost.decode + self.cost.encode / size)
        codes = {"sum": 1, "gather": size, "hierarchical": links.ports(size)}[self.way]
        return numel * codes * self.cost.decode

    def taken(self, nbytes: int, links: Links, size: int) -> Taken:
        """Return the seconds of the exchange of a part with a code of so many bytes, or of the first of two phases."""
        if self.way == "sum":
            return links.all_reduce(nbytes, size)
        if self.way == "two-phase":
            return links.all_to_all(nbytes, size)
        return links.all_gather(nbytes, size, codes_of_hosts=self.way == "hierarchical")

    def second(self, nbytes: int, links: Links, size: int) -> Taken:
        """Return the seconds of the second phase, in which all receive the sums."""
        return links.all_gather(nbytes, size) if self.way == "two-phase" else Taken()

    def sent_by_all(self, nbytes: int, links: Links, size: int) -> float:
        """Return the bytes that all workers send for it."""
        if self.way == "sum":
            return links.sent_by_all(nbytes, size)
        if self.way == "two-phase":
            return 2.0 * size * (size - 1) * nbytes
        count = links.ports(size) if self.way == "hierarchical" else size
        return float(count * (count - 1) * nbytes)


def reduction_in(strategy: str, settings: Mapping[str, object]) -> tuple[dict[str, object], Reduction | None]:
    """Return the settings of the strategy itself, and the codec of the others; None without compression. Raises
    `ConfigurationError` for settings that exclude each other, and for those that need more than times."""
    if settings.get("compress", "none") == "none" or strategy not in strategies:
        return dict(settings), None
    from quorate.train.reduced import with_reduction

    kind = strategies.get(strategy)
    _, reduction = with_reduction(kind, settings, strategy)
    if reduction.is_of_gradients:
        raise ConfigurationError(
            f"recorded times are not enough for {reduction.settings.compress}, whose sums take more than one exchange "
            "of codes; "
            "simulate it with "
            "--real WORKLOAD, or choose a codec"
        )
    if _bytes_of(reduction.codec, ((SIDE, SIDE),)) is None:
        raise ConfigurationError(
            f"how long codes of {reduction.settings.compress} are depends on the numbers, which recorded times do not "
            "tell; simulate it with --real WORKLOAD, or choose another codec"
        )
    own = {field.name for field in fields(kind)}
    return {name: value for name, value in settings.items() if name in own}, reduction


def codes_of(
    reduction: Reduction,
    parameters: int,
    workers: int,
    nbytes: int,
    cost: CodingCost,
    matrices: Sequence[Shapes] | None = None,
) -> Codes:
    """Return the codes of vectors of `parameters` numbers among `workers`. A vector with its header has `nbytes`;
    `matrices` are those of each part."""
    codec, shapes = reduction.codec, matrices or _parts(parameters)
    way = reduction.way(shapes, workers)
    sizes = [_bytes_of(codec, _piece(part, workers) if way == "two-phase" else part) or 0 for part in shapes]
    return Codes(
        parts=[(_numel(part), size) for part, size in zip(shapes, sizes, strict=True)],
        dense=nbytes - 4 * parameters,
        way=way,
        cost=cost,
    )


def measured(codec: Codec) -> CodingCost:
    """Return the seconds of encoding and decoding on this machine.

    It is the shortest of three measurements, of a vector of a million numbers, in one thread. Other processes change it
    little, as it is the time of the processor.
    """
    import torch

    from quorate.core.codec import Draw

    shapes = ((SIDE, SIDE),) * (_MEASURED // SIDE**2)
    x, draw = torch.randn(_MEASURED, generator=torch.Generator().manual_seed(0)), Draw()
    memory = {name: torch.zeros_like(x) for name in codec.memories}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        code, _ = codec.encode(x, shapes, memory, draw)
        encode = _shortest(lambda: codec.encode(x, shapes, memory, draw))
        decode = _shortest(lambda: codec.add_decoded(torch.zeros_like(x), code, shapes, draw))
    finally:
        torch.set_num_threads(threads)
    return CodingCost(encode=encode / _MEASURED, decode=decode / _MEASURED, is_measured=True)


def _shortest(call: Any) -> float:
    seconds = []
    for _ in range(_REPEATS):
        began = time.thread_time()
        call()
        seconds.append(time.thread_time() - began)
    return min(seconds)


def _parts(parameters: int) -> list[Shapes]:
    """Return the matrices of each part."""
    whole, parts = SIDE * SIDE, list[Any]()
    assert 4 * whole == FIRST_PART and PART % FIRST_PART == 0
    for nbytes in parts_of(4 * parameters):
        count, rest = divmod(nbytes // 4, whole)
        parts.append(_matrices(count, rest))
    return parts


@cache
def _matrices(count: int, rest: int) -> Shapes:
    rows, odd = divmod(rest, SIDE)
    return ((SIDE, SIDE),) * count + (((rows, SIDE),) if rows else ()) + (((1, odd),) if odd else ())


@cache
def _bytes_of(codec: Any, shapes: Shapes) -> int | None:
    nbytes: int | None = codec.wire_bytes(shapes)
    return nbytes


def _piece(shapes: Shapes, workers: int) -> Shapes:
    """Return the largest piece that a worker owns."""
    return ((-(-_numel(shapes) // workers),),)


@cache
def _numel(shapes: Shapes) -> int:
    from quorate.core.codec import numel_of

    return numel_of(shapes)


def cost_from(text: str | None) -> CodingCost | None:
    """Return the cost that `200M:1B` gives, numbers encoded and decoded per second; `none`: no cost. None without
    text."""
    if text is None:
        return None
    if text.strip() == "none":
        return CodingCost()
    units = {"k": 1e3, "M": 1e6, "B": 1e9}
    rates = []
    for word in text.split(":"):
        word = word.strip()
        number, factor = (word[:-1], units[word[-1]]) if word[-1:] in units else (word, 1.0)
        try:
            rates.append(float(number) * factor)
        except ValueError:
            rates.append(0.0)
    if len(rates) != 2 or not all(0 < rate < float("inf") for rate in rates):
        raise ConfigurationError(
            f'--coding "{text}": write ENCODE:DECODE in numbers a second, such as 200M:1B, or none for no cost'
        )
    return replace(CodingCost(), encode=1 / rates[0], decode=1 / rates[1])
