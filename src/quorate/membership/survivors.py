"""Going on when workers die: what the training as a whole does about it, beside the rounds themselves.

It holds from the moment when every worker has been through `distribute`; whoever dies before that is everyone's end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.agreement.equal_replicas import (
    agree_on,
    can_be_averaged,
    optimizer_from_plain,
    optimizer_to_plain,
    widened,
    write_back,
)
from quorate.agreement.equal_replicas import level as level_all
from quorate.core.contracts import Message, Wire
from quorate.core.records import Kind
from quorate.core.strategy import Strategy
from quorate.wire.current import Place
from quorate.wire.exchange import sum_in_order
from quorate.wire.failure import forbid_outliving, let_outlive, let_outlive_errors, note_training, read_gone
from quorate.wire.survivors import Outlived, Survivors

if TYPE_CHECKING:
    from quorate.train.worker import OptimizerWorker

_TAG = "gone"
"""Nobody reads what comes under it: this worker sees `Wire.gone`."""


def survivors(place: Place) -> Survivors | None:
    """Those with whom this worker goes on; None where a death is everyone's end."""
    return place.context(Outlived).survivors


def outlive(wire: Wire, place: Place, name: str, strategy: Strategy) -> None:
    """Optimizer `name` is distributed on this worker: at a death, or an error in a script, do what `strategy` says.

    Workers go on only where the strategies of all optimizers do.
    """
    wanted, errors = strategy.on_death == "continue", strategy.on_error == "continue"
    note_training(wire.board, wire.rank, is_under_way=True)
    let_outlive_errors(wire.board, wanted=wanted and errors)
    own = place.context(Outlived)
    if wanted and not own.is_refused:
        own.survivors = own.survivors or Survivors(place.wire.channel("survivors"))
        wire.outlives(_TAG)
        if not wire.is_newcomer:
            let_outlive(wire.board, wire.size, name=name)
    elif wire.size > 1:
        own.survivors, own.is_refused = None, True
        forbid_outliving(wire.board)


def agree_on_buffers(
    buffers: Sequence[Tensor], kind: Literal["none", "mean", "rank0"], wire: Wire, place: Place
) -> None:
    """As `train.replicas.agree_on`, among those that are left; rank 0's are those of the first of them."""
    there = survivors(place)
    if there is None:
        agree_on(buffers, kind, wire)
        return
    if kind == "none" or not buffers:
        return
    dtypes = sorted({x.dtype for x in buffers}, key=str)
    with torch.no_grad():
        for dtype in dtypes:
            some = [x.detach() for x in buffers if x.dtype == dtype]
            whole = torch.cat([x.reshape(-1) for x in some])
            found = there.all_gather(whole).wait()
            is_mean = kind == "mean" and can_be_averaged(dtype)
            write_back(some, sum_in_order(list(map(widened, found))) / len(found) if is_mean else found[0])


def level(
    tensors: Sequence[Tensor], optimizer: Optimizer, wire: Wire, updates: int, place: Place, *, always: bool = False
) -> int:
    """As `train.replicas.level`, among those that are left."""
    there = survivors(place)
    if there is None:
        return level_all(tensors, optimizer, wire, updates, always=always)
    while True:
        made = there.gather(Message(header={"updates": updates}), "updates").wait()
        counts = {rank: int(one.header["updates"]) for rank, one in made.items()}
        most = max(counts.values())
        if not always and len(set(counts.values())) == 1:
            return most
        ahead = next(rank for rank, count in counts.items() if count == most)
        mine = Message()
        if ahead == wire.rank:
            about, state = optimizer_to_plain(optimizer)
            mine = Message((*(x.detach().clone() for x in tensors), *(x.clone() for x in state)), about)
        found = there.gather(mine, "replica").wait().get(ahead)
        if found is None:
            continue  # it has died meanwhile
        if ahead != wire.rank:
            with torch.no_grad():
                for x, numbers in zip(tensors, found.tensors, strict=False):
                    x.copy_(numbers)
            kept = [x.clone() for x in found.tensors[len(tensors) :]]  # others may be given the same memory
            optimizer_from_plain(optimizer, dict(found.header), kept)
        return most


class Losses:
    """Tells the records, on the first worker that is left, who has died since it was last asked, and who has joined.

    The others hold these rows, and write them where those before them die: whoever reads takes the earliest of each.
    """

    def __init__(self, worker: OptimizerWorker) -> None:
        self._worker = worker
        self._told: set[int] = set()
        self._joined: set[int] = set()
        self._held: list[tuple[Kind, dict[str, Any]]] = []

    @property
    def is_first(self) -> bool:
        """Whether this worker is the first that is left."""
        wire = self._worker.wire
        return wire.rank == 0 or (bool(wire.gone) and wire.rank == wire.living[0])

    def look(self) -> None:
        """Called now and then, between two rounds."""
        worker = self._worker
        if len(worker.wire.gone) == len(self._told):
            return
        timer = worker.timer
        for one in read_gone(worker.wire.board):
            if one.rank in self._told or one.rank not in worker.wire.gone:
                continue
            self._told.add(one.rank)
            row = {
                "time": timer.clock.now(),
                "rank": one.rank,
                "host": one.host,
                "reason": one.reason,
                "round": worker.rounds.version if worker.has_rounds else timer.rounds,
                "generation": len(self._told),
                "left": len(worker.wire.living) + len(worker.wire.gone) - len(self._told),
            }
            self._held.append(("gone", row))
        self._write()

    def joined(self, ranks: Collection[int], number: int) -> None:
        """Called with every round that this worker applies, and all that have joined by then: they step from it on."""
        timer, wire = self._worker.timer, self._worker.wire
        new = sorted(set(ranks) - self._joined)
        if not new:
            return
        live = len({*range(wire.size), *ranks} - wire.gone)
        self._held += [
            ("joined", {"time": timer.clock.now(), "rank": rank, "round": number, "live": live}) for rank in new
        ]
        self._joined.update(new)
        self._write()

    def _write(self) -> None:
        recorder = self._worker.timer.recorder
        if not self.is_first:
            return
        held, self._held = self._held, []
        for kind, row in held:
            if recorder is not None:
                recorder.write(kind, **row)
