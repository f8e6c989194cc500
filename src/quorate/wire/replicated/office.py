"""The leader of a replicated board, which orders writes, and notices silent workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.core.fields import Fields
from quorate.wire.replicated import messages
from quorate.wire.replicated.board_copy import BoardCopy
from quorate.wire.replicated.state import NOTHING, Write, is_majority

_MOST = 200
"""Most writes in one message."""
_BYTES = 1 << 18
"""Approximate limit of values in one message, in bytes."""
_NEVER = float("-inf")


class Office:
    """The office of `replica` in its term; the leader before was last heard at `since`, others at times in `heard`."""

    def __init__(self, replica: BoardCopy, since: float, heard: Mapping[int, float]) -> None:
        self._replica = replica
        self._has = dict[int, int]()
        """Newest entry that each worker is known to have."""
        self._sent = dict[int, int]()
        """Newest entry sent to each worker."""
        self._applied = dict[int, int]()
        self._since = since
        self._heard, self._begins = dict(heard), replica.now
        self._elected = max(heard.values(), default=since)
        self._stamps = dict[int, float]()
        """Send time of the newest message that each worker has answered."""
        self._beat_at = replica.now
        self._first = replica.log.last
        """Own entry from which on entries are known to be committed."""
        self._reads: list[tuple[int, int, float]] = []
        self._is_due = True
        self.newcomers: set[int] = set()
        """Workers that follow, and have not joined."""

    def take(self) -> None:
        """Begin: earlier entries are committed once one of this term is."""
        replica = self._replica
        replica.log.add(replica.term, Write(-1, 0, 0, NOTHING))
        self._first = replica.log.last
        self._go_on()

    # -- requests

    def propose(self, write: Write) -> None:
        """Order a write, unless it is ordered already."""
        replica = self._replica
        pending = ((other.by, other.number) for _, other in replica.log.behind(replica.applied))
        if replica.state.has_applied(write) or (write.by, write.number) in pending:
            return
        replica.log.add(replica.term, write)
        self._is_due = True

    def read(self, rank: int, number: int, now: float) -> None:
        """Send `rank` the entry from which on it reads the newest values."""
        self._reads.append((rank, number, now))
        self._serve_reads()

    def received(self, source: int, message: Fields) -> None:
        """Handle a message of a follower, or of a worker that is to follow."""
        replica = self._replica
        self._heard[source] = replica.now
        if isinstance(message, messages.Proposal):
            self.propose(message.write)
        elif isinstance(message, messages.ReadRequest):
            self.read(source, message.number, replica.now)
        elif isinstance(message, messages.Hello) and source not in self._targets():
            self.newcomers.add(source)
            self._send(source)
        elif isinstance(message, messages.Acknowledgement) and message.term == replica.term:
            self._stamps[source] = max(self._stamps.get(source, _NEVER), message.stamp)
            self._applied[source] = message.applied
            if message.yes:
                self._has[source] = max(self._has.get(source, 0), message.number)
            else:
                lacks = min(message.number, self._sent.get(source, 0))
                self._sent[source] = max(lacks, self._has.get(source, 0))  # an answer may be older than another
                self._send(source)
            self._go_on()

    # -- time

    @property
    def majority_heard(self) -> float:
        """Send time of the newest message that a majority has answered."""
        replica, answered = self._replica, {self._replica.rank}
        if is_majority(answered, replica.state.voters):
            return replica.now
        for peer in sorted(self._stamps, key=lambda peer: -self._stamps[peer]):
            answered.add(peer)
            if is_majority(answered, replica.state.voters):
                return self._stamps[peer]
        return self._since - replica.limits.stand_after

    @property
    def contact(self) -> float:
        """Time of the last contact with a majority: an answer, or its votes."""
        return max(self.majority_heard, self._elected)

    @property
    def is_heard(self) -> bool:
        """Whether a majority has answered lately, or may still answer for the first time."""
        replica = self._replica
        return replica.now - max(self.majority_heard, self._begins) < replica.limits.yields_after

    def passed(self) -> None:
        """Handle the passage of time."""
        now = self._replica.now
        self.newcomers = {peer for peer in self.newcomers if not self._is_missed(peer)}
        if now - self._beat_at >= self._replica.limits.beat:
            self._beat_at, self._is_due = now, False
            for peer in self._targets():
                self._sent[peer] = self._has.get(peer, self._sent.get(peer, self._first))
                self._send(peer)
            self._go_on()

    def flush(self) -> None:
        """Send the proposed writes."""
        if self._is_due:
            self._go_on()

    def forgive(self, seconds: float) -> None:
        """Count out `seconds` in which this worker did not listen."""
        self._since += seconds
        self._begins += seconds
        self._elected += seconds
        self._heard = {peer: at + seconds for peer, at in self._heard.items()}
        self._stamps = {peer: at + seconds for peer, at in self._stamps.items()}

    def silent(self) -> dict[int, str]:
        """Return the workers to be taken for dead, and the reasons; none while this worker hears no majority."""
        replica, reasons = self._replica, dict[int, str]()
        if replica.now - self.majority_heard >= replica.limits.yields_after:
            return reasons
        for peer in sorted(replica.state.voters - {replica.rank}):
            if why := self._is_missed(peer):
                reasons[peer] = why
        return reasons

    def _is_missed(self, peer: int) -> str:
        """Return in words that `peer` has ended or is silent; "" otherwise."""
        limits = self._replica.limits
        if self._replica.is_closed(peer):
            return "has ended"
        is_silent = self._replica.now - self._heard.get(peer, self._since) >= limits.silence
        return f"was not heard for {limits.silence:g} s" if is_silent else ""

    @property
    def is_known_to_all(self) -> bool:
        """Whether all workers whose connections are open have the committed entries."""
        replica = self._replica
        open_ones = [peer for peer in self._targets() if peer not in replica.closed]
        return all(self._applied.get(peer, 0) >= replica.applied for peer in open_ones)

    # -- entries

    def _targets(self) -> list[int]:
        replica = self._replica
        everyone = frozenset().union(*replica.electors(), self.newcomers - replica.state.members.dead)
        return sorted(everyone - {replica.rank})

    def _go_on(self) -> None:
        """Commit entries that a majority has, and send the new ones."""
        before, targets = self._replica.applied, self._targets()
        self._apply()
        if self._is_due or self._replica.applied != before:
            self._is_due = False
            for peer in {*targets, *self._targets()}:  # also to those that have just left
                self._send(peer)
        self._drop()
        self._serve_reads()

    def _apply(self) -> None:
        replica = self._replica
        while replica.applied < replica.log.last:
            number = replica.applied + 1
            counted = max(number, self._first)
            have = [peer for peer, has in self._has.items() if has >= counted] + [replica.rank]
            changes = replica.state.voters_after([replica.log.write_of(number)])
            if counted > replica.log.last or not all(is_majority(have, voters) for voters in changes):
                return
            replica.apply_up_to(number)

    def _drop(self) -> None:
        replica = self._replica
        self._all_have = min((self._has.get(peer, 0) for peer in self._targets()), default=replica.applied)
        self._all_have = min(self._all_have, replica.applied)
        if self._all_have - replica.log.base >= _MOST:
            replica.log.drop(self._all_have)

    def _send(self, peer: int) -> None:
        replica = self._replica
        log, now = replica.log, replica.now
        about: dict[str, Any] = {"term": replica.term, "stamp": now, "applied": replica.applied}
        about |= {"age": now - self.contact, "unheard": now - self._heard.get(peer, self._since)}
        behind = self._sent.get(peer, self._first if peer in replica.state.voters else -1)
        if behind < log.base:
            self._sent[peer] = replica.applied
            state, applied_term = replica.state.as_json(), log.term_of(replica.applied)
            replica.tell(peer, messages.AppliedState(**about, state=state, applied_term=applied_term))
            return
        behind = min(behind, log.last)
        entries, weight = [], 0
        for entry in log.behind(behind, _MOST):
            entries.append(entry)
            weight += len(entry[1].value)
            if weight > _BYTES:
                break
        self._sent[peer] = behind + len(entries)
        place = {"behind": behind, "behind_term": log.term_of(behind), "all_have": log.base}
        replica.tell(peer, messages.Append(**about, **place, entries=entries))

    # -- reads

    def _serve_reads(self) -> None:
        replica = self._replica
        if not self._reads or replica.applied < self._first:
            return
        heard, kept = self.majority_heard, []
        is_fresh = replica.now - heard < 0.8 * replica.limits.stand_after  # no other can have been elected
        for rank, number, at in self._reads:
            if not (is_fresh or heard >= at):
                kept.append((rank, number, at))
            elif rank == replica.rank:
                replica.readable([number], replica.applied)
            else:
                replica.tell(rank, messages.ReadIndex(number, replica.applied))
        self._reads = kept
