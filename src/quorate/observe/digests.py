"""Comparison of replicas that have to be equal: digests of their parameters, compared over the board.

Every worker writes the digest of its replica after each round whose number is a multiple of `every`; the last one that
writes compares them all. Nobody waits, and a worker that misses a round (it has ended, or was copied over it) leaves
that comparison out. Cost: one pass over the parameters, 8 bytes per parameter tensor to the board, and for the last
from it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from quorate.core.contracts import Wire
from quorate.core.errors import Diverged
from quorate.core.local_tensor import local
from quorate.core.telling import tell
from quorate.wire.failure import host_of, report_failure
from quorate.wire.naming import named, named_at, ranks_of_world

_WORD = 8
"""Bytes that are added up at once."""
_REASON = (
    "either the script writes different numbers into the parameters of different workers, or the strategy lets "
    "replicas differ between steps and does not say so (`replicas`)"
)
_PIECE = 1 << 20
"""Words that are read at once."""
_SAMPLE = 1 << 20
"""The approximate number of a tensor's elements in a sample."""


def digest(x: Tensor) -> int:
    """Return the sum of the bits of `x`, read as integers (modulo 2^64): equal for equal bits, NaN or not."""
    return int(bits_of(x))


def bits_of(x: Tensor) -> Tensor:
    """Return `digest(x)` in a tensor, on the device of `x`; a GPU is not waited for."""
    flat = local(x).detach().reshape(-1).contiguous()
    if flat.storage_offset() * flat.element_size() % _WORD:
        flat = flat.clone()
    if not flat.numel() * flat.element_size() % _WORD:
        return flat.view(torch.int64).sum()
    read = flat.view(torch.uint8)
    whole = read.numel() // _WORD * _WORD
    return read[:whole].view(torch.int64).sum() + read[whole:].sum(dtype=torch.int64)


def _bits_here(x: Tensor) -> int:
    """Return `digest(x)` of a tensor in this process's memory; numpy takes a third of the time for a small one."""
    read = x.reshape(-1).contiguous().view(torch.uint8).numpy()
    whole = read.size // _WORD * _WORD
    words = int(read[:whole].view(np.int64).sum())
    return words if whole == read.size else words + int(read[whole:].sum(dtype=np.int64))


def digest_of(parts: Sequence[Tensor]) -> int:
    """Return the digest of several tensors (modulo 2^64), each by its place.

    Of large tensors it is that of a sample of words, so that it takes a millisecond.
    """
    sampled = []
    for part in parts:
        x = local(part).detach().reshape(-1)
        stride = max(1, x.numel() // _SAMPLE)
        sampled.append(x[::stride] if stride > 1 else x)
    return sum([place * bits for place, bits in enumerate(digests(sampled), 1)]) % 2**64


def digests(parts: Sequence[Tensor]) -> list[int]:
    """Return the `digest` of each tensor; a GPU is waited for once."""
    if all(x.is_cpu for x in parts):
        return [_bits_here(local(x).detach()) for x in parts]
    sums = [bits_of(x) for x in parts]
    if len({x.device for x in sums}) == 1 and sums[0].device.type != "cpu":
        return [int(x) for x in torch.stack(sums).tolist()]
    return [int(x) for x in sums]


def digests_in_order(parts: Sequence[Tensor]) -> list[int]:
    """Return a digest of each tensor (modulo 2^64) in which each word counts by its place; a GPU is waited for once.

    Cost: three passes in pieces of 8 MB, which is also the memory that it takes.
    """
    sums = [_in_order(x) for x in parts]
    if len({x.device for x in sums}) == 1 and sums[0].device.type != "cpu":
        return [int(x) for x in torch.stack(sums).tolist()]
    return [int(x) for x in sums]


def _in_order(x: Tensor) -> Tensor:
    read = local(x).detach().reshape(-1).contiguous().view(torch.uint8)
    total = torch.zeros((), dtype=torch.int64, device=read.device)
    for begin in range(0, read.numel(), _PIECE * _WORD):
        piece = read[begin : begin + _PIECE * _WORD]
        words = torch.nn.functional.pad(piece, (0, -piece.numel() % _WORD)).view(torch.int64)
        first = begin // _WORD
        places = torch.arange(first, first + words.numel(), dtype=torch.int64, device=read.device)
        total += (words * (2 * places + 1)).sum()
    return total


class Digests:
    """The comparisons of one optimizer's replicas; `named` returns the current names and parameters."""

    def __init__(
        self, wire: Wire, strategy: str, every: int, named: Callable[[], tuple[Sequence[str], Sequence[Tensor]]]
    ) -> None:
        self._wire, self._strategy, self.every, self._named = wire, strategy, every, named
        self._left: list[str] = []
        """Keys of what `leave` has written."""

    @property
    def compares(self) -> bool:
        """Whether replicas are compared."""
        return self.every > 0

    def look(self, number: int) -> None:
        """Compare replicas after round `number`. Raises `Diverged` on the last worker to write, if one differs."""
        if self.every and number and number % self.every == 0:
            self._compare(number, f"round {number}")

    def look_at_end(self, number: int) -> None:
        """Compare replicas at the end of the training, where all have to be equal."""
        if self.every:
            self._compare(number, "end")

    def look_unstepped(self, after: str = "the end", reason: str | None = None, *, tells: bool = False) -> None:
        """Compare replicas before any step: as they began, or as the script has made them.

        Args:
            after: The progress of every worker, as "6 batches"; workers with equal words are compared.
            reason: The explanation in an error; None: that of `look`.
            tells: Whether a difference is written to stderr, and nothing is raised.

        Raises:
            Diverged: As `look`.
        """
        if self.every:
            self._compare(0, f"unstepped/{after}", reason, tells=tells)

    def leave(self, number: int) -> None:
        """Write how parameters are after update `number`, for workers that have paused there and are left behind."""
        self._left.append(self._key_of_left(number))
        self._wire.board.set(self._left[-1], self.text())

    def forget_left(self) -> None:
        """Remove what `leave` has written, as the workers that paused step again."""
        while self._left:
            self._wire.board.delete(self._left.pop())

    def differs_from_left(self, number: int, digests: bytes) -> bool:
        """Return whether others went on after update `number` from parameters with other `digests`."""
        left = self._wire.board.get(self._key_of_left(number))
        return left is not None and left != digests

    def _key_of_left(self, number: int) -> str:
        return f"digests/{self._wire.name}/left/{number}/"

    def text(self) -> bytes:
        """Return the digests of the parameters as they are."""
        return json.dumps(digests(self._named()[1])).encode()

    def _compare(self, number: int, when: str, reason: str | None = None, *, tells: bool = False) -> None:
        wire, board = self._wire, self._wire.board
        names, _ = self._named()
        key = f"digests/{wire.name}/{when}"
        board.set(f"{key}/{wire.rank}", self.text())
        if board.add(f"{key}/written") < wire.size and not wire.dead:
            return
        alive = wire.alive
        written = [board.get(f"{key}/{rank}") for rank in alive]
        texts = {rank: text for rank, text in zip(alive, written, strict=True) if text is not None}
        if len(texts) < len(alive):
            return
        if len(set(texts.values())) > 1:
            self._raise(number, names, texts, reason or _REASON, tells=tells)
        board.delete(key)

    def _raise(
        self, number: int, names: Sequence[str], written: Mapping[int, bytes], reason: str, *, tells: bool
    ) -> None:
        (most, count), *others = Counter(written.values()).most_common()
        is_tie = any(other == count for _, other in others)
        ranks = ranks_of_world(self._wire, [rank for rank, text in written.items() if is_tie or text != most])
        first = self._first(names, most, next(text for text in written.values() if text != most))
        board = self._wire.board
        who = named(board, ranks)
        if len(ranks) == 1:
            who = named_at(board, ranks[0], host_of(board, ranks[0]))
        differs = "differ from each other" if is_tie else "has parted from the others"
        differs = differs if is_tie or len(ranks) == 1 else "have parted from the others"
        sentence = (
            f"the replica{'s' if len(ranks) > 1 else ''} of {who} {differs} by round {number} of {self._strategy}, "
            f"first in {first}; {reason}"
        )
        if tells:
            tell(f"quorate: {sentence}\n")
            return
        report_failure(board, ranks[0], sentence, kind="diverged", ranks=ranks)
        raise Diverged(sentence, ranks)

    def _first(self, names: Sequence[str], digests: bytes, others: bytes) -> str:
        places = enumerate(zip(json.loads(digests), json.loads(others), strict=False))
        at = next((place for place, (a, b) in places if a != b), None)
        return "how many parameters there are" if at is None else names[at]
