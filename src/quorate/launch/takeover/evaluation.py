"""`model.eval()` and `model.train()` of a script that was written for DDP, as pauses of training.

Where replicas differ between steps, or may be at different rounds, an `eval()` that all workers call is what
`world.evaluate()` is, until `train()` is called. Scripts also evaluate on one worker alone, which nobody tells us. So
a worker that has called `eval()` asks the others, whose attendants answer while they train, where they are:

- all have called it at the same place of the script: together;
- another one has begun a later backward pass without it, has ended, or begins none for `PATIENCE` seconds: alone;
- all that have not called it wait in a collective which this worker has not entered yet (`if rank == 0: evaluate()`,
  then `dist.barrier()`): alone.

The first to know writes which it is to the board, under the place and the number of its visits, so that all do the
same. An evaluation alone is of this worker's own replica; evaluations at that place are alone from then on.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.nn import Module

from quorate.core.errors import ConfigurationError, PeerFailed, RequestFailed, WireTimeout
from quorate.core.telling import tell
from quorate.launch.takeover.agreed import AgreedState, site_of_script
from quorate.observe.step_observer import Observers, Phase, StepObserver
from quorate.train.loop import loops_of
from quorate.train.pauses import backward_is_local, waiting
from quorate.wire.current import Place
from quorate.wire.failure import ended

if TYPE_CHECKING:
    from quorate.launch.worker.world import World

PATIENCE = 30.0
"""Seconds without a backward pass of another worker after which an evaluation does not wait for it."""
_LOOK_EVERY = 0.05
_WAITED_LOOKS = 10
"""Looks, one after the other, that find all others in collectives, after which these are waits for this worker."""
_ANSWER_WITHIN = 2.0
_WHERE = "quorate/evaluation"
_TOGETHER, _ALONE = b"together", b"alone"


@dataclass(frozen=True)
class Whereabouts:
    """How far a worker is in its script."""

    progress: tuple[int, int]
    """How many blocks of `join()` it has left, and how many backward passes it has begun since then.

    Those in `no_sync()` are left out. All workers of a script for DDP make the others, and each in the same order.
    """
    visits: int
    """How often it has called `eval()` at the place that is asked for."""
    collectives: int = 0
    """How many collectives of the script it has entered, those of groups of some workers left out."""
    is_waiting: bool = False
    """Whether it is in one now."""
    has_ended: bool = False


class Evaluations(StepObserver):
    """The evaluations of one worker."""

    phase = Phase.CHECK

    def __init__(
        self,
        place: Place,
        world: World,
        *,
        needs_buffers: Callable[[], bool],
        agreed: AgreedState,
        modules: Callable[[], Sequence[Module]],
    ) -> None:
        """`needs_buffers` returns whether buffers that only a pause makes equal are read in evaluations.

        `agreed` keeps the state of the `modules` in wrappers where all are equal.
        """
        self._place, self._world, self._needs_buffers = place, world, needs_buffers
        self._agreed, self._modules = agreed, modules
        self.is_together = False
        """Whether all workers evaluate now."""
        self._progress = 0, 0
        """See `Whereabouts`."""
        self.are_open = False
        """Whether a model may be in evaluation."""
        self._visits = Counter[int]()
        self._alone: set[int] = set()
        self._evaluated: weakref.WeakSet[Module] = weakref.WeakSet()
        """The models that are in evaluation."""
        self._inside: AbstractContextManager[object] | None = None
        self._has_begun = self._has_said = False
        self._thread = threading.get_ident()
        if world.size > 1:  # answers until the training has ended, as calls before leaving are made in reverse order
            world.serve(_WHERE, self._where)

    def begin(self) -> None:
        """Watch steps, and leave an evaluation before the end of the training; optimizers were distributed."""
        if not self._has_begun:
            self._has_begun = True
            self._place.context(Observers).add(self)
            self._place.leaving.append(self.leave)
        self.due = 0 if self.are_open else self._due_in_training

    def enter(self, module: Module) -> None:
        """`module.eval()` was called, which was in training before."""
        if all(loop.is_finished for loop in loops_of(self._place)):
            return
        self._evaluated.add(module)
        self.are_open = True
        self.due = 0
        if self._inside is None and self._pauses:
            is_together = self._meet()
            inside: AbstractContextManager[object] = self._world.evaluate() if is_together else self._apart()
            inside.__enter__()
            self._inside, self.is_together = inside, is_together

    def left_by(self, module: Module) -> None:
        """`module.train()` was called, or its forward pass in training."""
        if module in self._evaluated:
            self._evaluated.discard(module)
            if not self._evaluated:
                self.leave()

    def leave(self) -> None:
        """Continue the training."""
        inside, self._inside = self._inside, None
        self._evaluated.clear()
        self.are_open = False
        self.due = self._due_in_training
        if self.is_together:
            self.is_together = False
            self._agreed.keep(self._modules())
        if inside is not None:
            inside.__exit__(None, None, None)

    def all_have_joined(self) -> None:
        """All workers have left a block of `join()`, in which they made unequal numbers of backward passes."""
        self._progress = self._progress[0] + 1, 0

    def backward_begins(self) -> None:
        if not all(loop.worker.means.ready.paused for loop in loops_of(self._place)):
            self._progress = self._progress[0], self._progress[1] + 1

    def step_ended(self) -> None:
        self._agreed.step_ended(self._modules())

    def step_begins(self) -> None:
        """Raise `ConfigurationError` where an optimizer steps in an evaluation.

        An evaluation is over where the models are in training again, also if nobody has called `train()`.
        """
        self._agreed.step_begins()
        if self._inside is not None and all(module.training for module in self._evaluated):
            self.leave()
        if self._inside is not None:
            raise ConfigurationError(
                "optimizer.step() was called between model.eval() and model.train(), where gradients are each worker's "
                "own; call model.train() before the forward pass, and let single layers be in evaluation: "
                "model.module.dropout.eval()"
            )

    @property
    def _due_in_training(self) -> int:
        """The first step to watch where no model is in evaluation: none, if replicas are equal after each one."""
        return 0 if self._agreed.watches_steps else sys.maxsize

    @property
    def _pauses(self) -> bool:
        """Whether an evaluation differs from the training's state: see `Strategy.replicas`."""
        loops = [loop for loop in loops_of(self._place) if not loop.is_finished]
        return bool(loops) and (
            self._needs_buffers() or any(loop.worker.has_rounds or loop.worker.differs for loop in loops)
        )

    # -- together, or alone

    def _where(self, site: int) -> dict[str, Any]:
        return {
            "progress": self._progress,
            "visits": self._visits[site],
            "collectives": collectives(),
            "is_waiting": is_in_collective(sys._current_frames().get(self._thread)),
            "has_ended": any(loop.worker.has_ended for loop in loops_of(self._place)),
        }

    def _meet(self) -> bool:
        """Return whether all workers evaluate together here; waits until that is known."""
        site = site_of_script()
        self._visits[site] += 1
        others = [rank for rank in self._world.wire.alive if rank != self._world.rank]
        if not others:
            return True
        together = site not in self._alone and self._decision(site, others) == _TOGETHER
        if not together:
            self._alone.add(site)
            self._say()
        return together

    def _decision(self, site: int, others: list[int]) -> bytes:
        board, clock = self._world.wire.board, self._world.wire.clock
        key = f"evaluation/{site:08x}/{self._visits[site]}"
        newest: dict[int, tuple[int, int]] = {}
        since, waited_looks = clock.now(), 0
        with waiting(self._place) as serve:
            while (decision := board.get(key)) is None:
                before, seen = dict(newest), {rank: self._ask(rank, site) for rank in others}
                newest = {rank: where.progress for rank, where in seen.items()}
                missing = [where for where in seen.values() if where.visits < self._visits[site]]
                waited_looks = waited_looks + 1 if all(map(self._waits_for_this_worker, missing)) else 0
                if not missing:
                    board.swap(key, None, _TOGETHER)
                elif waited_looks > _WAITED_LOOKS or any(map(self._does_not_come, missing)):
                    board.swap(key, None, _ALONE)
                elif newest != before:
                    since = clock.now()
                elif clock.now() - since > PATIENCE:
                    board.swap(key, None, _ALONE)
                serve()
                with suppress(WireTimeout):
                    board.wait([key], _LOOK_EVERY)
        return decision

    def _does_not_come(self, where: Whereabouts) -> bool:
        return where.has_ended or where.progress > self._progress

    def _waits_for_this_worker(self, where: Whereabouts) -> bool:
        return where.is_waiting and where.collectives > collectives()

    def _ask(self, rank: int, site: int) -> Whereabouts:
        try:
            answer = self._world.ask(rank, _WHERE, site, timeout=_ANSWER_WITHIN).wait()
        except (PeerFailed, RequestFailed):
            return Whereabouts((0, 0), 0, has_ended=True)
        except WireTimeout:
            is_over = self._world.wire.board.get(ended(rank)) is not None
            return Whereabouts((0, 0), 0, has_ended=is_over)
        blocks, passes = answer.pop("progress")
        return Whereabouts((blocks, passes), **answer)

    def _apart(self) -> AbstractContextManager[object]:
        """Return a context in which no round waits for this worker.

        Nothing in it waits for others, as these may be in a collective of the script which this worker is to enter.
        """
        inside = ExitStack()
        inside.enter_context(waiting(self._place))
        inside.enter_context(backward_is_local(self._place))
        return inside

    def _say(self) -> None:
        if not self._has_said:
            self._has_said = True
            tell(
                f"quorate: rank {self._world.rank}: model.eval() was called here and not by all workers, so this "
                "worker evaluates its own replica; let all workers call it for the agreed model\n"
            )


def is_in_collective(frame: FrameType | None) -> bool:
    """Return whether the code of `frame` is in a call of `torch.distributed` that the script has made."""
    while frame is not None:
        package, _, rest = str(frame.f_globals.get("__name__", "")).partition(".")
        if package == "torch" and rest.startswith("distributed."):
            return True
        if package == "quorate" and rest != "launch.worker.torch_waits":
            return False
        frame = frame.f_back
    return False


def collectives() -> int:
    """Return how many collectives of torch's default group this worker has entered."""
    group: Any = dist.group.WORLD if dist.is_initialized() else None
    return 0 if group is None else int(group._get_sequence_number_for_group())
