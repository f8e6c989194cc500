"""The header that travels behind the vector of each worker, and is summed with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

import torch
from torch import Tensor

from quorate.core.contracts import Wire, Work
from quorate.core.device_copies import to_device
from quorate.core.vectors import Flat, Layout, header_in
from quorate.means.admission import Admission
from quorate.means.forward_buffers import BufferCopies
from quorate.observe.finite import Finite
from quorate.observe.gradient_noise import NoiseWatch, square_of
from quorate.observe.local_changes import ALL_SIGNATURES, LocalChanges
from quorate.observe.signatures import LENGTH, differ, signature
from quorate.observe.stopping import Stop
from quorate.replica.replica import Replica

WEIGHT, ENDED, PAUSED, STOPPING, SAVING, VECTORS, VOTES, SQUARE, MEASURED = 0, 1, 2, 3, 4, 5, 6, 7, 8
BUFFERS, SIGNED = 9, 10
EDITED = slice(SIGNED + ALL_SIGNATURES, SIGNED + ALL_SIGNATURES + LENGTH)
COUNTS = EDITED.stop
"""Places in a header. `VECTORS`: how many workers give a vector that steps have made. `SQUARE` and `MEASURED`: see
`observe.gradient_noise`; `BUFFERS`: see `means.forward_buffers`; from `SIGNED` on: see `observe.local_changes`.
`EDITED`: signatures of parameters that scripts have edited since the newest mean, without a step. From `COUNTS` on
there are three groups of numbers. They say for each parameter how many workers have a value, and for each part how many
changed it after it was sent. For each rank they say whether its numbers are not finite.
"""


def header_length(tensors: int, parts: int, max_size: int) -> int:
    """Return the length of a header for up to `max_size` workers; one part more than `parts` may hold it."""
    return COUNTS + tensors + parts + 1 + max_size


def header_of(weight: float, used: Sequence[float], layout: Layout) -> Tensor:
    """Return the header of a vector that counts `weight`.

    `used` has a number above 0 for each parameter that has a value: 1, or a number to be averaged (`energies_in`).
    """
    header = torch.zeros(layout.header)
    header[WEIGHT] = weight
    header[COUNTS : COUNTS + len(used)] = torch.tensor(used, dtype=header.dtype)
    return header


def units_by_weight(sent: Flat, size: int) -> list[float]:
    """Return the weight of `sent` over `size`, for each tensor: its size in units of a gradient."""
    return [(float(header_in(sent)[WEIGHT]) or 1.0) / size] * len(sent.layout.segments)


def numbers_of(x: Flat) -> list[Tensor]:
    """Return the parts of `x` without the header."""
    *parts, last = x.parts
    return [*parts, last[: last.numel() - x.layout.header]]


def put_bad(header: Tensor, rank: int, size: int) -> None:
    """Mark in a header that the gradient of `rank` is not finite."""
    header[header.numel() - size + rank] = 1.0


def bad_in(sums: Flat, size: int) -> list[int]:
    """Return the ranks that `put_bad` has marked."""
    return [rank for rank, n in enumerate(header_in(sums)[-size:].tolist()) if n > 0]


def used_in(sums: Flat, count: int) -> list[bool]:
    """Return for each of `count` parameters whether any worker had a value for it."""
    return [n > 0 for n in header_in(sums)[COUNTS : COUNTS + count].tolist()]


def energies_in(sums: Flat, count: int) -> list[float]:
    """Return for each of `count` parameters the mean of the `used` of contributions, by weight."""
    header = header_in(sums).tolist()
    return [energy / header[WEIGHT] for energy in header[COUNTS : COUNTS + count]]


def edits_in(header: Sequence[float], size: int) -> Literal["none", "alike", "unlike"]:
    """Return how scripts have edited the parameters of `size` workers, if no worker has made a step since."""
    count = header[EDITED.start]
    if not count or header[VECTORS]:
        return "none"
    return "alike" if count == size and not differ(header[EDITED]) else "unlike"


@dataclass(frozen=True)
class Announced:
    """The sources of marks in headers: who stops, saves, has numbers that are not finite, and signatures."""

    stop: Stop
    saves: Saves
    worker: object
    """The worker whose saves are announced."""
    finite: Finite
    noise: NoiseWatch
    changes: LocalChanges
    buffers: BufferCopies | None = None


@dataclass(frozen=True)
class Late:
    """Numbers that GPUs have measured of one sum, on their way to the host; see `Headers.learn_late`."""

    header: list[float]
    """The header of the sum without them."""
    measured: Work[Tensor]
    mean: Work[Tensor] | None
    """The squared norm of the mean, where the sum was measured."""
    counted: int
    step: int


class Headers:
    """The headers of this worker for the means of one optimizer, and what it learns from the sums of all headers.

    `before` are the headers of the same worker when other parameters were trained: all that was learnt stays. `within`
    are the workers with the other pieces of this replica, where it has a piece of one.
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
        """Whether there are no other replicas."""
        self._replica, self._announced, self._rank, self._max_size = replica, announced, wire.rank, wire.max_size
        self._count = len(replica.trained)
        self.arrange(replica.layout)
        self.admission = Admission(wire, self._bad_from)
        self.bad: list[int] = []
        """The ranks whose gradient in the newest mean was not finite; or in the mean before, with `is_bad_late`."""
        self.is_bad_late = False
        self.has_vectors = self.votes = self.has_voted = False
        self._are_finite, self._has_noted = True, False
        self._sums = list[Tensor]()
        self._flag = self._square = cast("Tensor | None", None)
        """The sums of parts on a GPU; and, as tensors on the GPU, whether one of them is not finite, and the square of
        the gradient that is measured."""
        self._late: Late | None = None
        self._late_flag: Work[Tensor] | None = None
        """Without other replicas: whether the gradient before was not finite, on its way to the host."""
        self._late_bad: list[float] | None = None
        """The ranks whose gradient before was not finite, on this worker; the next header of its replica has them."""
        if before is not None:
            self.has_vectors, self.votes, self.has_voted = before.has_vectors, before.votes, before.has_voted
            self.admission.members = before.admission.members

    def arrange(self, layout: Layout) -> None:
        """Read and write the headers of vectors of this layout, which may have more or fewer parts than before."""
        self.length = layout.header
        """The length of a header without the room for buffers behind it."""
        self._bad_from = layout.header - self._max_size
        self.changed = slice(COUNTS + self._count, self._bad_from)
        """For each part, how many workers changed it after it was sent."""

    def look(self, *parts: Tensor) -> None:
        """Check that the numbers of this worker are finite, and measure their squares; never waits for a GPU."""
        announced = self._announced
        if announced.noise.due_at <= announced.noise.timer.rounds:
            announced.noise.look(parts)
        if announced.finite.looks:
            on_cpu = list[Tensor]()
            for part in parts:
                if part.device.type == "cpu":
                    on_cpu.append(part)
                else:
                    self._sums.append(part.sum().abs())
            self._are_finite = self._are_finite and announced.finite.sees(on_cpu)

    def of_gradient(self, weight: float, touched: Sequence[bool], *, waits: bool = True) -> list[float]:
        """Return the header of this worker's gradient, all parts of which `look` has seen.

        `touched` are the parameters that have a gradient. Without `waits` a GPU is not waited for: see `put_flag`.
        """
        header = [0.0] * self.length
        self._flag = self._square = None
        if self._sums:
            by_dtype = {x.dtype: [y for y in self._sums if y.dtype is x.dtype] for x in self._sums}
            flags = [torch.stack(sums).isfinite().all().logical_not() for sums in by_dtype.values()]
            self._flag, self._sums = flags[0] if len(flags) == 1 else torch.stack(flags).any(), []
            self._are_finite = self._are_finite and (not waits or not bool(self._flag))
        self._put(header, weight)
        if not self._are_finite:
            self._announced.finite.note(self._replica.all_names, self._replica.all_gradients)
            header[self._bad_from + self._rank], self._are_finite, self._has_noted = 1.0, True, True
        noise = self._announced.noise
        if noise.due_at <= noise.timer.rounds:
            square, header[MEASURED] = noise.take(weight)
            if isinstance(square, Tensor):
                self._square = square
            else:
                header[SQUARE] = square
        copies = self._announced.buffers
        if copies is not None and copies.buffers.slots:
            header[BUFFERS] = copies.mark()
        header[SIGNED : EDITED.start] = self._announced.changes.signed_gradient()
        header[COUNTS : COUNTS + self._count] = map(float, touched)
        return header

    def put_changed(self, header: Tensor | list[float], parts: Iterable[int]) -> None:
        """Mark in a header the `parts` that have changed after they were sent."""
        for part in parts:
            header[self.changed.start + part] = 1.0

    def write_of_gradient(self, header: Tensor, numbers: Sequence[float]) -> None:
        """Write `numbers`, which `of_gradient` has returned, and the buffers that travel behind them.

        In a header on a GPU are also those for which `of_gradient` has not waited. No thread waits for the GPU.
        """
        is_here = header.device.type == "cpu"
        own = torch.tensor(numbers, dtype=header.dtype)
        header[: self.length].copy_(own if is_here else to_device(own, header))
        self._write_more(header)

    def write_measured(self, header: Tensor) -> None:
        """Write only what a GPU has measured into a header on it, as the other numbers are summed on the hosts."""
        header[: self.length].zero_()
        self._write_more(header)

    def _write_more(self, header: Tensor) -> None:
        if self._flag is not None and header.device.type != "cpu":
            header[self._bad_from + self._rank].copy_(self._flag)
        if self._square is not None and header.device.type != "cpu":
            header[SQUARE].copy_(self._square)
        copies = self._announced.buffers
        if copies is not None and header.numel() > self.length:
            copies.write(header[self.length :])

    def write_of_vector(self, header: Tensor, weight: float) -> None:
        """Write the header of a vector that is no gradient."""
        header.zero_()
        header[VECTORS] = float(weight > 0)
        self._put(header, weight)

    def write_edit(self, header: Tensor, checksum: int) -> None:
        """Write the `checksum` of edited parameters into the header of their vector, which no step has made."""
        header[VECTORS] = 0.0
        header[EDITED] = torch.tensor(signature(checksum, self._max_size), dtype=header.dtype)

    def sign_vector(self, header: Tensor, looked_at: Flat | None = None) -> None:
        """Write the signatures of this worker into the header of a vector of a step of its own.

        A vector that is `looked_at` is marked if it is not finite.
        """
        header[SIGNED : EDITED.start] = torch.tensor(self._announced.changes.signed_vector(), dtype=header.dtype)
        finite = self._announced.finite
        if looked_at is not None and finite.looks and not finite.sees(numbers_of(looked_at)):
            finite.note(self._replica.all_names, self._replica.all_gradients)
            header[self._bad_from + self._rank] = 1.0

    def compare(self, header: Sequence[float]) -> None:
        """Compare the signatures of all workers in a mean. Raises as `LocalChanges.compare`."""
        self._announced.changes.compare(header[SIGNED : EDITED.start])

    def _put(self, header: Tensor | list[float], weight: float) -> None:
        announced = self._announced
        header[WEIGHT], header[STOPPING], header[VOTES] = weight, announced.stop.mark, float(self.votes)
        header[SAVING] = 0.0 if announced.saves.is_said else float(announced.saves.says(announced.worker))
        if self.admission.is_open:
            self.admission.put(header)

    def of_sum(self, summed: Tensor) -> list[float]:
        """Return the header of a sum from its numbers on the CPU; of a sum of pieces, see `joined`."""
        header: list[float] = summed[: self.length].tolist()
        return header if self._within is None else self.joined(header)

    @property
    def waits_for_bad(self) -> bool:
        """Whether a step waits until it knows which gradients are not finite, as its update depends on it."""
        return self._announced.finite.policy in ("skip", "raise")

    def learn_flag_late(self, wire: Wire) -> None:
        """Note that the next step reads the flag for which `of_gradient` has not waited."""
        self._late_flag = None if self._flag is None else wire.on_host(self._flag)

    def measured_in(self, sums: Flat, wire: Wire) -> Work[Tensor]:
        """Copy to the host what GPUs have measured of a sum: see `with_measured`."""
        own = header_in(sums)
        return wire.on_host(torch.cat([own[SQUARE : SQUARE + 1], own[self._bad_from : self.length]]))

    def with_measured(self, header: list[float], measured: Tensor) -> list[float]:
        """Return the `header` with the numbers of `measured_in`."""
        square, *bad = measured.tolist()
        return [*header[:SQUARE], square, *header[SQUARE + 1 : self._bad_from], *bad]

    def learn_late(
        self, header: list[float], sums: Flat, wire: Wire, counted: int, rows: Sequence[Tensor] = ()
    ) -> None:
        """Note that the next step reads what GPUs have measured of this sum, which this one does not wait for.

        `rows` are the sums of the rows of tables, which belong to it.
        """
        mean = None
        if header[MEASURED] > 0 and not any(header[self.changed]):
            factor = counted / header[WEIGHT]
            squares = [torch.linalg.vector_norm(x).float().square() for x in (*numbers_of(sums), *rows)]
            mean = wire.on_host(torch.stack(squares).sum() * factor**2)
        step = self._announced.noise.timer.steps + 1
        self._late = Late(header, self.measured_in(sums, wire), mean, counted, step)

    def take_late(self) -> None:
        """Read what GPUs have measured of the sum before; all workers call this at the same place."""
        late, self._late = self._late, None
        flag, self._late_flag = self._late_flag, None
        if flag is not None:
            self._late_bad = [0.0] * (self.length - self._bad_from)
            self._late_bad[self._rank] = float(flag.wait())
        if late is None:
            return
        header = self.with_measured(late.header, late.measured.wait())
        if late.mean is not None:
            gradients = late.counted - round(header[ENDED] + header[PAUSED])
            squares = header[SQUARE], header[MEASURED], header[WEIGHT]
            self._announced.noise.saw(*squares, gradients, float(late.mean.wait()), late.step)
        if self._within is not None:
            self._late_bad = header[self._bad_from :]
        else:
            self._learn_late_bad(header)

    def _learn_late_bad(self, header: Sequence[float]) -> None:
        if any(header[self._bad_from :]):
            self.bad = [rank for rank in sorted(self.admission.members.everyone) if header[self._bad_from + rank] > 0]
            self.is_bad_late = True

    def most_of_pieces(self, number: float) -> float:
        """Return the largest `number` of the workers of this replica's pieces; all of them call it."""
        if self._within is None:
            return number
        numbers: list[float] = self._within.tell_all("numbers of pieces", number).wait()
        return float(torch.tensor(numbers, dtype=torch.float64).max())

    def joined(self, header: Sequence[float]) -> list[float]:
        """Return one header from the sums of all pieces, so that the workers of a replica decide alike.

        One that stops, or has numbers that are not finite, counts for all; saves are added up.
        """
        assert self._within is not None
        bad, late, self._late_bad = header[self._bad_from :], self._late_bad, None
        numbers = [header[SAVING], header[STOPPING], *map(max, bad, late or bad)]
        headers = torch.tensor(self._within.tell_all("headers of pieces", numbers).wait(), dtype=torch.float64)
        _, stopping, *bad = headers.amax(0).tolist()
        joined = [*header[: self._bad_from], *bad]
        if late is not None:
            self._learn_late_bad(joined)
        joined[STOPPING], joined[SAVING] = stopping, float(headers[:, 0].sum())
        return joined

    def learn(self, header: Sequence[float], size: int, *, is_away: bool, all_away: bool) -> None:
        """Read the header of a mean of `size` workers; it is the same where a part is then repeated.

        `is_away` is whether this worker takes part without stepping, `all_away` whether all workers do.
        """
        announced = self._announced
        if header[STOPPING]:
            announced.stop.learn(header[STOPPING])
        if self.admission.is_open and not (header[ENDED] or header[PAUSED]):
            self.admission.learn(header, size)
        pieces = 1 if self._within is None else self._within.size
        announced.saves.exchanged(announced.worker, header[SAVING], size * pieces, is_away=is_away, all_away=all_away)
        self.has_vectors = self.has_vectors or header[VECTORS] > 0
        if header[VECTORS]:
            self._learn_bad(header)
        self.has_voted = self.has_voted or header[VOTES] > 0

    def learn_gradients(self, header: Sequence[float]) -> None:
        """Read the parameters that were used, and the bad ranks, from the header of a mean of gradients."""
        self._replica.used = [n > 0 for n in header[COUNTS : COUNTS + self._count]]
        self.bad = self.bad if self.is_bad_late else []
        self._learn_bad(header)
        if self._rank in self.bad and not self._has_noted:
            self._announced.finite.note(self._replica.all_names, self._replica.all_gradients)
        self._has_noted = False

    def _learn_bad(self, header: Sequence[float]) -> None:
        """Read the bad ranks from the header of a mean."""
        if any(header[self._bad_from :]):
            self.bad = [rank for rank in sorted(self.admission.members.everyone) if header[self._bad_from + rank] > 0]

    def copy_buffers(self, header: Sequence[float], sums: Flat) -> None:
        """Copy buffers after a complete sum, on all workers: see `BufferCopies.copy`."""
        if self._announced.buffers is not None:
            self._announced.buffers.copy(header[BUFFERS], header_in(sums)[self.length :])

    def measure(self, header: Sequence[float], mean: Flat, counted: int, rows: Sequence[Tensor] = ()) -> None:
        """Measure the `mean` of the gradients of `counted` workers, and its `rows` of tables.

        Nothing is measured if parts changed after they were sent.
        """
        if not any(header[self.changed]):
            gradients = counted - round(header[ENDED] + header[PAUSED])
            squares, step = square_of([*numbers_of(mean), *rows]), self._announced.noise.timer.steps + 1
            self._announced.noise.saw(header[SQUARE], header[MEASURED], header[WEIGHT], gradients, squares, step)


class Saves(Protocol):
    """See `checkpoint.saving.Saving`."""

    is_said: bool
    """Whether a header has said that this worker has saved."""

    def says(self, worker: object) -> bool:
        """Whether the next header of `worker` is to say that it has saved since its last one."""

    def exchanged(self, worker: object, said: float, size: int, *, is_away: bool, all_away: bool) -> None:
        """A mean of `worker` is over in which `said` workers of `size` said so."""
