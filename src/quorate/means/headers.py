"""What travels with the vectors of all workers, behind their numbers, and is summed with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from quorate.core.contracts import Wire
from quorate.core.vectors import Flat, Layout, header_in
from quorate.means.admission import Admission
from quorate.means.forward_buffers import BufferCopies
from quorate.observe.finite import Finite
from quorate.observe.gradient_noise import NoiseWatch
from quorate.observe.local_changes import ALL_SIGNATURES, LocalChanges
from quorate.observe.stopping import Stop
from quorate.replica.replica import Replica

WEIGHT, ENDED, PAUSED, STOPPING, SAVING, VECTORS, VOTES, SQUARE, MEASURED = 0, 1, 2, 3, 4, 5, 6, 7, 8
BUFFERS, SIGNED = 9, 10
COUNTS = SIGNED + ALL_SIGNATURES
"""Places. `SQUARE` and `MEASURED`: see `observe.gradient_noise`; `BUFFERS`: see `means.forward_buffers`; from
`SIGNED` on: see `observe.local_changes`. From
`COUNTS` on, for each parameter how many had something for it; then, for each part, how many changed it after it had
left; then, for each rank, whether it brought numbers that are not finite."""


def header_length(tensors: int, parts: int, max_size: int) -> int:
    """Elements of the header of a vector of so many tensors in so many parts, among at most `max_size` workers.

    There may be one more part than the tensors need: the one that the header is in.
    """
    return COUNTS + tensors + parts + 1 + max_size


def header_of(weight: float, used: Sequence[float], layout: Layout) -> Tensor:
    """What travels with a vector besides its numbers: its weight, and for which parameters it has something.

    That is a number above 0: 1, or what is to be summed of it (`energies_in`).
    """
    header = torch.zeros(layout.header)
    header[WEIGHT] = weight
    header[COUNTS : COUNTS + len(used)] = torch.tensor(used, dtype=header.dtype)
    return header


def units_by_weight(given: Flat, size: int) -> list[float]:
    """By tensor, how many times as large as a gradient a vector is that one of `size` workers gives by its weight."""
    return [(float(header_in(given)[WEIGHT]) or 1.0) / size] * len(given.layout.segments)


def numbers_of(x: Flat) -> list[Tensor]:
    """Its parts without the header."""
    *parts, last = x.parts
    return [*parts, last[: last.numel() - x.layout.header]]


def put_bad(header: Tensor, rank: int, size: int) -> None:
    """Note in a header that `rank` brought a gradient that is not finite."""
    header[header.numel() - size + rank] = 1.0


def bad_in(sums: Flat, size: int) -> list[int]:
    """Who has noted that."""
    return [rank for rank, n in enumerate(header_in(sums)[-size:].tolist()) if n > 0]


def used_in(sums: Flat, count: int) -> list[bool]:
    """Which of `count` parameters any worker had something for."""
    return [n > 0 for n in header_in(sums)[COUNTS : COUNTS + count].tolist()]


def energies_in(sums: Flat, count: int) -> list[float]:
    """Of `count` parameters, the mean of what contributions had for each, by weight."""
    header = header_in(sums).tolist()
    return [energy / header[WEIGHT] for energy in header[COUNTS : COUNTS + count]]


@dataclass(frozen=True)
class Announced:
    """What workers tell each other in headers besides: who stops, who saves, who brought what is not finite, and
    signatures of what has to be equal."""

    stop: Stop
    saves: Saves
    worker: object
    """Whose saves are announced."""
    finite: Finite
    noise: NoiseWatch
    changes: LocalChanges
    buffers: BufferCopies | None = None


class Headers:
    """Writes this worker's headers for the means of one optimizer, and learns from the sums of everyone's.

    `before` are those of the same worker when other parameters were trained: what all have learnt stays. `within` are
    the workers with the other pieces of this replica, where it has a piece of one.
    """

    def __init__(
        self,
        replica: Replica,
        wire: Wire,
        announced: Announced,
        before: Headers | None = None,
        within: Wire | None = None,
    ) -> None:
        self._within, self.is_alone = within, within is not None and wire.size == 1
        """Alone: there are no other replicas."""
        self._replica, self._announced, self._rank = replica, announced, wire.rank
        self._count, self._bad_from = len(replica.trained), replica.layout.header - wire.max_size
        self.changed = slice(COUNTS + self._count, self._bad_from)
        """For each part, how many changed it after it had left."""
        self.admission = Admission(wire, self._bad_from)
        self.bad: list[int] = []
        """Who brought a gradient that is not finite to the newest mean."""
        self.has_vectors = self.votes = self.has_voted = False
        self._are_finite, self._has_noted = True, False
        self._sums, self._flag = list[Tensor](), cast("Tensor | None", None)
        """Of parts on a GPU; and whether one of them was not finite, once that is calculated."""
        if before is not None:
            self.has_vectors, self.votes, self.has_voted = before.has_vectors, before.votes, before.has_voted
            self.admission.members = before.admission.members

    def look(self, *parts: Tensor) -> None:
        """Before they travel: whether this worker's numbers are finite, and their squares. A GPU is asked last."""
        announced = self._announced
        if announced.noise.due_at <= announced.noise.timer.rounds:
            announced.noise.look(parts)
        if announced.finite.looks:
            on_cpu = list[Tensor]()
            for part in parts:
                if part.device.type == "cpu":
                    on_cpu.append(part)
                else:
                    self._sums.append(part.sum().abs().double())
            self._are_finite = self._are_finite and announced.finite.sees(on_cpu)

    def of_gradient(self, weight: float, touched: Sequence[bool], *, waits: bool = True) -> list[float]:
        """Of this worker's gradient, all parts of which were looked at; `touched` are the parameters that have one.

        Without `waits` nothing is asked of a GPU that still calculates: see `put_flag`.
        """
        mine = [0.0] * self._replica.layout.header
        self._flag = None
        if self._sums:
            self._flag, self._sums = torch.stack(self._sums).isfinite().all().logical_not(), []
            self._are_finite = self._are_finite and (not waits or not bool(self._flag))
        self._put(mine, weight)
        if not self._are_finite:
            self._announced.finite.note(self._replica.names, self._replica.gradients)
            mine[self._bad_from + self._rank], self._are_finite, self._has_noted = 1.0, True, True
        noise = self._announced.noise
        if noise.due_at <= noise.timer.rounds:
            mine[SQUARE], mine[MEASURED] = noise.take(weight)
        copies = self._announced.buffers
        if copies is not None and copies.buffers.slots:
            mine[BUFFERS] = copies.mark()
        mine[SIGNED:COUNTS] = self._announced.changes.signed_gradient()
        mine[COUNTS : COUNTS + self._count] = map(float, touched)
        return mine

    def put_flag(self, header: Tensor) -> None:
        """Let a header on a GPU have what `of_gradient` has not waited for: whether the gradient is finite."""
        if self._flag is not None:
            header[self._bad_from + self._rank].copy_(self._flag)

    def with_flag(self, header: list[float]) -> list[float]:
        """The header that `of_gradient` gave, once a GPU has calculated what `put_flag` writes."""
        if self._flag is not None and bool(self._flag):
            header[self._bad_from + self._rank] = 1.0
        return header

    def write_of_vector(self, header: Tensor, weight: float) -> None:
        """Of a vector that is no gradient."""
        header.zero_()
        header[VECTORS] = float(weight > 0)
        self._put(header, weight)

    def sign_vector(self, header: Tensor) -> None:
        """Sign what this worker has, in the header of a vector that it gives in a step of its own."""
        header[SIGNED:COUNTS] = torch.tensor(self._announced.changes.signed_vector(), dtype=header.dtype)

    def compare(self, header: Sequence[float]) -> None:
        """What all have signed in a mean. Raises as `LocalChanges.compare`."""
        self._announced.changes.compare(header[SIGNED:COUNTS])

    def _put(self, header: Tensor | list[float], weight: float) -> None:
        announced = self._announced
        header[WEIGHT], header[STOPPING], header[VOTES] = weight, announced.stop.mark, float(self.votes)
        header[SAVING] = 0.0 if announced.saves.is_said else float(announced.saves.says(announced.worker))
        if self.admission.is_open:
            self.admission.put(header)

    def of_sum(self, sums: Flat) -> list[float]:
        """What was summed with it; of pieces, see `joined`."""
        header: list[float] = header_in(sums).tolist()
        return header if self._within is None else self.joined(header)

    def most_of_pieces(self, mine: float) -> float:
        """The most that the worker of any piece of this replica has; all of them ask."""
        if self._within is None:
            return mine
        every = self._within.all_gather(torch.tensor([mine], dtype=torch.float64)).wait()
        return float(torch.cat(every).max())

    def joined(self, header: Sequence[float]) -> list[float]:
        """The header of a sum of pieces of replicas, and those of the sums of the other pieces, as one, so that all
        decide alike: somebody stops, or has brought numbers that are not finite, where one of them says so; those that
        have saved are counted."""
        assert self._within is not None
        mine = torch.tensor([header[SAVING], header[STOPPING], *header[self._bad_from :]], dtype=torch.float64)
        every = torch.stack(self._within.all_gather(mine).wait())
        _, stopping, *bad = every.amax(0).tolist()
        found = [*header[: self._bad_from], *bad]
        found[STOPPING], found[SAVING] = stopping, float(every[:, 0].sum())
        return found

    def learn(self, header: Sequence[float], size: int, *, is_away: bool, all_away: bool) -> None:
        """What everyone has learnt in a mean of `size` workers; where some part of it is to be repeated, still the
        same. `is_away` is this worker where it takes part without stepping, `all_away` are all."""
        announced = self._announced
        if header[STOPPING]:
            announced.stop.learn(header[STOPPING])
        if self.admission.is_open and not (header[ENDED] or header[PAUSED]):
            self.admission.learn(header)
        pieces = 1 if self._within is None else self._within.size
        announced.saves.exchanged(announced.worker, header[SAVING], size * pieces, is_away=is_away, all_away=all_away)
        self.has_vectors = self.has_vectors or header[VECTORS] > 0
        self.has_voted = self.has_voted or header[VOTES] > 0

    def learn_gradients(self, header: Sequence[float]) -> None:
        """The same of a mean of gradients: which parameters were used, and who brought what is not finite."""
        self._replica.used = [n > 0 for n in header[COUNTS : COUNTS + self._count]]
        self.bad = []
        if any(header[self._bad_from :]):
            self.bad = [rank for rank in sorted(self.admission.members) if header[self._bad_from + rank] > 0]
        if self._rank in self.bad and not self._has_noted:
            self._announced.finite.note(self._replica.names, self._replica.gradients)
        self._has_noted = False

    def copy_buffers(self, header: Sequence[float]) -> None:
        """Behind a mean that is whole, on all workers: see `BufferCopies.copy`."""
        if self._announced.buffers is not None:
            self._announced.buffers.copy(header[BUFFERS])

    def measure(self, header: Sequence[float], mean: Flat, counted: int) -> None:
        """Measure the `mean` of the gradients of `counted` workers, unless parts have changed after they had left."""
        if not any(header[self.changed]):
            gradients = counted - round(header[ENDED] + header[PAUSED])
            self._announced.noise.saw(header[SQUARE], header[MEASURED], header[WEIGHT], gradients, numbers_of(mean))


class Saves(Protocol):
    """See `checkpoint.saving.Saving`."""

    is_said: bool
    """Whether a header has said that this worker has saved."""

    def says(self, worker: object) -> bool:
        """Whether the next header of `worker` is to say that it has saved since its last one."""

    def exchanged(self, worker: object, said: float, size: int, *, is_away: bool, all_away: bool) -> None:
        """A mean of `worker` is over in which `said` workers of `size` said so."""
