"""Replicas that differ between steps: gradients that are not finite, and parameters that freeze, thaw or come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module, Parameter

from quorate.agreement.equal_replicas import copy_tensors
from quorate.core.resize import laws_of
from quorate.membership.survivors import agree_on_buffers, survivors
from quorate.replica.replica import go_on_from
from quorate.train.joining import compare_anew

if TYPE_CHECKING:
    from quorate.train.worker import OptimizerWorker
    from quorate.wire.current import Place


def is_apart(worker: OptimizerWorker) -> bool:
    """Whether replicas may differ now, or rounds be under way: where not, all make one step together."""
    steps_alone = worker.peers.ready.is_alone or not worker.agrees_in_backward
    return worker.has_rounds or (worker.differs and steps_alone)


def leaves_out_own(worker: OptimizerWorker) -> bool:
    """Whether this worker's update of this step is left out, as its own gradient is not finite; the others go on.

    Its neighbours get their exchange all the same. Raises `NotFinite` where that was asked for: on this worker, and
    the others end with it. Where an exchange brings all workers together, it tells; then nothing is looked at here.
    """
    finite = worker.safeguards.finite
    gradients = [p.grad for p in worker.trained if p.grad is not None]
    if not (gradients and finite.looks and worker.strategy.is_gossip):
        return False
    sums = [x.detach().sum().abs().double().cpu().reshape(1) for x in gradients if x.device.type != "cpu"]
    on_cpu = [x.detach() for x in gradients if x.device.type == "cpu" and x.layout == torch.strided]
    if finite.sees([*on_cpu, *sums]):
        return False
    names = [segment.name for segment in worker.peers.layout.segments]
    finite.note(names, [p.grad for p in worker.trained])
    return worker.safeguards.leaves_out([worker.rank], worker.timer.rounds + 1)


def trained_in_order(every: Sequence[Parameter], model: Module) -> list[tuple[str, Parameter]]:
    """Those of an optimizer's parameters that are trained, by name, in the model's order.

    Those that the model does not know come last, in the optimizer's order.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    order = {key: place for place, key in enumerate(names)}
    chosen = sorted((p for p in every if p.requires_grad), key=lambda p: order.get(id(p), len(order)))
    return [(names.get(id(p), f"parameter {place}"), p) for place, p in enumerate(chosen)]


def arrange_anew(worker: OptimizerWorker, place: Place, *, in_backward: bool) -> None:
    """Where other parameters are trained than before (on all workers from the same step on), lay them out.

    Called as a backward pass begins (`in_backward`), before each step, and before all rest. Where replicas may differ,
    it is not done in a backward pass, as it writes parameters: all meet, what is under way is taken in, so that what
    freezes is equal, and the strategy goes on from there with what it keeps of numbers, but for its vectors (momenta
    and the like), which begin anew. Cost: a rest of all workers.
    """
    now = [p.requires_grad for group in worker.optimizer.param_groups for p in group["params"]]
    apart = is_apart(worker)
    if apart == in_backward or now == worker.is_trained:
        return
    if in_backward and not any(now):
        return  # a backward pass that is another optimizer's affair: these thaw again before their own step
    if apart:
        _meet(worker)
    worker.peers.close()
    before, known = worker.peers, {id(p) for p in worker.every}
    worker.arrange()
    go_on_from(before, worker.peers)
    if worker.has_rounds:
        worker.rounds.lay_out(worker.peers.layout)
    compare_anew(worker.peers.layout, worker.wire, place)
    if apart:
        for p in (p for p in worker.every if not p.requires_grad):
            p.grad = None  # of before: while this worker rests it would be stepped on with every round
    new = [p.detach() for p in worker.every if id(p) not in known]
    if apart and new:  # one that joined has drawn its own
        agree_on_buffers(new, "rank0", worker.wire, place)
    if worker.state is not None:
        _begin_anew(worker)


def group_came(worker: OptimizerWorker, parameters: Sequence[Parameter], place: Place) -> None:
    """All workers have added a group: they get rank 0's numbers."""
    if is_apart(worker):
        arrange_anew(worker, place, in_backward=False)
    elif survivors(place) is None:
        copy_tensors(parameters, worker.wire)
    else:
        agree_on_buffers([p.detach() for p in parameters], "rank0", worker.wire, place)


def _begin_anew(worker: OptimizerWorker) -> None:
    """What the strategy makes in `start`, with the numbers that it keeps equal on all workers as they were."""
    old, worker.state = worker.state, worker.strategy.start(worker)
    for name, law in (laws_of(old) if is_dataclass(old) else {}).items():
        if law == "same" and _is_plain(value := getattr(old, name)):
            setattr(worker.state, name, value)
    worker.strategy.restored(worker, None)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is not None and isinstance(value, bool | int | float | str)


@contextmanager
def _without_gradients(workers: Sequence[OptimizerWorker]) -> Iterator[None]:
    """Of parameters that have thawed, or come: until all have met, optimizers are not to step on them."""
    held = []
    for worker in workers:
        trained = {id(p) for p in worker.trained}
        held += [p for group in worker.optimizer.param_groups for p in group["params"] if id(p) not in trained]
    gradients = [p.grad for p in held]
    for p in held:
        p.grad = None
    yield
    for p, gradient in zip(held, gradients, strict=True):
        p.grad = gradient


def _meet(worker: OptimizerWorker) -> None:
    """All rest, and every replica becomes the mean."""
    everyone = worker.everyone()
    with _without_gradients(everyone):
        for one in everyone:
            one.come_to_rest()
    for one in everyone:
        one.rested()
    if worker.strategy.replicas == "differ":
        x, weight = worker.strategy.consensus(worker)
        with worker.timer.elsewhere():
            worker.parameters = worker.peers.mean(x, weight=weight).wait()
