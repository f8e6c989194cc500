"""Parameters on servers, as one worker of one optimizer reaches them; and this worker's own server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from quorate.core.contracts import Wire, Work
from quorate.core.errors import ConfigurationError, PeerFailed, WireTimeout
from quorate.core.servers import Pulled, Servers, ServerTerms
from quorate.core.vectors import Flat, pack
from quorate.means.open_admission import OpenAdmission
from quorate.observe.step_times import StepTimer, Timed
from quorate.replica.replica import Replica
from quorate.rounds.entering import KNOCK_SECONDS
from quorate.servers.centre import Centre
from quorate.servers.on_servers import OnServers
from quorate.servers.pushed_momentum import PushedMomentum
from quorate.servers.served_codes import PushCodes
from quorate.servers.served_reads import ServedReads
from quorate.servers.server_link import ServerLink
from quorate.servers.server_task import ServerTask
from quorate.servers.setting_out import Receiver, parts_of
from quorate.servers.shard import Shard, cuts_of
from quorate.wire.attendant import CLOSE


class ServedParameters:
    """Implements `core.servers.Servers`. While all rest, every replica is whole: parameters, and what the optimizer
    keeps; as all set out again, each server takes its part from the replica of its own worker, or of another where it
    has none that sets out. Where a centre lies on the servers, replicas stay the workers' own, and every worker has the
    whole `centre` while all rest.

    Cost: a thread per worker. A push sends each server its part once, a read gets it once; on one host both lie in
    shared memory, and a step of the server is the optimizer's on its part. While all rest each worker reads everything,
    what the optimizer keeps as well.
    """

    centre: Flat

    def __init__(
        self,
        wire: Wire,
        timer: StepTimer,
        replica: Replica,
        terms: ServerTerms,
        version: int,
        worker: OnServers,
    ) -> None:
        if terms.elastic is None and any("lr" not in group for group in replica.optimizer.param_groups):
            raise ConfigurationError(
                f"servers scale the learning rate of each step, and {replica.plain.__name__} has no option lr"
            )
        self._wire, self._timer, self._replica, self._terms = wire.channel("servers"), timer, replica, terms
        self._worker = worker
        self._momentum = PushedMomentum(replica) if terms.momentum == "worker" else None
        self._number = 0
        self._is_away = False
        self._is_outside = wire.is_newcomer
        self._attempts = 0
        self.admission = OpenAdmission(wire)
        """Who joins."""
        self._used = set[int]()
        """Parameters that have a gradient in what is pushed next, by their places."""
        self._asked: list[Work[Pulled]] = []
        """What it has asked for, and not pulled."""
        coding, rank = worker.coding, wire.rank
        self._pushes = None if coding is None else PushCodes(coding, rank, feeds_back=worker.feeds_back)
        self._draws = 0
        """Pushes so far, in all."""
        receiver = Receiver(replica, lambda part: self._link.cuts[part])
        of = self._wire, terms, range(wire.size), version, receiver
        self._task = ServerTask(*of, name=timer.name, coding=coding)
        if worker.tolerates_death:
            self._task.hears_of_deaths()
        self._link = ServerLink(self._wire, terms, self._task)
        self._reads = ServedReads(self._wire, timer, replica, terms, self._link, coding, version)
        self.lay_out()

    # -- core.servers.Servers

    def gradient(self) -> Flat | None:
        own: dict[str, Any] = self._replica.optimizer.__dict__
        grads, scale = self._replica.gradients, own.get("grad_scale")
        is_finite = not float(own["found_inf"]) if "found_inf" in own else True
        if not is_finite or self._worker.leaves_out() or all(grad is None for grad in grads):
            return None
        with self._timer.spending("encode"):
            self._used.update(place for place, grad in enumerate(grads) if grad is not None)
            if scale is not None:
                grads = [None if grad is None else grad / float(scale) for grad in grads]
            found = Flat.empty(self._replica.layout.bare, self._wire.empty)
            pack(grads if self._momentum is None else self._momentum.of(grads), found)
            return found

    def push(self, gradient: Flat | None, *, count: int = 1, reads: bool = True, edit: Flat | None = None) -> None:
        self._begin()
        if self._number == 1:
            self._forget_states()
        options = self._replica.options.to_give()
        self._draws += 1
        header = {"options": options if self._momentum is None else self._momentum.without(options)}
        used = self._used
        if gradient is not None:
            self._used = set()
        cuts = self._link.cuts
        numbers = None if gradient is None else [self._written(part, gradient) for part in range(len(cuts))]
        unused = [[place for place, one in enumerate(cut.places) if one not in used] for cut in cuts]
        self._push(numbers, edit, count=count, reads=reads, unused=unused, **header)

    def exchange(self) -> Flat:
        self._begin()
        with self._timer.spending("encode"):
            x = Flat.empty(self._replica.layout.bare, self._wire.empty)
            pack([p.detach() for p in self._replica.trained], x)
        numbers = [cut.of(x) for cut in self._link.cuts]
        self._push(numbers, None, count=1, reads=True, unused=[[] for _ in numbers], options=[])
        return x

    def pull(self) -> Work[Pulled]:
        return Timed(self._asked.pop(0), self._timer)

    @property
    def left_out(self) -> Flat | None:
        """What its codec has left out of its gradients."""
        layout = self._replica.layout.bare
        return None if self._pushes is None else self._pushes.left_out(self._link.cuts, lambda: Flat.zeros(layout))

    @left_out.setter
    def left_out(self, value: Flat | None) -> None:
        if self._pushes is not None:
            self._pushes.take_back(value, self._link.cuts)

    @property
    def momenta(self) -> Flat | None:
        """Those of its own gradients."""
        return None if self._momentum is None else self._momentum.kept

    @momenta.setter
    def momenta(self, value: Flat | None) -> None:
        if self._momentum is not None:
            self._momentum.kept = value

    # -- for the worker

    def lay_out(self) -> None:
        """Other parameters are trained than before, on all workers; nothing is under way."""
        self._link.cuts = cuts_of(self._replica.layout.bare, len(self._terms.servers))
        if self._pushes is not None:
            self._pushes.forget()
        if self._terms.elastic is not None:
            self.centre = self._replica.parameters
        self.set_out()

    def set_out(self) -> None:
        """All set out (again), with equal replicas, and nothing under way."""
        if self._is_outside:  # it goes on from where the others are, when it has joined
            return
        link = self._link
        link.stretch += 1
        self._number, self._is_away = 0, False
        is_centre = self._terms.elastic is not None
        self._reads.set_out()
        if self._wire.rank in self._terms.servers:
            self._task.book.set_out(self._wire.clock.now())
            mine = link.cuts_on(self._wire.rank)
            self._task.set_out(
                {p: Centre(c.of(self.centre), c) if is_centre else Shard(self._replica, c) for p, c in mine.items()},
                link.stretch,
            )
        for server in link.alone(self._reads.there):
            header, tensors = parts_of(self._replica, link.cuts_on(server), self.centre if is_centre else None)
            link.send("part", server, *tensors, **header, call=self._worker.call)

    def go_away(self, *, ended: bool) -> None:
        """This worker pushes no more, until all set out again or for good. What it has asked to read it has read."""
        if self._is_away and not ended:
            return
        how: Literal["rests", "ended"] = "ended" if ended else "rests"
        has_rested, self._is_away = self._is_away, True
        self._link.tell(how)
        if ended and has_rested:
            self._task.ends()

    def quiesce(self) -> None:
        """All are away: the replica, or `centre`, becomes what all have come to."""
        self._link.tell("read")
        is_centre = self._terms.elastic is not None
        x = self._reads.ask(0).wait().x
        if is_centre:
            self.centre = x
        else:
            self._replica.parameters = x
        if self._terms.replication > 1:
            self._link.tell("has read")
        self._tell()

    def invitation(self) -> tuple[dict[str, Any], list[Tensor]]:
        """What one that joins has to know."""
        return {"stretch": self._link.stretch}, []

    def comes(self, told: Mapping[str, Any], leave_if_over: Callable[[], None]) -> None:
        """This worker joins: servers count on it from now on, and it reads what they have."""
        self._attempts += 1
        self._link.stretch = int(told["stretch"])
        self._link.tell("joins", attempt=self._attempts)
        self._reads.set_out()
        asked = self._reads.ask(-self._attempts)
        while True:
            leave_if_over()
            try:
                self._joined_at = asked.wait(KNOCK_SECONDS)
                break
            except WireTimeout:
                continue
            except PeerFailed:
                leave_if_over()
                raise
        self._number = self._reads.clock

    def withdraws(self) -> None:
        """It is not let in."""
        self._link.tell("withdraws", attempt=self._attempts)

    def follow(self, told: Mapping[str, Any], tensors: Sequence[Tensor], source: int) -> None:
        """It is let in, and goes on from the parameters (or the centre) that it has read."""
        self._replica.parameters = self._joined_at.x

    def enters(self) -> None:
        """It is one of those that train."""
        self._is_outside, self.momenta = False, None

    def close(self) -> None:
        """All have ended."""
        for server in self._terms.servers:
            if server >= self._wire.size:
                self._task.send(CLOSE, server)
        self._task.close()
        self._tell()

    # -- inside

    def _begin(self) -> None:
        """A push."""
        if self._is_away:
            raise ConfigurationError(
                "this worker has called finish() on an optimizer, which ended the pushes of all workers"
            )
        self._timer.arrived()
        self._task.check()
        self._number += 1

    def _tell(self, *, only_if_due: bool = False) -> None:
        """Record what this worker's server has done."""
        book, now = self._task.book, self._wire.clock.now()
        is_due = not only_if_due or book.is_due(now)
        if self._timer.recorder is not None and self._wire.rank in self._terms.servers and is_due:
            row = book.row(now)
            if row is not None:
                self._timer.recorder.hold(row)

    def _push(
        self, numbers: Sequence[Sequence[Tensor]] | None, edit: Flat | None, *, reads: bool, **header: Any
    ) -> None:
        header |= {"number": self._number, "version": self._reads.version, "has read": self._reads.index}
        self._link.push(numbers, edit, draw=self._draws, reads=reads, **header)
        if reads:
            self._asked.append(self._reads.ask(self._number))
        self._tell(only_if_due=True)

    def _written(self, part: int, gradient: Flat) -> Sequence[Tensor]:
        cut = self._link.cuts[part]
        if self._pushes is None:
            return cut.of(gradient)
        with self._timer.spending("encode"):
            return self._pushes.code(part, cut, gradient, self._draws)

    def _forget_states(self) -> None:
        """The servers keep them."""
        for p in self._replica.trained:
            self._replica.optimizer.state.pop(p, None)


_: type[Servers] = ServedParameters
