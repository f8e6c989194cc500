"""Replicas that only meet their neighbours: gradients that are not finite, and parameters that freeze, thaw or come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from quorate.train.own_replica import go_on_from

if TYPE_CHECKING:
    from quorate.train.worker import OptimizerWorker


def meets_neighbours_only(worker: OptimizerWorker) -> bool:
    """Whether no step of the worker's strategy brings all workers together."""
    return not worker.strategy.has_means and not worker.has_rounds


def leaves_out_own(worker: OptimizerWorker) -> bool:
    """Whether this worker's update of this step is left out, as its own gradient is not finite; the others go on.

    Its neighbours get their exchange all the same. Raises `NotFinite` where that was asked for: on this worker, and
    the others end with it. Where an exchange brings all workers together, it tells; then nothing is looked at here.
    """
    finite = worker.safeguards.finite
    gradients = [p.grad for p in worker.trained if p.grad is not None]
    if not (gradients and finite.looks and meets_neighbours_only(worker)):
        return False
    sums = [x.detach().sum().abs().double().cpu().reshape(1) for x in gradients if x.device.type != "cpu"]
    on_cpu = [x.detach() for x in gradients if x.device.type == "cpu" and x.layout == torch.strided]
    if finite.sees([*on_cpu, *sums]):
        return False
    names = [segment.name for segment in worker.peers.layout.segments]
    finite.note(names, [p.grad for p in worker.trained])
    return worker.safeguards.leaves_out([worker.rank], worker.timer.rounds + 1)


def arrange_anew(worker: OptimizerWorker, *, has_gradients: bool) -> None:
    """Where other parameters are trained than before (on all workers from the same step on), lay them out.

    Called before each backward pass, and before each step (`has_gradients`). Where replicas differ also while all rest,
    it is done before the step, as it writes parameters: all meet, what is under way is taken in, every replica becomes
    the mean (so that what freezes is equal), and the strategy begins anew. Cost: one mean of the parameters.
    """
    is_apart = meets_neighbours_only(worker)
    now = [p.requires_grad for group in worker.optimizer.param_groups for p in group["params"]]
    if is_apart != has_gradients or now == worker.is_trained:
        return
    if is_apart:
        _become_the_mean(worker)
    worker.peers.close()
    before = worker.peers
    worker.arrange()
    go_on_from(before, worker.peers)
    if is_apart:
        worker.state = worker.strategy.start(worker)
        worker.strategy.absorb(worker, ())


def _become_the_mean(worker: OptimizerWorker) -> None:
    everyone = worker.everyone()
    for one in everyone:
        one.rest()
    for one in everyone:
        one.rested()
    with worker.timer.elsewhere():
        worker.parameters = worker.peers.mean(worker.parameters, weight=worker.strategy.mass(worker)).wait()
