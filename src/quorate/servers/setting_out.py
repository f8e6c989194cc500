"""How a server comes by its part where no worker of its own sets out: from the first worker that does.

Each worker says to such a server that it sets out. The first is asked for the part; the others are answered when it is
there, or asked in turn where the one before has died. So nobody pushes before every server has its part.

Cost: whenever all set out, a message each way per worker and such server, and each such part once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quorate.core.contracts import Message
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat
from quorate.replica.optimizer_state import beside_parameters, states_to_plain
from quorate.replica.replica import Replica
from quorate.servers.centre import Centre
from quorate.servers.shard import Cut, Given, Shard

WANTED = "wanted"
"""The tag under which workers are told whether they are to send their part."""


class Coming:
    """The workers that have said to one server that they set out; `tell(rank, is_wanted)` answers one."""

    def __init__(self, tell: Callable[[int, bool], None]) -> None:
        self._tell = tell
        self._waiting: list[int] = []
        self._asked: int | None = None

    def came(self, rank: int, *, is_known: bool) -> None:
        """`rank` sets out; `is_known`: the server has the part for it."""
        if is_known:
            self._tell(rank, False)
            return
        self._waiting.append(rank)
        self._ask()

    def gave(self) -> None:
        """The part has come."""
        waiting, self._waiting, self._asked = self._waiting, [], None
        for rank in waiting:
            self._tell(rank, False)

    def died(self, dead: Collection[int]) -> None:
        """These ranks send nothing any more."""
        self._waiting = [rank for rank in self._waiting if rank not in dead]
        if self._asked in dead:
            self._asked = None
            self._ask()

    def _ask(self) -> None:
        if self._asked is None and self._waiting:
            self._asked = self._waiting.pop(0)
            self._tell(self._asked, True)


def parts_of(replica: Replica, cuts: Mapping[int, Cut], centre: Flat | None) -> tuple[dict[str, Any], list[Tensor]]:
    """What a server needs of a whole replica, or of a centre, for some parts, as a header and tensors: copies."""
    parts: list[dict[str, Any]] = []
    found: list[Tensor] = []
    for part, cut in cuts.items():
        states, kept = ([], []) if centre is not None else _states_of(replica, cut)
        numbers = cut.of(replica.parameters if centre is None else centre)
        parts.append({"part": part, "numbers": len(numbers), "states": states, "kept": len(kept)})
        parts[-1]["beside"] = {} if centre is not None else beside_parameters(replica.optimizer)
        found += [x.clone() for x in (*numbers, *kept)]
    return {"layout": replica.layout.digest, "centre": centre is not None, "parts": parts}, found


def _states_of(replica: Replica, cut: Cut) -> tuple[list[Any], Sequence[Tensor]]:
    return states_to_plain(replica.optimizer, [replica.trained[place] for place in cut.places])


@dataclass(frozen=True)
class Receiver:
    """What a server makes of the `parts_of` a worker."""

    replica: Replica
    """For its layout, and for the class of the optimizer."""
    cut: Callable[[int], Cut]
    """A part."""
    check: Callable[[Any], None] = lambda told: None
    """Raises where the worker called `distribute` otherwise, which is what it has told."""

    def parts(self, message: Message) -> dict[int, Shard | Centre]:
        """Raises `ConfigurationError` where the worker trains other parameters than the server knows."""
        header = message.header
        self.check(header["call"])
        if header["layout"] != self.replica.layout.digest:
            raise ConfigurationError(
                "parameters were frozen, thawed or added, and a server without a worker that trains cannot follow; "
                'with servers="all" each has one'
            )
        found: dict[int, Shard | Centre] = {}
        tensors = list(message.tensors)
        for one in header["parts"]:
            cut, end = self.cut(one["part"]), one["numbers"] + one["kept"]
            numbers, kept, tensors = tensors[: one["numbers"]], tensors[one["numbers"] : end], tensors[end:]
            if header["centre"]:
                found[one["part"]] = Centre(numbers, cut)
            else:
                found[one["part"]] = Shard(self.replica, cut, Given(numbers, one["states"], kept, one["beside"]))
        return found
