"""`FaultTolerantSum`: sums that continue among the survivors when a worker dies, with the same bits on all.

While all workers are alive, another reducer (`Dense`) forms the sum, which is then committed: no worker uses it before
the board shows that all have it. Its parts are sent as they become ready. If a worker dies before the commit, the
remaining workers form the whole sum again from their own kept contributions, whichever parts had been sent. They do the
same if a part changed after it was sent.

Cost in addition to the other reducer: two to four words exchanged with the board for each sum, a few tenths of a
millisecond; memory for the kept contribution. A sum that is formed again, like every sum after a death, sends every
worker's message (`Reducer.message`) to every other: (P - 1) d numbers each if it is dense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from quorate.aggregation.outcome import Outcome
from quorate.core.contracts import Done, Message, Wire, Work
from quorate.core.device_copies import HostCopy
from quorate.core.errors import Mismatch, PeerFailed, QuorateError, WireTimeout, ranks_in_words
from quorate.core.vectors import Flat, Layout, empty_vector, header_in
from quorate.means.dense import Dense
from quorate.means.reducer import Reducer
from quorate.wire.survivors import GatherAmongSurvivors, Survivors
from quorate.wire.work import read_behind

_SLICE = 0.05
_ALL, _LEFT = b"of all", b"of those that are left"


class CopiesForNewcomers(Protocol):
    """Copies of a replica for newcomers, who form the next sum once they have them."""

    def look(self) -> None:
        """Send the copies of a dead sender; called every few hundredths of a second while a sum waits for others."""


class FaultTolerantSum:
    """Sums that continue among the survivors of a death; the wire must outlive it (`Wire.tolerate_deaths`).

    A number other than 0 in the slice `changed` of the header of a sum marks a part that changed after it was sent. A
    worker has one of these for each of its optimizers, all of them in `beside`. While it waits for one worker's sum,
    the sums of the others that are under way progress too. Another worker may be waiting for them before it reaches
    this one.
    """

    def __init__(
        self,
        layout: Layout,
        wire: Wire,
        beside: list[FaultTolerantSum] | None = None,
        changed: slice = slice(0),
        of: Reducer | None = None,
    ) -> None:
        """Use the reducer `of` to form the sums as long as all workers live; by default `Dense`."""
        self.wire, self.of, self.changed = wire, Dense(layout, wire) if of is None else of, changed
        self.under_way: list[_Sum] = []
        """The oldest first; each waits for those before it, so that all workers form them in one order."""
        self.beside = [] if beside is None else beside
        self.beside.append(self)
        self.survivors = Survivors(wire.channel("sums"))
        self.ranks: Sequence[int] = range(wire.size)
        """The workers whose contributions are in the newest sum."""
        self.newest_header: Tensor | None = None
        self.newest_rows: Sequence[Tensor] = ()
        """The rows beside the newest sum, of the workers whose contributions are in it."""
        self.is_whole = True
        """Whether all workers live, as far as sums have shown."""
        self.copies: CopiesForNewcomers | None = None
        """Copies for the newest newcomers, which may need another sender while a sum waits for them."""
        self._calls = 0
        self._lacks_parts = False
        """Whether a part of the next sum was not launched when it was ready."""

    def follows(self, before: FaultTolerantSum) -> None:
        """Take over from `before`, which is closed, on the same wire; every worker does so at the same place."""
        self.beside.remove(before)
        self.survivors, self._calls = before.survivors, before._calls
        self.ranks, self.is_whole = before.ranks, before.is_whole
        if type(before.of) is type(self.of):  # tensors of other shapes may have another one
            self.of.follows(before.of)

    @property
    def counted(self) -> int:
        """The number of workers whose contributions are in the newest sum."""
        return len(self.ranks)

    @property
    def state(self) -> Any:
        return self.of.state

    def header_of(self, sums: Flat) -> Tensor | None:
        """See `Reducer.header_of`; that of a sum whose commit has read it."""
        return self.newest_header

    @property
    def outcome(self) -> Outcome | None:
        return self.of.outcome

    @property
    def calls(self) -> int:
        """The number of sums so far."""
        return self._calls

    def take_in(self, members: Iterable[int], calls: int | None = None) -> int:
        """Make `members` form the sums from the next one on, and return the number of sums so far.

        Every one of them calls this after the same sum; a newcomer passes the number of `calls` so far.
        """
        self._calls = self._calls if calls is None else calls
        self.survivors.among(members, self._calls)
        self.is_whole = False
        return self._calls

    def weighs(self, weight: float) -> None:
        self.of.weighs(weight)

    def retract(self) -> None:
        """See `Reducer.retract`."""
        self.of.retract()

    def uncoded(self) -> AbstractContextManager[None]:
        """See `Reducer.uncoded`."""
        return self.of.uncoded()

    def code(self, chosen: Mapping[str, Tensor] | None) -> None:
        self.of.code(chosen)

    def part_ready(self, part: int, x: Tensor) -> None:
        """Launch a part, as `Dense.part_ready`; raises nothing. After a death nothing is launched."""
        if self._lacks_parts or not self.is_whole:
            self._lacks_parts = True
            return
        try:
            self.of.part_ready(part, x)
        except QuorateError:
            self._lacks_parts = True  # `start`, or the wait for the sum, raises the cause

    def start(
        self,
        x: Flat,
        kept: Callable[[], Flat],
        rows: Tensor | None = None,
        exchange: Callable[[Tensor], Work[list[Tensor]]] | None = None,
    ) -> Work[Flat]:
        """Launch the parts that `part_ready` has not, and return the sum of all.

        It is written into `x`, or into new memory if it is formed again: earlier exchanges may still write into `x`.
        `kept` returns the contribution once more, with zeros in `changed`. `rows` belong to it, and `exchange` gives
        the rows of all; those in the sum are `newest_rows`.
        """
        self._calls += 1
        whole = self._launched(x, kept)
        work = self.of.abandon(x) if whole is None else whole
        exchanged: Work[list[Tensor]] | None = None
        if whole is not None and rows is not None and exchange is not None:
            with suppress(PeerFailed):  # the board will report the death
                exchanged = exchange(rows)
        is_whole = whole is not None and (rows is None or exchanged is not None)
        self.under_way.append(_Sum(self, self._calls, x, kept, work, (rows, exchanged), is_whole=is_whole))
        self._lacks_parts = False
        return self.under_way[-1]

    def kept(self, x: Flat) -> Callable[[], Flat]:
        """Return a function that gives a copy of `x`, into which the sum is written, with zeros in `changed`."""
        copy = empty_vector(x.layout, self.wire.empty)
        for into, part in zip(copy.parts, x.parts, strict=True):
            into.copy_(part)
        header_in(copy)[self.changed] = 0.0
        return lambda: copy

    def look(self) -> None:
        """Let the sums under way move on without waiting; errors are raised by `Work.wait` only."""
        with suppress(WireTimeout, PeerFailed, Mismatch):
            while self.under_way:
                self.under_way[0].look()

    def look_beside(self) -> bool:
        """Let the sums of other optimizers move on; return whether any is under way."""
        others = [other for other in self.beside if other is not self and other.under_way]
        for other in others:
            other.look()
        return bool(others)

    def _launched(self, x: Flat, kept: Callable[[], Flat]) -> Work[Flat] | None:
        if self._lacks_parts or not self.is_whole or self.wire.dead:
            return None
        try:
            return self.of.start(x, kept)
        except PeerFailed:
            return None  # the board will report the death

    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        """Raise an error: where a part changed after it was sent, the whole sum is formed again."""
        raise AssertionError("a sum with a part that changed was not formed again")

    def divisor(self, size: int) -> float:
        return self.of.divisor(size)

    def factor(self, size: int, weight: float) -> float:
        return self.of.factor(size, weight)

    def wire_bytes(self, size: int) -> int | None:
        """See `Reducer.wire_bytes`, while all workers live."""
        return self.of.wire_bytes(size)


@dataclass
class SumsOfWorker:
    """The sums of all optimizers of one worker."""

    all: list[FaultTolerantSum] = field(default_factory=list)


class _Sum:
    """One sum under way; it moves on while this sum or another one is waited for or asked about."""

    def __init__(
        self,
        reducer: FaultTolerantSum,
        number: int,
        x: Flat,
        kept: Callable[[], Flat],
        dense: Work[Any],
        rows: tuple[Tensor | None, Work[list[Tensor]] | None] = (None, None),
        *,
        is_whole: bool,
    ) -> None:
        """Wait for `dense`, all parts that were launched, before all else; `is_whole`: no part is missing. `rows` are
        those of this worker, if any, and their exchange."""
        self._rows, self._exchanged = rows
        self._received: Sequence[Tensor] = ()
        """The rows of all."""
        self._reducer, self._wire, self._x, self._kept = reducer, reducer.wire, x, kept
        self._dense: Work[Any] | None = dense
        self._key = f"{reducer.wire.name}/sum/{number}"
        self._before = f"{reducer.wire.name}/sum/{number - 2}/"
        self._has = is_whole
        self._has_changed = False
        """Whether a part had changed after it was sent, on any worker."""
        self._ranks: Sequence[int] = range(reducer.wire.size)
        self._has_counted = self._has_said = self._is_over = False
        self._behind: HostCopy | None = None
        """A copy of the header that shows that the sum is there: a GPU is waited for once."""
        self._header: Work[Tensor] | None = None
        """The header of the sum on its way to the host."""
        self._read: Tensor | None = None
        """The header on the host, unless the sum was formed again."""
        self._anew: GatherAmongSurvivors | None = None

    def done(self) -> bool:
        try:
            while not self._is_over:
                self._reducer.under_way[0].look()
        except WireTimeout:
            return False
        except (PeerFailed, Mismatch):
            return True
        return True

    def look(self) -> None:
        """Move on without waiting; raises `WireTimeout` while the sum is not over, and the errors of `wait`."""
        works = [] if self._dense is None else [self._dense, *([self._exchanged] if self._exchanged else [])]
        if not all(work.done() for work in works):
            raise WireTimeout("a sum is under way", ())
        self._move_on(0.0, 0.0)
        if not self._is_over:
            raise WireTimeout("a sum is not agreed on yet", ())

    def wait(self, timeout: float | None = None) -> Flat:
        clock = self._wire.clock
        limit = self._wire.timeout if timeout is None else timeout
        deadline = clock.now() + limit
        while not self._is_over:
            left = deadline - clock.now()
            slice_ = max(0.0, min(_SLICE, left))
            is_alone = not self._reducer.look_beside()
            try:
                self._reducer.under_way[0]._move_on(max(0.0, left) if is_alone else slice_, slice_)
            except WireTimeout as error:
                if self._reducer.copies is not None:
                    self._reducer.copies.look()
                if left <= _SLICE:
                    late = error.ranks or self._silent()
                    raise WireTimeout(
                        f"rank {self._wire.rank} waited {limit:g} s for {ranks_in_words(late)} in a sum{error.record}",
                        late,
                    ) from None
        self._reducer.ranks, self._reducer.newest_rows = self._ranks, self._received
        is_here = header_in(self._x).device.type == "cpu"  # its view would hold the memory of the whole sum
        self._reducer.newest_header = None if is_here else self._read
        return self._x

    def _move_on(self, left: float, slice_: float) -> None:
        if self._dense is not None:
            try:
                if self._has and self._behind is None:
                    self._behind = read_behind(self._dense, header_in(self._x))
                self._dense.wait(left)
                if self._exchanged is not None:
                    self._received = self._exchanged.wait(left)
                if self._has and self._header is None:
                    here = self._reducer.of.header_of(self._x) if self._behind is None else self._behind.there
                    self._header = self._wire.on_host(header_in(self._x)) if here is None else Done(here)
                header = self._read = None if self._header is None else self._header.wait(left)
            except PeerFailed as error:
                if not self._wire.dead:
                    raise
                self._has, self._reducer.is_whole = False, False
                header = None
                del error
            self._dense = None
            if self._has and header is not None and bool(header[self._reducer.changed].any()):
                self._has, self._has_changed = False, True
        if self._anew is not None:
            self._add_up(self._anew.wait(slice_))
            return
        how = self._how(slice_)
        if how == _ALL:
            self._over()
        elif how is not None:
            self._reducer.is_whole = self._has_changed and self._reducer.is_whole
            rows = () if self._rows is None else (self._rows,)
            message = Message((*self._reducer.of.message(self._kept()), *rows))
            self._anew = self._reducer.survivors.gather(message, "sum")

    def _how(self, seconds: float) -> bytes | None:
        """Return the decision on this sum: it counts, or it is formed again; None where it is open."""
        board, key = self._wire.board, f"{self._key}/how"
        if self._has and not self._has_counted:
            self._has_counted = True
            if board.add(f"{self._key}/have") == self._wire.size and board.swap(key, None, _ALL):
                board.delete(self._before)
        if (self._has_changed or self._wire.dead or not self._reducer.is_whole) and not self._has_said:
            self._has_said = True
            board.set(f"{self._key}/says/{self._wire.rank}", _ALL if self._has else _LEFT)
        if self._has_said:
            said = [board.get(f"{self._key}/says/{rank}") for rank in self._living()]
            how = _ALL if all(word == _ALL for word in said) else _LEFT
            if all(word is not None for word in said) and board.swap(key, None, how):
                board.delete(self._before)
        written = board.get(key)
        if written is None and seconds > 0.0:
            board.wait([key], seconds)
            written = board.get(key)
        return written

    def _living(self) -> list[int]:
        return sorted(self._reducer.survivors.members - self._wire.dead)

    def _silent(self) -> list[int]:
        board = self._wire.board
        return [rank for rank in self._living() if board.get(f"{self._key}/says/{rank}") is None]

    def _add_up(self, messages: dict[int, Message]) -> None:
        wire = self._wire
        # Some workers may not know yet on which host a newcomer is.
        hosts = [wire.host_of(rank) if rank < wire.size else rank for rank in messages]
        tensors = [message.tensors for message in messages.values()]
        if self._rows is not None:
            self._received = [message[-1] for message in tensors]
            tensors = [message[:-1] for message in tensors]
        self._x = self._reducer.of.sum_of(tensors, list(messages), hosts, self._x)
        self._ranks, self._read = list(messages), None
        self._over()

    def _over(self) -> None:
        self._is_over = True
        self._reducer.under_way.remove(self)
