"""The newest state of a script's models at which all replicas were equal, for `state_dict()` where they differ.

A script that saves on one worker alone tells no other worker, so nobody can be asked for a mean. Asking a peer would
give another replica, and strategies of gossip have no agreed numbers but those of a pause. So each worker keeps a copy.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor
from torch.nn import Module, Parameter
from torch.utils.weak import WeakTensorKeyDictionary

from quorate.core.telling import tell
from quorate.observe.digests import digest_of
from quorate.train.loop import Loop, loops_of
from quorate.wire.current import Place

_PACKAGE = str(Path(__file__).parents[2])
_IN_EACH_STEP = 10
"""Steps, one after the other, in which a line asks for the state, after which it is no save."""
_CALLED = "state_dict() was called while replicas differ"
_OWN = (
    f"{_CALLED}, and is this worker's own replica, as workers have not agreed on one yet; call it after model.eval() "
    "on all workers, or after dist.destroy_process_group(), for the agreed model"
)
_AGREED = f"{_CALLED}, and is the model on which all workers agreed last, after step "
_LACKS = (
    "state_dict() was called after the last step, and lacks what was pending then, with which all have ended; call it "
    "after model.eval() on all workers, or after dist.destroy_process_group()"
)
_EACH_STEP = (
    "state_dict() is called by one line in each step, as for a moving average, and is this worker's own replica there"
)
_AVERAGES_OWN = (
    "AveragedModel.update_parameters() was called while replicas differ, and averages this worker's own replica; under "
    "all-reduce it averages the model of all"
)


class AgreedState:
    """The copies of one worker. Cost: the memory of one replica, and a copy of it at each place that is kept.

    Nothing is kept before a pause, or before a state is asked for where replicas differ.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._is_wanted = False
        self._copies = WeakTensorKeyDictionary()
        self._step = 0
        """The step after which all had these numbers."""
        self._met: dict[str, int] = {}
        """By optimizer: the newest step after which replicas were equal."""
        self._vectors: dict[str, int] = {}
        """By optimizer: the means of this worker before the current step."""
        self._calls: dict[int, tuple[int, int]] = {}
        """By line of the script: the step of the newest call, and how many steps before it had one as well."""
        self._has_said: set[str] = set()
        self._shown: dict[str, tuple[int, int]] = {}
        """By optimizer with rounds: the step and the digest of the newest state that was not in an evaluation."""

    def keep(self, modules: Iterable[Module]) -> None:
        """Keep the parameters and buffers of all models, as replicas are equal in a pause."""
        self._is_wanted = True
        differing = [loop for loop in loops_of(self._place) if _may_differ(loop)]
        if differing:
            self._step = differing[0].worker.step
            self._copy(x for module in modules for x in (*module.parameters(), *module.buffers()))
        for loop in differing:
            if loop.strategy.replicas == "meet":
                self._met[loop.worker.name] = loop.worker.step

    @property
    def watches_steps(self) -> bool:
        """Whether a mean in a step may make replicas equal that differ."""
        return any(map(_meets_in_means, loops_of(self._place)))

    def step_begins(self) -> None:
        """Note the means of this worker so far."""
        for loop in loops_of(self._place):
            self._vectors[loop.worker.name] = loop.worker.means.vectors

    def step_ended(self, modules: Iterable[Module]) -> None:
        """Keep the parameters of optimizers whose replicas have met, and this worker's buffers.

        Nothing is kept of replicas that meet after each step, whose state is agreed on whenever it is asked for.
        """
        for loop in loops_of(self._place):
            name, vectors, step = loop.worker.name, loop.worker.means.vectors, loop.worker.step
            if vectors == self._vectors.get(name, vectors) or not _meets_in_means(loop):
                continue
            self._vectors[name] = vectors
            before, self._met[name] = self._met.get(name, -1), step
            if self._is_wanted and before != step - 1:
                self._step = step
                self._copy(loop.replica.all_trained)
                self._copy(x for module in modules for x in module.buffers())

    def _copy(self, tensors: Iterable[Tensor]) -> None:
        for x in tensors:
            copy = self._copies.get(x)
            if copy is None or copy.shape != x.shape or copy.dtype != x.dtype:
                self._copies[x] = x.detach().clone()
            else:
                copy.copy_(x.detach())

    def forget(self) -> None:
        """Keep nothing, as a state was loaded."""
        self._copies.clear()

    def show(self, module: Module, state: dict[str, Any], prefix: str) -> None:
        """Replace the numbers of `module` in `state`, if they differ from those of others."""
        for loop in loops_of(self._place):
            if loop.worker.has_rounds and loop.strategy.replicas == "equal" and not loop.worker.finished:
                self._shown[loop.worker.name] = loop.worker.step, digest_of(loop.replica.all_trained)
        differing = [loop for loop in loops_of(self._place) if _may_differ(loop) and not self._is_equal(loop)]
        names = (name for name, _ in module.named_parameters(remove_duplicate=False))
        if not differing or any(isinstance(state.get(f"{prefix}{name}"), Parameter) for name in names):
            return  # equal, or with keep_vars=True, for the parameters themselves
        self._is_wanted = True
        step = differing[0].worker.step
        if self._is_in_each_step(site_of_script(), step):
            self._say(_EACH_STEP, _EACH_STEP)
        elif all(p in self._copies for loop in differing for p in loop.replica.all_trained):
            named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
            for name, x in named:
                if f"{prefix}{name}" in state and x in self._copies:
                    state[f"{prefix}{name}"] = self._copies[x]
            self._say(_AGREED, f"{_AGREED}{self._step} of {step}")
        else:
            self._say(_OWN, _OWN)

    def shown_to_all(self) -> None:
        """Note that the newest state which the script has asked for is of an evaluation of all, and lacks nothing."""
        self._shown.clear()

    def averages(self) -> None:
        """Say that a moving average is of this worker's own replica, where replicas differ."""
        if any(_may_differ(loop) and not self._is_equal(loop) for loop in loops_of(self._place)):
            self._say(_AVERAGES_OWN, _AVERAGES_OWN)

    def ended(self) -> None:
        """Say what the last state lacks that the script has asked for, now that the training has ended."""
        for loop in loops_of(self._place):
            step, digest = self._shown.pop(loop.worker.name, (-1, 0))
            if step == loop.worker.step and digest_of(loop.replica.all_trained) != digest:
                self._say(_LACKS, _LACKS)

    def _is_equal(self, loop: Loop) -> bool:
        """Whether all replicas are equal now: after a mean of all, or as each step uses the gradients of all."""
        worker, servers = loop.worker, loop.strategy if loop.worker.is_served else None
        is_synchronous = getattr(servers, "mode", None) == "sync" and getattr(servers, "backup", 0) == 0
        steps_together = worker.agrees_in_backward and not worker.means.ready.is_alone
        return self._met.get(worker.name) == worker.step or is_synchronous or steps_together

    def _is_in_each_step(self, site: int, step: int) -> bool:
        newest, before = self._calls.get(site, (-1, 0))
        count = before if newest == step else before + 1 if newest == step - 1 else 0
        self._calls[site] = step, count
        return count >= _IN_EACH_STEP

    def _say(self, kind: str, sentence: str) -> None:
        if kind not in self._has_said:
            self._has_said.add(kind)
            tell(f"quorate: rank {self._place.wire.rank}: {sentence}\n")


def _may_differ(loop: Loop) -> bool:
    return loop.worker.wire.size > 1 and loop.strategy.replicas in ("meet", "differ") and not loop.worker.finished


def _meets_in_means(loop: Loop) -> bool:
    """Whether a mean that a step begins makes all replicas equal in that step."""
    strategy = loop.strategy
    is_in_parts = getattr(strategy, "overlap", 0) or getattr(strategy, "fragments", 1) > 1
    return _may_differ(loop) and strategy.replicas == "meet" and not loop.worker.has_rounds and not is_in_parts


def site_of_script() -> int:
    """Return a number for the line of the script that is being executed, with those that have called it."""
    lines = list[str]()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module, file = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
        if module == "__main__" and file.startswith(_PACKAGE):  # it runs the script, on some workers in a fork
            break
        if module.partition(".")[0] not in ("torch", "quorate"):
            lines.append(f"{file}:{frame.f_lineno}")
        frame = frame.f_back
    return zlib.crc32("\n".join(lines).encode())
