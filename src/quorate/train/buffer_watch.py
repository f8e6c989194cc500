"""Whether buffers that forward passes read part between workers, where each worker keeps its own between pauses."""

from __future__ import annotations

import json

from quorate.core.telling import tell
from quorate.observe.digests import digest_of
from quorate.train.worker import StrategyWorker


class BufferWatch:
    """Tells once, in one line, that a buffer is not the same on all workers after equally many steps of each.

    Batch norm's running statistics are left out, as no forward pass of training reads them. Nobody waits: each worker
    writes digests on the board, and who writes last compares them. Cost, of models with such buffers: in steps 1, 2, 4,
    8 and so on, and every 1,024 from there, a sample of each one's numbers, and one message to the board.
    """

    def __init__(self, worker: StrategyWorker) -> None:
        self._worker = worker
        self._looks = not worker.strategy.copies_buffers and worker.seat is None

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
