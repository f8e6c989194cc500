"""How a server without a worker of its own gets its part at the start of an era: from the first worker that arrives.

Each worker tells such a server that it starts. The server asks the first for the part, or the next if that one has
died, and answers the others when the part has arrived. So nobody pushes before every server has its part.

Cost: at each start, a message each way per worker and such server, and each such part once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat, digest_of
from quorate.replica.optimizer_state import beside_parameters, states_to_plain
from quorate.replica.replica import Replica
from quorate.servers.messages import PartFields, PartsMessage
from quorate.servers.served_tables import full_message
from quorate.servers.shard import Centre, Cut, ReceivedShard, Shard

WANTED = "wanted"
"""The tag of messages that say whether a worker is to send the part."""


class WaitingWorkers:
    """The workers that have announced their start to one server; `tell(rank, is_wanted)` answers a worker."""

    def __init__(self, tell: Callable[[int, bool], None]) -> None:
        self._tell = tell
        self._waiting: list[int] = []
        self._asked: int | None = None

    def announced(self, rank: int, *, is_known: bool) -> None:
        """Worker `rank` starts; `is_known` says whether the server has its part already."""
        if is_known:
            self._tell(rank, False)
            return
        self._waiting.append(rank)
        self._ask()

    def received(self) -> None:
        """The part has arrived."""
        waiting, self._waiting, self._asked = self._waiting, [], None
        for rank in waiting:
            self._tell(rank, False)

    def died(self, dead: Collection[int]) -> None:
        """These ranks have died. If one of them was asked for the part, the next worker is."""
        self._waiting = [rank for rank in self._waiting if rank not in dead]
        if self._asked in dead:
            self._asked = None
            self._ask()

    def _ask(self) -> None:
        if self._asked is None and self._waiting:
            self._asked = self._waiting.pop(0)
            self._tell(self._asked, True)


def parts_of(replica: Replica, cuts: Mapping[int, Cut], centre: Flat | None) -> tuple[list[PartFields], list[Tensor]]:
    """Return the parts `cuts` of a replica, or of a centre, for a server: fields, and copies of the tensors."""
    parts: list[PartFields] = []
    tensors: list[Tensor] = []
    for part, cut in cuts.items():
        states, kept = ([], []) if centre is not None else _states_of(replica, cut)
        numbers = cut.of(replica.parameters if centre is None else centre)
        if cut.tables:
            numbers.append(full_message(cut.tables_of(replica)))
        beside = {} if centre is not None else beside_parameters(replica.optimizer)
        parts.append(PartFields(part, len(numbers), states, len(kept), beside=beside))
        tensors += [x.clone() for x in (*numbers, *kept)]
    return parts, tensors


def _states_of(replica: Replica, cut: Cut) -> tuple[list[Any], Sequence[Tensor]]:
    return states_to_plain(replica.optimizer, cut.parameters_of(replica))


@dataclass(frozen=True)
class Receiver:
    """Builds shards or centres from the `parts_of` a worker."""

    replica: Replica
    """Only its layout, the shapes of its tables and the class of its optimizer are used."""
    cut: Callable[[int], Cut]
    """Returns the cut of a part by its number."""
    check: Callable[[Any], None] = lambda call: None
    """Raises where the call of `distribute` that the worker sends differs from this server's."""

    def parts(self, message: PartsMessage, tensors: Sequence[Tensor]) -> dict[int, Shard | Centre]:
        """Return the parts in a message. Raises `ConfigurationError` if the worker trains other parameters."""
        self.check(message.call)
        if message.layout != digest_of(self.replica.layout):
            raise ConfigurationError(
                "parameters were frozen, thawed or added, and a server without a worker that trains cannot follow; "
                'with servers="all" each has one'
            )
        parts: dict[int, Shard | Centre] = {}
        for part in message.parts:
            cut, end = self.cut(part.part), part.numbers + part.kept
            numbers, kept, tensors = tensors[: part.numbers], tensors[part.numbers : end], tensors[end:]
            if message.centre:
                parts[part.part] = Centre(numbers, cut)
            else:
                contents = ReceivedShard(numbers, part.states, kept, part.beside or {})
                parts[part.part] = Shard(self.replica, cut, contents)
        return parts
