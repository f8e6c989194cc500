"""The task beside each worker that answers for it in rounds, also while its training thread computes."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor

from quorate.core.contracts import Message, Wire
from quorate.core.errors import WireTimeout
from quorate.core.vectors import Flat, Layout, empty_vector
from quorate.rounds.coding import Coding
from quorate.rounds.events import add, happen
from quorate.rounds.fragments import PendingFragments
from quorate.rounds.hosts.pieces import layout_of_piece
from quorate.rounds.hosts.sparse import read, written
from quorate.rounds.log import at_once
from quorate.rounds.member import Member
from quorate.rounds.pending import PendingGradients
from quorate.rounds.row_delivery import URGENT
from quorate.rounds.terms import Agreed

TAG = "rounds"
NEWS = "news"
_LEASE = "lease"
_IDLE_SECONDS = 60.0
_AGAIN_SECONDS = 0.01
"""After which one that found another about to lead looks again, where the leader has died."""


class RoundTask:
    """Carries messages between `member` and the wire, looks at the clock for it, and takes the lease when it must.

    `wire` is the training thread's; the task runs on `wire.channel("progress")`, which it owns but for sends.
    """

    def __init__(
        self,
        wire: Wire,
        agreed: Agreed,
        layout: Layout,
        pending: PendingFragments | None = None,
        coding: Coding | None = None,
    ) -> None:
        self._coding = coding
        self.lock = threading.Lock()
        self.layout, self._mine, self._handed = layout, wire, pending
        self._wire = wire.channel("progress")
        at_hand = at_once(agreed, wire.rank) if pending is None else 0
        self._spare = [empty_vector(layout, wire.empty) for _ in range(at_hand)]
        """Their memory is there before the first step needs it."""
        self.member = Member(
            agreed, wire.rank, self._send, self.lock, self._tell, self.blank, pending, self._host_of, self._layout_of
        )
        if isinstance(self.member.pending, PendingGradients):
            self.member.pending.coding = coding
        elif pending is not None:
            pending.code_by(coding)
        self.member.between.codes = None if coding is None else coding.codes
        self.error: BaseException | None = None
        self.is_waiting = False
        """Whether the training thread waits for a round: then the leader is watched."""
        self._pinged: float | None = None
        self._is_open = True
        if agreed.tolerates_death:
            self._wire.tolerate_deaths(TAG)
            self.member.have_died(self._wire.dead, self._wire.clock.now())  # one that joins has not seen them go
        self.task = wire.spawn(self._run, "progress")

    def blank(self, layout: Layout) -> Flat:
        """A vector to be filled, and then sent without being copied."""
        if layout is self.layout:
            with suppress(IndexError):
                return self._spare.pop()
        return empty_vector(layout, self._wire.empty)

    def lay_out(self, layout: Layout) -> None:
        """Of vectors, from here on."""
        self.layout, self._spare = layout, []
        if self._coding is not None:
            with self.lock:
                self._coding.lay_out(layout)

    # -- for the training thread

    @property
    def applied(self) -> int:
        """The newest round that the replica is after."""
        return self.member.applied

    @applied.setter
    def applied(self, number: int) -> None:
        self.member.applied = number

    def add(self, vector: Flat, about: Mapping[str, Any]) -> None:
        """A gradient waits for a round from now on; it is not the caller's more."""
        with self.lock:
            add(self.member, vector, about)

    def say(self, header: dict[str, Any]) -> None:
        """Tell the member what this worker does."""
        self._wire.send(Message(header={"to": "member", **header}), self._wire.rank, TAG)

    def carry(self, to: int, header: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        """Send another worker's member a message with tensors of any kind."""
        self._wire.send(Message(tuple(tensors), header, shared=True), to, TAG)

    def check(self) -> None:
        """Raise what has ended the task."""
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """End the task."""
        self.say({"close": True})
        self.task.wait()

    # -- the task

    def _run(self, wire: Wire) -> None:
        try:
            self._serve(wire)
        except BaseException as error:  # the training thread waits for news, and raises it
            self.error = error
            self._tell()
            raise

    def _serve(self, wire: Wire) -> None:
        asked = wire.receive(None, TAG)
        while self._is_open:
            try:
                source, message = asked.wait(self._seconds())
            except WireTimeout:
                pass
            else:
                self._take(source, message)
                asked = wire.receive(None, TAG)
                while asked.done():  # what is there already is not silence
                    self._take(*asked.wait())
                    asked = wire.receive(None, TAG)
            self._happens({"what": "passed"})
            self._watch(wire.clock.now())
            self._turned()

    def _turned(self) -> None:
        """All that was there is taken."""

    def _take(self, source: int, message: Message) -> None:
        header = dict(message.header)
        if "gone" in header:
            self._happens({"what": "died", "ranks": header["gone"]})
        elif header.pop("to", None) != "member":
            self._happens({"what": "message", "source": source, "header": header}, message)
        elif header.get("close"):
            self._is_open = False
        else:
            self._happens({"what": "said", "said": header})

    def _happens(self, event: dict[str, Any], message: Message | None = None) -> Any:
        """To the member, now."""
        return self.happen({**event, "now": self._wire.clock.now()}, message)

    def happen(self, event: Mapping[str, Any], message: Message | None = None) -> Any:
        """To the member; what came as `message` is laid out as its `header` says."""
        if message is None or not message.tensors:
            return happen(self.member, event)
        header = event["header"]
        if header["kind"] == "copy":
            return happen(self.member, event, tensors=message.tensors)
        layout = self._layout_of(header["number"], header["settles"])
        if header.get("coded"):
            assert self._coding is not None, "all have the same codec"
            layout = self._coding.codes.layout(layout) or layout
        at = layout_of_piece(layout, header["piece"], header["of"]) if "piece" in header else layout
        return happen(self.member, event, read(message.tensors, message.header.get("sparse"), at, self.blank))

    def _host_of(self, rank: int) -> int:
        return self._wire.host_of(rank)

    def _layout_of(self, number: int, settles: bool) -> Layout:
        """Of the vectors of a round."""
        return self.layout if self._handed is None else self._handed.fragments.layout(number, settles=settles)

    def _seconds(self) -> float:
        """Until something has to be looked at."""
        member, now = self.member, self._wire.clock.now()
        until = [now + (_AGAIN_SECONDS if member.leads in member.dead else _IDLE_SECONDS)]
        if member.leader is not None:
            until.append(member.leader.looks_at)
        if member.asks_until is not None:
            until.append(member.asks_until)
        until.append(member.between.asks_at(member.patience.seconds))
        if self.is_waiting and member.leads != member.rank:
            until.append((member.heard_at if self._pinged is None else self._pinged) + member.patience.seconds)
        return max(0.0, min(until) - now) + 1e-6

    def _watch(self, now: float) -> None:
        """Stand where the leader does not answer, or where one that was about to lead asks for it."""
        member = self.member
        if member.is_wanted or member.leads in member.dead:
            member.is_wanted = False
            self._stand()
        elif not self.is_waiting or member.leads == member.rank or member.heard_at > (self._pinged or now):
            self._pinged = None
        elif self._pinged is None:
            if now >= member.heard_at + member.patience.seconds:
                self._pinged = now
                member.ping()
        elif now >= self._pinged + member.patience.seconds:
            self._pinged = None
            member.heard_at = now
            self._stand()

    def _stand(self) -> None:
        """Take the lease; where another one has taken it meanwhile, follow that one."""
        board, key = self._wire.board, f"{self._wire.name}/{_LEASE}"
        written = board.get(key)
        held = {"term": 0, "leads": 0} if written is None else json.loads(written)
        if (term := self._happens({"what": "lease", "held": held})) is None:
            return
        new = json.dumps({"term": term, "leads": self._wire.rank}).encode()
        if board.swap(key, written, new):
            self._happens({"what": "stand", "term": term})

    def _send(self, to: int, header: dict[str, Any], vector: Flat | None) -> None:
        self._wire.send(self._written(to, header, vector), to, TAG)

    def _written(self, to: int, header: dict[str, Any], vector: Flat | None) -> Message:
        tensors = () if vector is None else vector.parts
        if (
            vector is not None
            and self._coding is not None
            and not header.get("coded")
            and self._host_of(to) != self._host_of(self._wire.rank)
        ):
            tensors, are_sparse = written(vector)
            header |= {"sparse": are_sparse} if any(are_sparse) else {}
        return Message(tensors, header, shared=True, urgent=header["kind"] in URGENT)

    def _tell(self) -> None:
        self._mine.send(Message(), self._mine.rank, NEWS)
