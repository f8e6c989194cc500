"""What one worker reads of servers: whole parameters (or a centre), of one version, out of the answers of all."""

from __future__ import annotations

from quorate.core.contracts import Wire, Work
from quorate.core.servers import Pulled, ServerTerms
from quorate.core.vectors import Flat
from quorate.means.edge_coding import EdgeCoding
from quorate.observe.step_times import StepTimer
from quorate.replica.optimizer_state import put_beside_parameters, states_from_plain
from quorate.replica.options_in_force import put_options
from quorate.replica.replica import Replica
from quorate.servers.served_codes import PullCodes
from quorate.servers.server_answer import Read
from quorate.servers.server_link import ServerLink
from quorate.wire.work import Together


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
