"""The messages of one all-reduce, as the virtual world's trace has them: who sends how much to whom, and when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from quorate.core.contracts import Wire
from quorate.core.vectors import Layout, Part
from quorate.means import reducers
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld

if TYPE_CHECKING:
    from quorate.means.algorithms.by_messages import ByMessages

ALGORITHMS = ("ring", "recursive-doubling", "halving-doubling", "tree")
_SENT = re.compile(r"(?P<time>\S+) (?P<rank>\d+) send (?P<bytes>\d+) bytes to (?P<peer>\d+) as (?P<tag>\d+/\d+) on ")
_GOT = re.compile(r"(?P<time>\S+) (?P<rank>\d+) got (?P<tag>\d+/\d+) from (?P<peer>\d+) on ")


@dataclass(frozen=True)
class Sent:
    """One message; its last byte is there at `arrives`."""

    source: int
    to: int
    step: int
    nbytes: int
    leaves: float
    arrives: float


@dataclass(frozen=True)
class Played:
    """One all-reduce among virtual workers."""

    name: str
    size: int
    nbytes: int
    network: Network
    messages: Sequence[Sent]
    seconds: float

    @property
    def algorithm(self) -> type[ByMessages]:
        """Its steps and its cost."""
        return cast("type[ByMessages]", reducers.get(self.name))

    @property
    def formula(self) -> float:
        """The seconds that its cost says."""
        return self.algorithm.cost(self.size).seconds(self.nbytes, self.network.latency, self.network.bandwidth)

    @property
    def sent(self) -> int:
        """Bytes out of the worker that sends most."""
        return max((sum(m.nbytes for m in self.messages if m.source == rank) for rank in range(self.size)), default=0)

    @property
    def chain(self) -> int:
        """How many messages waited for each other, at most: each one for all that its sender had got before."""
        longest: dict[int, int] = dict.fromkeys(range(self.size), 0)
        for step in sorted({message.step for message in self.messages}):
            now = [message for message in self.messages if message.step == step]
            before = dict(longest)
            for message in now:
                longest[message.to] = max(longest[message.to], before[message.source] + 1)
        return max(longest.values())


def played(name: str, size: int, numel: int, network: Network) -> Played:
    """The reducer `name` sums `numel` numbers of float32 among `size` workers that begin together."""
    layout = Layout((), (Part(numel, torch.float32, torch.device("cpu")),), 0)

    def task(wire: Wire) -> float:
        reducers.get(name)(layout, wire).again(0, torch.ones(numel)).wait()
        return wire.clock.now()

    world = VirtualWorld(size, network=network, is_traced=True)
    seconds = max(world.run(task))
    return Played(name, size, 4 * numel, network, tuple(_messages(world.trace)), seconds)


def _messages(trace: Sequence[str]) -> list[Sent]:
    leaves = {
        (int(found["rank"]), int(found["peer"]), found["tag"]): (float(found["time"]), int(found["bytes"]))
        for found in map(_SENT.match, trace)
        if found is not None
    }
    messages = []
    for found in map(_GOT.match, trace):
        if found is not None:
            source, to, tag = int(found["peer"]), int(found["rank"]), found["tag"]
            time, nbytes = leaves[source, to, tag]
            messages.append(Sent(source, to, int(tag.partition("/")[2]), nbytes, time, float(found["time"])))
    return messages
