"""Parameters on servers, as one worker of one optimizer reaches them; and this worker's own server.

Momentum that a worker keeps of its own gradients before it pushes them to servers, which step without.

What one worker reads of servers: whole parameters (or a centre), of one version, out of the answers of all.

What parameters on servers ask of the worker, and call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from quorate.core.contracts import Wire, Work
from quorate.core.errors import ConfigurationError, PeerFailed, WireTimeout
from quorate.core.servers import Pulled, Servers, ServerTerms
from quorate.core.vectors import Flat, pack
from quorate.means.edge_coding import EdgeCoding
from quorate.means.open_admission import OpenAdmission
from quorate.observe.step_times import StepTimer, Timed
from quorate.replica.optimizer_state import put_beside_parameters, states_from_plain
from quorate.replica.options_in_force import put_options
from quorate.replica.replica import Replica
from quorate.rounds.entering import KNOCK_SECONDS
from quorate.servers.centre import Centre
from quorate.servers.served_codes import PullCodes, PushCodes
from quorate.servers.server_answer import Read
from quorate.servers.server_link import ServerLink
from quorate.servers.server_task import ServerTask
from quorate.servers.setting_out import Receiver, parts_of
from quorate.servers.shard import Shard, cuts_of
from quorate.wire.attendant import CLOSE
from quorate.wire.work import Together


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


_OFF = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0}


class PushedMomentum:
    """That of SGD, as in DANA-Slim (Hakimi et al. 2019, Algorithm 5): v <- m v + g, and m v + g is pushed, so that what
    is read is where the momentum of all leads next. Weight decay is in g.

    Cost: a vector per worker, and three passes per step.
    """

    def __init__(self, replica: Replica) -> None:
        groups = replica.optimizer.param_groups
        if replica.plain is not torch.optim.SGD or any(group["dampening"] or group["maximize"] for group in groups):
            raise ConfigurationError(
                'momentum="worker" is for torch.optim.SGD without dampening and maximize; leave it at "server" for '
                f"{replica.plain.__name__}"
            )
        self._replica = replica
        self._kept = dict[int, Tensor]()

    def of(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """What is pushed for these, which are of the trained parameters."""
        groups = {id(p): group for group in self._replica.optimizer.param_groups for p in group["params"]}
        found: list[Tensor | None] = []
        for p, grad in zip(self._replica.trained, gradients, strict=True):
            found.append(None if grad is None else self._ahead(p, grad.detach(), groups[id(p)]))
        return found

    def _ahead(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> Tensor:
        decays, beta = float(group["weight_decay"]), float(group["momentum"])
        given = grad.add(p.detach(), alpha=decays) if decays else grad
        if not beta:
            return given
        kept = self._kept.get(id(p))
        kept = self._kept[id(p)] = given.clone() if kept is None else kept.mul_(beta).add_(given)
        return given.add(kept, alpha=beta)

    @property
    def kept(self) -> Flat | None:
        """The momenta, as a vector over the parameters; None before the first."""
        if not self._kept:
            return None
        found = Flat.zeros(self._replica.layout)
        pack([self._kept.get(id(p)) for p in self._replica.trained], found)
        return found

    @kept.setter
    def kept(self, value: Flat | None) -> None:
        self._kept.clear()
        if value is not None:
            for p, x in zip(self._replica.trained, value.segments(), strict=False):
                self._kept[id(p)] = x.to(p.dtype, copy=True)

    @staticmethod
    def without(options: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The options of the servers."""
        return [{**group, **_OFF} for group in options]


class ServedReads:
    """Those of one optimizer's worker."""

    def __init__(
        self,
        wire: Wire,
        timer: StepTimer,
        replica: Replica,
        terms: ServerTerms,
        link: ServerLink,
        coding: EdgeCoding | None,
        version: int,
    ) -> None:
        self._wire, self._timer, self._replica, self._terms, self._link = wire, timer, replica, terms, link
        self._coding = coding if terms.pulls == "coded" else None
        self._codes: list[PullCodes] = []
        self._newest: Pulled
        self.version, self.index = version, 0
        """How many steps the servers had made, and decisions, when it read last."""
        self.clock = 0
        """With how many gradients of its own it has joined."""
        self.there = tuple(range(wire.size))
        """The workers that set out (again)."""

    def set_out(self) -> None:
        """All set out (again), with equal replicas."""
        if self._coding is not None:
            now, coding = self._replica.parameters, self._coding
            self._codes = [PullCodes(coding, cut, [x.clone() for x in cut.of(now)]) for cut in self._link.cuts]

    def ask(self, number: int) -> Work[Pulled]:
        """What is answered to the question behind push `number` (0: that of a rest; below, of one that joins)."""

        def opened(found: list[Read]) -> Pulled:
            return self._opened(found[0], is_last=not number)

        return Together([self._link.read(number)], opened, self._wire.clock)

    def _opened(self, found: Read, *, is_last: bool) -> Pulled:
        about, x = found.header, Flat.empty(self._replica.layout.bare)
        if about["index"] < self.index and self._terms.consistent:  # it has read all anew since
            return self._newest
        for part, cut in enumerate(self._link.cuts):
            read = found.parts[part]
            numbers = read.numbers
            if self._codes and about["is whole"]:
                self._codes[part].begin_at(self._wire.rank, numbers)
            elif self._codes:
                numbers = self._codes[part].read(self._wire.rank, numbers, int(about["version"]))
            for there, one in zip(cut.of(x), numbers, strict=True):
                there.copy_(one)
            if is_last and self._terms.elastic is None:
                mine = [self._replica.trained[place] for place in cut.places]
                states_from_plain(self._replica.optimizer, mine, read.states, [one.clone() for one in read.kept])
                put_options(self._replica.optimizer.param_groups, read.options)
                if cut.places:
                    put_beside_parameters(self._replica.optimizer, read.beside)
        self.version, self.index = int(about["version"]), int(about["index"])
        if about["clock"] is not None:
            self.clock = int(about["clock"])
        if about["there"]:
            self.there = tuple(about["there"])
        if self._terms.elastic is None:
            self._timer.rounds = self.version
        if about["staleness"] is not None:
            self._timer.staleness, self._timer.contributors = int(about["staleness"]), int(about["contributors"])
        self._newest = Pulled(x, self.version)
        return self._newest


@dataclass(frozen=True)
class OnServers:
    """Of one worker of one optimizer."""

    leaves_out: Callable[[], bool]
    """Whether its gradient of this step is left out."""
    tolerates_death: bool
    """Whether the others go on when a worker dies."""
    call: Mapping[str, Any] = field(default_factory=dict)
    """What it called `distribute` with, for servers that are no workers."""
    coding: EdgeCoding | None = None
    """How its gradients are written small."""
    feeds_back: bool = False
    """Whether what that leaves out is added to the next ones."""
