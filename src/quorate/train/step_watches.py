"""Observers of the steps of one optimizer: none changes what is learnt; one says what is left out.

`BufferWatch` looks whether buffers that forward passes read differ between workers. `Edits` finds what a script writes
into parameters between two steps, where that would let replicas differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from quorate.checkpoint.participants import trained
from quorate.checkpoint.saving import saving
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.core.strategy import copies_buffers, steps_apart
from quorate.core.telling import tell
from quorate.data.resuming import loaders
from quorate.observe.digests import digest_of
from quorate.observe.ends import ends_of
from quorate.observe.stopping import stop_of
from quorate.train.worker import StrategyWorker
from quorate.wire.current import Place


class StepWatches:
    """Checkpoints, records, comparisons of replicas, numbers that are not finite, and the search for edits between
    steps, of one worker.
    """

    def __init__(self, worker: StrategyWorker, place: Place) -> None:
        self._worker, self._saving, self._edits, self._stop = worker, saving(place), Edits(worker), stop_of(place)
        self._place, self._ends, self._trained = place, ends_of(place), trained(place)
        self._buffers = BufferWatch(worker)
        self._stop.is_agreed |= worker.seat is not None
        if worker.seat is not None:
            worker.seat.traffic.pauses.append(lambda: worker.means.ready.pausing())

    def step_begins(self) -> None:
        """`optimizer.step()` was called. Raises as `Edits.step_begins` and `Trained.check_entered`."""
        if self._trained.missing:
            self._trained.check_entered()
        self._saving.boundary(is_forward_done=True)
        self._edits.step_begins()

    def leaves_out(self, bad: list[int]) -> bool:
        """Whether this step's update is left out, as `bad` have brought gradients that are not finite."""
        worker = self._worker
        return worker.finite.leaves_out(bad, worker.updates + 1, is_scaled=worker.replica.is_scaled)

    def leaves_out_own(self) -> bool:
        """Whether this worker's update of this step is left out, as its own gradient is not finite; the others go on.

        Its neighbours get their exchange all the same. Raises `NotFinite` where that was asked for: on this worker, and
        the others end with it. Where an exchange brings all workers together, it tells; then nothing is looked at here.
        """
        worker, finite, replica = self._worker, self._worker.finite, self._worker.replica
        numbers = [None if x is None else _numbers_in(x) for x in replica.gradients]
        gradients = [x for x in numbers if x is not None]
        if not (gradients and finite.looks and steps_apart(worker.strategy)):
            return False
        sums = [x.sum().abs().double().cpu().reshape(1) for x in gradients if x.device.type != "cpu"]
        on_cpu = [x for x in gradients if x.device.type == "cpu" and x.layout == torch.strided]
        is_bad = not finite.sees([*on_cpu, *sums])
        if not worker.means.headers.most_of_pieces(float(is_bad)):
            return False
        if is_bad:
            finite.note(replica.names, numbers)
        return self.leaves_out([worker.rank])

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Backward passes inside only add to `.grad`; of pieces, see `Traffic.reduces`."""
        worker = self._worker
        reduces = None if worker.seat is None else worker.seat.traffic.reduces
        with worker.means.ready.pausing():
            if reduces is not None:
                reduces(False)
            try:
                yield
            finally:
                if reduces is not None:
                    reduces(True)

    def training_pauses(self) -> None:
        """Raises `Mismatch` where workers of one replica are in the middle of a step."""
        self._meet("a pause of training")

    def training_ends(self) -> None:
        """Raises as `training_pauses`."""
        self._meet("the end of training")
        self._saving.boundary()
        had_more = any(loader.is_under_way for loader in loaders(self._place).values())
        self._ends.ended(self._place, self._worker.name, self._worker.step, had_more=had_more)

    def _meet(self, call: str) -> None:
        self._trained.check_entered()
        if self._worker.replica.host is not None:
            self._worker.replica.host.catch_up()
        if self._worker.seat is not None:
            self._worker.seat.traffic.forget()
            self._worker.seat.traffic.meet(call)

    def step_ended(self) -> None:
        """The strategy has made its step. Raises as `Digests.look`."""
        worker = self._worker
        if worker.seat is not None:
            worker.seat.traffic.forget()
        if worker.seat is not None and steps_apart(worker.strategy):
            self._stop.learn(worker.means.headers.most_of_pieces(self._stop.mark))
        if not (worker.has_rounds or worker.differs):
            worker.digests.look(worker.updates)
        self._edits.step_ended()
        self._ends.stepped(self._place, worker.name, worker.step)
        self._buffers.step_ended()
        worker.step_weight.step_ended()
        worker.timer.ended(is_scaled=worker.replica.is_scaled)
        self._saving.stepped()
        worker.losses.look()


def _numbers_in(gradient: Tensor) -> Tensor:
    """Those of a gradient; of a sparse one its values."""
    x = gradient.detach()
    return x._values() if x.layout == torch.sparse_coo else x


class BufferWatch:
    """Tells once, in one line, that a buffer is not the same on all workers after equally many steps of each.

    Batch norm's running statistics are left out, as no forward pass of training reads them. Nobody waits: each worker
    writes digests on the board, and who writes last compares them. Cost, of models with such buffers: in steps 1, 2, 4,
    8 and so on, and every 1,024 from there, a sample of each one's numbers, and one message to the board.
    """

    def __init__(self, worker: StrategyWorker) -> None:
        self._worker = worker
        self._looks = not copies_buffers(worker.strategy) and worker.seat is None

    def step_ended(self) -> None:
        """This worker has made a step."""
        step, worker = self._worker.step, self._worker
        if not self._looks or (step & (step - 1) and step % 1024):
            return
        if worker.wire.is_newcomer or worker.wire.joined:  # whose steps are fewer
            self._looks = False
            return
        worker.buffers.find()
        own = {slot.name: f"{digest_of([x]):x}" for slot in worker.buffers.slots if (x := slot.tensor) is not None}
        if not own:
            return
        wire = worker.wire
        board, key = wire.board, f"buffers/{wire.name}/{step}"
        board.set(f"{key}/{wire.rank}", json.dumps(own).encode())
        if board.add(f"{key}/written") < len(wire.alive):
            return
        told = [board.get(f"{key}/{rank}") for rank in wire.alive]
        board.delete(f"{key}/")
        every = [json.loads(one) for one in told if one is not None]
        name = next((name for name in own if any(one.get(name) != own[name] for one in every)), None)
        if name is not None:
            self._looks = False
            if board.add("buffers/told") == 1:
                tell(f"quorate: {self._sentence(name)}\n")

    def _sentence(self, name: str) -> str:
        return (
            f"the buffer {name} is not the same on all workers after {self._worker.step} steps of each, as under "
            f"{self._worker.label} each has its own between pauses; if forward passes read it, let all workers write "
            'the same into it, or use all-reduce with buffers="rank0-each-step", its default'
        )


_TENSORS, _NUMBERS = 32, 64
"""How many tensors are looked at, and how many numbers of each."""


class Edits:
    """Notices that the parameters of a worker that agrees in rounds were written to between two of its steps.

    Workers come to their steps at different rounds, so what each writes there would make replicas differ. Not looked
    at where every round waits for all, after a pause of all workers, in strategies whose replicas differ anyhow, and
    with `compare_every=0`.
    Cost: a sample of at most 2,048 numbers, copied and compared in every step.
    """

    def __init__(self, worker: StrategyWorker) -> None:
        self._worker = worker
        self._seen: tuple[int, Sequence[Tensor], Tensor] | None = None

    def step_ended(self) -> None:
        """Keep a sample of the parameters as this step has left them."""
        if self._looks():
            trained = self._worker.replica.trained
            self._seen = self._worker.rounds.version, trained, _sample(trained)

    def step_begins(self) -> None:
        """Raises `ConfigurationError` where the parameters are not what the step before has left."""
        seen, self._seen = self._seen, None
        worker = self._worker
        if seen is None or seen[0] != worker.rounds.version or seen[1] is not worker.replica.trained:
            return
        if not torch.equal(seen[2].nan_to_num(), _sample(worker.replica.trained).nan_to_num()):
            raise ConfigurationError(
                "the script has written into the parameters between two steps, and under this strategy workers come to "
                "their steps at different rounds, so that their replicas would part; write into them in a hook of "
                "optimizer.register_step_post_hook(), which runs after every round on all workers, or on all workers "
                "inside `with world.evaluate():`"
            )

    def _looks(self) -> bool:
        worker = self._worker
        if not worker.has_rounds or worker.differs or not worker.digests.compares:
            return False
        return not worker.rounds.waits_for_all


def _sample(parameters: Sequence[Tensor]) -> Tensor:
    chosen = parameters[:: -(-len(parameters) // _TENSORS)] if parameters else ()
    found = []
    for p in map(local, chosen):
        if p.is_contiguous() and p.numel():
            numbers = p.detach().view(-1)[:: -(-p.numel() // _NUMBERS)]
            found.append(torch.view_as_real(numbers).reshape(-1) if numbers.is_complex() else numbers)
    device = found[0].device if found else torch.device("cpu")
    return torch.cat([x.to(device, torch.float64) for x in found]) if found else torch.empty(0)
