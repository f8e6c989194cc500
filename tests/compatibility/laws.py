"""The verdict on a combination: it works where the laws hold, is refused in a sentence before any update, or fails."""

from __future__ import annotations

import contextlib
import io
import math
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import quorate
from quorate.core.errors import ConfigurationError, PeerFailed
from quorate.strategies import strategies
from quorate.wire.virtual.world import VirtualWorld
from tests.compatibility.choices import BASE, Choice, choices
from tests.compatibility.training import PACE, STEPS, BegunError, End, Training
from tests.support.every_strategy import OF_THE_SAME_BATCHES
from tests.support.hosts import Host, hosts
from tests.support.joined import joined
from tests.support.processes import outcomes_real_world

State = Literal["works", "refused", "fails", "untested"]
OF_REPLICA = 2
"""The workers of a replica in pieces."""
OF_THREE = ("neighbours", "asks")
"""Whom the strategies meet for which two workers are a special case."""
LIMIT = 60.0
"""Seconds after which processes have hung."""
ROUNDING = 1e-4
"""The scalar products of LBFGS, and products of pieces of layers, are rounded by where vectors lie in memory."""
NEAR = ("relay", "d-psgd")
"""The strategies among neighbours that begin again from a checkpoint without the sums that were under way."""
BY_CLOCK = ("group-averaging",)
"""The strategies that all meet in, and in which workers take older models of those that are late."""
SELECTING = ("krum", "multi-krum")
"""The rules that take the vectors of some workers. Batches are assigned as workers ask for them: in a training that
goes by the clock these may be of other batches after a checkpoint."""


@dataclass(frozen=True)
class Verdict:
    """The state of a cell, the sentence of its refusal or the law that failed, and the strategy it was tried under."""

    state: State
    words: str = ""
    under: str = BASE
    when: str = "distribute"
    """The place of a refusal: "distribute", or "first step" where nothing earlier can know of the choice."""


@dataclass(frozen=True)
class Ended:
    """The ends of the workers that did not crash, or the error that was raised first."""

    ends: Sequence[End]
    error: BaseException | None = None
    raised: Sequence[End] = ()
    """The ends of the workers that raised an error of their own: not because another worker had ended."""


def training_of(chosen: Sequence[Choice], under: str = BASE) -> Training:
    """Return the training of these choices, under a strategy if there is none among them."""
    parts: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    if all(choice.axis != "strategy" for choice in chosen):
        chosen = (next(choice for choice in choices() if choice.name == under), *chosen)
    for choice in chosen:
        parts |= choice.parts
        settings |= choice.settings
    if parts.get("loop") == "frozen layers" and "freeze" in settings:
        settings["freeze"] = 4  # layers change during the warm-up
    if parts.get("ends") and hasattr(strategies.get(parts["strategy"]), "servers"):
        settings["servers"] = 1  # the worker that ends is none
    return Training(settings=settings, **parts)


def size_of(training: Training) -> int:
    """Return the number of workers: two, or three where two are a special case."""
    if training.mesh:
        return 4 if training.strategy != BASE or training.settings or training.ends else 2
    is_special = training.strategy in OF_THE_SAME_BATCHES or strategies.get(training.strategy).meets in OF_THREE
    return 3 if is_special or training.ends or training.settings.get("reduce") else 2


def verdict(training: Training) -> Verdict:
    """Play a training as a whole and from its checkpoint in the virtual world, and return the verdict."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="quorate-compatibility-", dir=memory) as folder, _quiet():
        whole = played(training, Path(folder), loads=False)
        if whole.error is not None:
            return of_error(whole, training)
        broken = next(broken_laws(training, whole.ends), "")
        if not broken and resumes(training):
            again = played(training, Path(folder), loads=True)
            if again.error is not None:
                return Verdict("fails", f"resume: {_words(again.error)}", training.strategy)
            broken = next(broken_laws_of_resume(training, whole.ends, again.ends), "")
    return Verdict("fails" if broken else "works", broken, training.strategy)


def refusal(training: Training) -> Verdict | None:
    """Return the verdict of a training that is refused before its first step; None where it begins."""
    with _quiet():
        whole = played(replace(training, only_begins=True), None, loads=False)
    return None if isinstance(whole.error, BegunError) else of_error(whole, training)


def resumes(training: Training) -> bool:
    """Return whether a training goes on from a checkpoint: scripts of DDP write files, and nobody joins at a step."""
    return not training.is_of_ddp and training.ends != "joins"


def played(training: Training, root: Path | None, *, loads: bool) -> Ended:
    """Return how the workers of a training end."""
    size = size_of(training)
    if not training.is_virtual:
        return played_in_processes(training, size, root, loads=loads)
    world = VirtualWorld(size, joiners=training.ends == "joins", seed=1, timeout=60.0)

    def live(wire: Any) -> End:
        if wire.rank >= size:
            wire.clock.sleep(PACE * (0.5 + (0 if loads else STEPS)))
        return joined(partial(training.run, root=root, loads=loads and wire.rank < size))(wire)

    outcomes = world.outcomes(live)
    return ended([o.result for o in outcomes if o.result], [o.error for o in outcomes if o.error and not o.is_crashed])


def played_in_processes(training: Training, size: int, root: Path | None, *, loads: bool) -> Ended:
    """Return how the processes of a training end."""
    on = [two_hosts()[rank * 2 // size] for rank in range(size)] if training.world == "hosts" else None
    task = partial(_run_in_process, training, root, loads)
    outcomes = outcomes_real_world(size, task, LIMIT, on=on)
    alive = [o for o in outcomes if o.exit_code != -signal.SIGKILL]
    if training.mesh and training.ends == "dies":  # the others of its replica end with it
        alive = [o for o in alive if not (o.rank >= size - OF_REPLICA and isinstance(o.error, PeerFailed))]
    hung = [AssertionError(f"rank {o.rank} hung or ended with status {o.exit_code}") for o in alive if o.exit_code]
    return ended([o.result for o in alive if o.result], [o.error for o in alive if o.error] or hung)


@cache
def two_hosts() -> list[Host]:
    """Return two hosts, which live as long as this process: making them takes as long as a training."""
    return _OF_PROCESS.enter_context(hosts(2))


_OF_PROCESS = contextlib.ExitStack()


def _run_in_process(training: Training, root: Path | None, loads: bool, world: quorate.World) -> End:
    return training.run(world, root, loads=loads)


def ended(ends: Sequence[End], errors: Sequence[BaseException]) -> Ended:
    """Return the end of a training from those of its workers, and from the errors of others."""
    own = [error for error in errors if not isinstance(error, PeerFailed)]
    raised = [error.end for error in own if hasattr(error, "end")]
    return Ended(ends, (own or list(errors) or [None])[0], raised)


def of_error(whole: Ended, training: Training) -> Verdict:
    """Return the verdict on a training that ended with an error."""
    steps = max((end.steps for end in whole.raised), default=0)
    phases = {end.phase for end in whole.raised}
    if isinstance(whole.error, ConfigurationError) and whole.raised and not steps:
        return Verdict("refused", str(whole.error), training.strategy, "/".join(sorted(phases)))
    when = f"after {steps} steps" if steps else "in the first step"
    return Verdict("fails", f"{when}: {_words(whole.error)}", training.strategy)


def _words(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def broken_laws(training: Training, ends: Sequence[End]) -> Iterator[str]:
    """Yield the laws of a training in one piece that do not hold."""
    paused = [end for end in ends if end.paused]
    if not paused:
        yield "pause: no worker came to it"
        return
    apart = OF_REPLICA if training.mesh else 1  # the same piece of the next replica
    for name, states in (("pause", [end.paused for end in paused]), ("end", [end.last for end in ends])):
        for state, other in zip(states, states[apart:], strict=False):
            if not alike(state, other):
                yield f"{name}: the replicas differ by {furthest(state, other):.2g}"
                break
    if not all(bool(torch.isfinite(x.float()).all()) for end in ends for x in end.last):
        yield "end: a number is not finite"
    if any(alike(end.start, end.last) for end in ends if end.start and end.steps):
        yield "end: nothing was learnt"
    for end in ends:
        if not math.isclose(end.produced, end.accounted, rel_tol=1e-5, abs_tol=1e-6):
            yield f"conservation: of a weight of {end.produced:g} rounds account for {end.accounted:g}"


def broken_laws_of_resume(training: Training, whole: Sequence[End], again: Sequence[End]) -> Iterator[str]:
    """Yield the laws of a training from a checkpoint that do not hold."""
    if any(end.began != 1 for end in again):
        yield f"resume: it began in the epochs {[end.began for end in again]}"
        return
    is_exact = has_exact_resume(training)
    rounding = ROUNDING if training.optimizer == "LBFGS" or training.mesh else 0.0
    for before, after in zip(whole, again, strict=False):
        if not (before.paused and after.paused):
            continue
        far = furthest(before.paused, after.paused)
        if far > (0.0 if is_exact else 1e-5):
            yield f"resume: the checkpoint differs by {far:.2g}"
        far = furthest(before.last, after.last)
        if not is_exact and (training.ends or training.settings.get("reduce") in SELECTING):  # at another moment
            continue
        went = max(furthest(before.start, end.last) for end in (before, after))  # rounds drop more on a busy machine
        if far > (rounding if is_exact else went):
            yield f"resume: the end differs by {far:.2g}"
    yield from (f"resumed {law}" for law in broken_laws(training, again))


def has_exact_resume(training: Training) -> bool:
    """Return whether a training from a checkpoint has the bits of one in one piece: nothing goes by the clock."""
    meets = strategies.get(training.strategy).meets
    if training.is_virtual:
        return meets == "all" or (meets == "neighbours" and training.strategy not in NEAR)
    return meets == "all" and training.strategy not in BY_CLOCK


def alike(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return whether tensors have the same bits."""
    return len(some) == len(others) and all(map(torch.equal, some, others))


def furthest(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """Return the largest difference; infinite where shapes differ."""
    if [x.shape for x in some] != [x.shape for x in others]:
        return math.inf
    return max((float((x.float() - y.float()).abs().max()) for x, y in zip(some, others, strict=True)), default=0.0)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stderr(io.StringIO()):
        yield
