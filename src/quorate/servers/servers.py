"""Parameters on servers, as the worker of one optimizer sees them.

The worker pushes gradients, with or without momentum of its own, and puts the answers of all servers together into
parameters (or a centre) of one version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quorate.core.contracts import Wire, Work
from quorate.core.device_copies import waiting_once
from quorate.core.errors import ConfigurationError, PeerFailed, WireTimeout
from quorate.core.servers import Pulled, Servers, ServerTerms
from quorate.core.vectors import Flat, bare_layout, digest_of, empty_vector, pack
from quorate.means.admission import OpenAdmission
from quorate.means.edge_coding import EdgeCoding
from quorate.observe.step_times import StepTimer, Timed
from quorate.replica.optimizer_state import put_beside_parameters, states_from_plain
from quorate.replica.options_in_force import put_options
from quorate.replica.replica import Replica
from quorate.rounds.entering import KNOCK_SECONDS
from quorate.servers.messages import Attempt, Invitation, PartsMessage, PushMessage, Signal
from quorate.servers.served_codes import PullCodes, PushCodes
from quorate.servers.served_tables import TablesOfWorker
from quorate.servers.server_link import Read, ServerLink
from quorate.servers.server_task import ServerTask
from quorate.servers.setting_out import Receiver, parts_of
from quorate.servers.shard import Centre, Shard, cuts_of
from quorate.wire.attendant import CLOSE
from quorate.wire.work import Together


class ServedParameters:
    """Implements `core.servers.Servers`.

    At a pause every replica is complete: parameters and optimizer state. At the start of the next era each server takes
    its part from the replica of its own worker, or of another worker where it has none that starts. Where a centre lies
    on the servers, replicas remain those of the workers, and every worker has the full `centre` at a pause.

    Cost: a thread per worker. A push sends each server its part once, and a read receives it once; on one host both lie
    in shared memory. A step of the server is the optimizer's on its part. At a pause each worker reads everything,
    optimizer state included.
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
        self._is_newcomer, self._states = wire.is_newcomer, replica.optimizer.state
        self._attempts = 0
        self.admission = OpenAdmission(wire)
        self._used = set[int]()
        """Places of the parameters that have a gradient in the next push."""
        self._asked: list[Work[Pulled]] = []
        """Reads that were asked for and not pulled yet."""
        coding, rank = worker.coding, wire.rank
        self._pushes = None if coding is None else PushCodes(coding, rank, feeds_back=worker.feeds_back)
        self._draws = 0
        receiver = Receiver(replica, lambda part: self._link.cuts[part])
        workers = range(wire.size)
        self._task = ServerTask(self._wire, terms, workers, version, receiver, name=timer.name, coding=coding)
        if worker.tolerates_death:
            self._task.hears_of_deaths()
        self._link = ServerLink(self._wire, terms, self._task)
        self._reads = ServedReads(self._wire, timer, replica, terms, self._link, coding, version)
        self.lay_out()

    # -- core.servers.Servers

    def gradient(self, weight: float = 1.0) -> Flat | None:
        own: dict[str, Any] = self._replica.optimizer.__dict__
        grads, scale = self._replica.all_gradients, own.get("grad_scale")
        is_finite = not float(own["found_inf"]) if "found_inf" in own else True
        if not is_finite or self._worker.leaves_out() or all(grad is None for grad in grads):
            return None
        with self._timer.spending("encode"):
            self._tables.take(weight / float(scale or 1.0))
            grads = grads[: len(self._replica.trained)]
            self._used.update(place for place, grad in enumerate(grads) if grad is not None)
            if scale is not None:
                grads = [None if grad is None else grad / float(scale) for grad in grads]
            gradient = empty_vector(bare_layout(self._replica.layout), self._wire.empty)
            pack(grads if self._momentum is None else self._momentum.of(grads), gradient)
            return gradient if weight == 1.0 else gradient.mul_(weight)

    def push(
        self,
        gradient: Flat | None,
        *,
        count: int = 1,
        weight: float = 1.0,
        reads: bool = True,
        edit: Flat | None = None,
    ) -> None:
        self._begin()
        if self.has_other_states:
            raise ConfigurationError(
                f"the state of {self._replica.plain.__name__} was replaced, as load_state_dict() does, and servers "
                "keep the one that they took from it before. Load it before quorate.distribute(), or on all workers "
                "inside `with world.evaluate():`"
            )
        if self._number == 1:
            self._forget_states()
        options = self._replica.options.to_give()
        self._draws += 1
        self._tables.take_edits()
        options = options if self._momentum is None else self._momentum.without(options)
        used = self._used
        if gradient is not None:
            self._used = set()
        cuts = self._link.cuts
        numbers = None
        if gradient is not None:
            factor = 1 / (count * weight)
            numbers = [self._encoded(part, gradient, factor) for part in range(len(cuts))]
        unused = [[number for number, place in enumerate(cut.places) if place not in used] for cut in cuts]
        row_edits = [self._tables.edited(cut.tables) for cut in cuts]
        self._tables.forget(gradients=numbers is not None)
        self._push(numbers, edit, unused, options, row_edits, count=count, weight=weight, reads=reads)

    def exchange(self) -> Flat:
        self._begin()
        with self._timer.spending("encode"):
            x = empty_vector(bare_layout(self._replica.layout), self._wire.empty)
            pack([p.detach() for p in self._replica.trained], x)
        numbers = [cut.of(x) for cut in self._link.cuts]
        self._push(numbers, None, [[] for _ in numbers], [], count=1, reads=True)
        return x

    def pull(self) -> Work[Pulled]:
        return Timed(self._asked.pop(0), self._timer)

    @property
    def left_out(self) -> Flat | None:
        """The numbers that the codec has left out of gradients so far."""
        layout = bare_layout(self._replica.layout)
        return None if self._pushes is None else self._pushes.left_out(self._link.cuts, lambda: Flat.zeros(layout))

    @left_out.setter
    def left_out(self, value: Flat | None) -> None:
        if self._pushes is not None:
            self._pushes.take_back(value, self._link.cuts)

    @property
    def momenta(self) -> Flat | None:
        """Momenta of this worker's own gradients."""
        return None if self._momentum is None else self._momentum.kept

    @momenta.setter
    def momenta(self, value: Flat | None) -> None:
        if self._momentum is not None:
            self._momentum.kept = value

    # -- for the worker

    def take_row_edits(self) -> bool:
        """Take in what the script has written into sparse tables, and return whether this waits for a push."""
        return self._tables.take_edits(always=True)

    def stepping(self) -> AbstractContextManager[None]:
        """Surround a step that this worker makes on its own copy between two reads."""
        return self._tables.stepping()

    def lay_out(self) -> None:
        """Cut the parameters again, as others are trained than before on all workers; no push is under way."""
        layout, tables = bare_layout(self._replica.layout), self._replica.sparse_tables
        self._link.cuts = cuts_of(layout, len(self._terms.servers), tables)
        self._tables = self._reads.tables = TablesOfWorker(self._replica)
        if self._pushes is not None:
            self._pushes.forget()
        if self._terms.elastic is not None:
            self.centre = self._replica.parameters
        self.set_out()

    def set_out(self) -> None:
        """Begin an era, with equal replicas and no push under way."""
        if self._is_newcomer:  # it begins where the others are when it has joined
            return
        link = self._link
        link.era += 1
        self._number, self._is_away = 0, False
        is_centre = self._terms.elastic is not None
        self._reads.set_out()
        self._tables.set_out()
        self._states = self._replica.optimizer.state
        if self._wire.rank in self._terms.servers:
            self._task.book.set_out(self._wire.clock.now())
            parts = {
                part: Centre(cut.of(self.centre), cut) if is_centre else Shard(self._replica, cut)
                for part, cut in link.cuts_on(self._wire.rank).items()
            }
            self._task.set_out(parts, link.era)
        for server in link.without_worker(self._reads.workers):
            fields, tensors = parts_of(self._replica, link.cuts_on(server), self.centre if is_centre else None)
            message = PartsMessage(link.era, digest_of(self._replica.layout), is_centre, fields, self._worker.call)
            link.send(message, server, *tensors)

    def go_away(self, *, ended: bool) -> None:
        """Announce that this worker pushes no more: until the next era, or never again. All its reads are complete."""
        if self._is_away and not ended:
            return
        if not self._is_away and self.take_row_edits():
            self.push(None, count=0, reads=False)
        was_away, self._is_away = self._is_away, True
        self._link.tell(Signal("ended" if ended else "pauses", self._link.era))
        if ended and was_away:
            self._task.ends()

    def quiesce(self) -> None:
        """Read the final parameters of the era into the replica, or into `centre`. No worker pushes any more."""
        self._link.tell(Signal("read", self._link.era))
        is_centre = self._terms.elastic is not None
        x = self._reads.ask(0).wait().x
        if is_centre:
            self.centre = x
        else:
            self._replica.parameters = x
        if self._terms.replication > 1:
            self._link.tell(Signal("has read", self._link.era))
        self._record_work()

    def invitation(self) -> tuple[dict[str, Any], list[Tensor]]:
        """Return the header and tensors that a newcomer needs."""
        return Invitation(self._link.era).header(), []

    def comes(self, invitation: Mapping[str, Any], leave_if_over: Callable[[], None]) -> None:
        """Join with this worker: servers count it from now on, and it reads their parameters."""
        self._attempts += 1
        self._link.era = Invitation.read(invitation).era
        self._link.tell(Attempt("joins", self._link.era, self._attempts))
        self._reads.set_out()
        answer = self._reads.ask(-self._attempts)
        while True:
            leave_if_over()
            try:
                self._joined_at = answer.wait(KNOCK_SECONDS)
                break
            except WireTimeout:
                continue
            except PeerFailed:
                leave_if_over()
                raise
        self._number = self._reads.clock

    def withdraws(self) -> None:
        """Withdraw the attempt to join, as this worker is not let in."""
        self._link.tell(Attempt("withdraws", self._link.era, self._attempts))

    def follow(self, entry: Mapping[str, Any], tensors: Sequence[Tensor], source: int) -> None:
        """Continue from the parameters (or the centre) that were read, as this worker is let in."""
        self._replica.parameters = self._joined_at.x

    def enters(self) -> None:
        """Make this worker one of those that train."""
        self._is_newcomer, self.momenta, self._states = False, None, self._replica.optimizer.state

    def close(self) -> None:
        """End this worker's server and the separate servers, as all workers have ended."""
        for server in self._terms.servers:
            if server >= self._wire.size:
                self._task.send(CLOSE, server)
        self._task.close()
        self._record_work()

    # -- inside

    def _begin(self) -> None:
        if self._is_away:
            raise ConfigurationError(
                "this worker has called finish() on an optimizer, which ended the pushes of all workers"
            )
        self._timer.arrived()
        self._task.check()
        self._number += 1

    def _record_work(self, *, only_if_due: bool = False) -> None:
        book, now = self._task.book, self._wire.clock.now()
        is_due = not only_if_due or book.is_due(now)
        if self._timer.recorder is not None and self._wire.rank in self._terms.servers and is_due:
            row = book.row(now)
            if row is not None:
                self._timer.recorder.hold(row)

    def _push(
        self,
        numbers: Sequence[Sequence[Tensor]] | None,
        edit: Flat | None,
        unused: Sequence[Sequence[int]],
        options: Sequence[dict[str, Any]],
        row_edits: Sequence[Sequence[Tensor]] = (),
        *,
        count: int,
        reads: bool,
        weight: float = 1.0,
    ) -> None:
        era, version, index, has_gradient = self._link.era, self._reads.version, self._reads.index, numbers is not None
        message = PushMessage(
            *(era, self._draws, reads, count, options, self._number, version, index, has_gradient, edit is not None),
            weight=weight,
            has_row_edit=any(row_edits),
        )
        self._link.push(message, numbers, edit, unused, row_edits)
        if reads:
            self._asked.append(self._reads.ask(self._number))
        self._record_work(only_if_due=True)

    def _encoded(self, part: int, gradient: Flat, factor: float) -> Sequence[Tensor]:
        """Return the tensors of one part in a push; `factor` makes the sum of the rows taken in their mean."""
        cut = self._link.cuts[part]
        with self._timer.spending("encode"):
            pieces = cut.of(gradient) if self._pushes is None else self._pushes.code(part, cut, gradient, self._draws)
            return [*pieces, *self._tables.pushed(cut.tables, factor)]

    @property
    def has_other_states(self) -> bool:
        """Whether the script has loaded another state since the servers took theirs; not for other frameworks."""
        optimizer = self._replica.optimizer  # of other frameworks it makes a new state at each look
        return not getattr(optimizer, "is_foreign", False) and optimizer.state is not self._states

    def _forget_states(self) -> None:
        """Delete the optimizer state, which servers keep from the first push on."""
        for p in self._replica.all_trained:
            self._replica.optimizer.state.pop(p, None)


_: type[Servers] = ServedParameters


_OFF = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0}


class PushedMomentum:
    """The momentum of SGD, as in DANA-Slim (Hakimi et al. 2019, Algorithm 5): v <- m v + g, and m v + g is pushed.

    So workers read the parameters that the momentum of all workers leads to next. Weight decay is in g.

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
        self._momenta = dict[int, Tensor]()

    def of(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients to push for those of the trained parameters."""
        groups = {id(p): group for group in self._replica.optimizer.param_groups for p in group["params"]}
        pushed: list[Tensor | None] = []
        for p, grad in zip(self._replica.trained, gradients, strict=True):
            pushed.append(None if grad is None else self._with_momentum(p, grad.detach(), groups[id(p)]))
        return pushed

    def _with_momentum(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> Tensor:
        decays, beta = float(group["weight_decay"]), float(group["momentum"])
        decayed = grad.add(p.detach(), alpha=decays) if decays else grad
        if not beta:
            return decayed
        momentum = self._momenta.get(id(p))
        momentum = self._momenta[id(p)] = decayed.clone() if momentum is None else momentum.mul_(beta).add_(decayed)
        return decayed.add(momentum, alpha=beta)

    @property
    def kept(self) -> Flat | None:
        """The momenta, as a vector over the parameters; None before the first."""
        if not self._momenta:
            return None
        vector = Flat.zeros(self._replica.layout)
        pack([self._momenta.get(id(p)) for p in self._replica.trained], vector)
        return vector

    @kept.setter
    def kept(self, value: Flat | None) -> None:
        self._momenta.clear()
        if value is not None:
            for p, x in zip(self._replica.trained, value.segments(), strict=False):
                self._momenta[id(p)] = x.to(p.dtype, copy=True)

    @staticmethod
    def without(options: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the options for the servers, with momentum and weight decay off."""
        return [{**group, **_OFF} for group in options]


class ServedReads:
    """Puts the answers of servers to one worker of one optimizer together."""

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
        self.tables: TablesOfWorker
        self.version, self.index = version, 0
        """Number of steps and of decisions that the servers had made at the newest read."""
        self.clock = 0
        """Clock at which a newcomer begins: the number of gradients that it counts as having pushed."""
        self.workers = tuple(range(wire.size))
        """The workers that begin the next era."""

    def set_out(self) -> None:
        """Begin an era, with equal replicas."""
        if self._coding is not None:
            now, coding = self._replica.parameters, self._coding
            self._codes = [PullCodes(coding, cut, [x.clone() for x in cut.of(now)]) for cut in self._link.cuts]

    def ask(self, number: int) -> Work[Pulled]:
        """Return the read after push `number`; 0 is the question at a pause, and newcomers ask negative ones."""

        def assembled(reads: list[Read]) -> Pulled:
            return self._assembled(reads[0], is_last=not number)

        return Together([self._link.read(number)], assembled, self._wire.clock)

    def _assembled(self, read: Read, *, is_last: bool) -> Pulled:
        answer, x = read.answer, empty_vector(bare_layout(self._replica.layout))
        if answer.index < self.index and self._terms.consistent:  # a newer read has replaced it
            return self._newest
        for part, cut in enumerate(self._link.cuts):
            part_read = read.parts[part]
            numbers = part_read.numbers[: len(cut.pieces)]
            if cut.tables:
                self.tables.write(cut.tables, part_read.numbers[-1])
            if self._codes and answer.is_whole:
                self._codes[part].begin_at(self._wire.rank, numbers)
            elif self._codes:
                numbers = self._codes[part].read(self._wire.rank, numbers, answer.version)
            with waiting_once() as move:
                for target, tensor in zip(cut.of(x), numbers, strict=True):
                    move(tensor, target)
            if is_last and self._terms.elastic is None:
                optimizer = self._replica.optimizer
                parameters, kept = cut.parameters_of(self._replica), [x.clone() for x in part_read.kept]
                states_from_plain(optimizer, parameters, part_read.states, kept)
                put_options(optimizer.param_groups, part_read.options)
                if parameters:
                    put_beside_parameters(optimizer, part_read.beside)
        self.version, self.index = answer.version, answer.index
        if answer.clock is not None:
            self.clock = answer.clock
        if answer.workers:
            self.workers = tuple(answer.workers)
        if self._terms.elastic is None:
            self._timer.rounds = self.version
        if answer.staleness is not None:
            self._timer.staleness, self._timer.contributors = answer.staleness, answer.contributors
        self._newest = Pulled(x, self.version)
        return self._newest


@dataclass(frozen=True)
class OnServers:
    """The worker of one optimizer, as parameters on servers use it."""

    leaves_out: Callable[[], bool]
    """Returns whether its gradient of this step is left out."""
    tolerates_death: bool
    """Whether the others go on when a worker dies."""
    call: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of its call of `distribute`, for separate servers."""
    coding: EdgeCoding | None = None
    """Encodes its gradients; None: they are sent in full."""
    feeds_back: bool = False
    """Whether the numbers that the code leaves out are added to the next gradients."""
