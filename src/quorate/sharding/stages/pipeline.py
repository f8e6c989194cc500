"""Running a model in stages: micro-batches go forward and backward through them, in the order of a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import Module, Parameter
from torch.utils import _pytree as pytree

from quorate.core.contracts import Wire
from quorate.core.device_copies import widest
from quorate.core.errors import ConfigurationError, Mismatch
from quorate.sharding.collectives import Pieces
from quorate.sharding.stages.batches import Merged, merged, micro_batches
from quorate.sharding.stages.between import Between, Kept, Run
from quorate.sharding.stages.ending import Ending
from quorate.sharding.stages.orders import BACKWARD, FORWARD, INPUT, Action, Layout, there_and_back
from quorate.sharding.stages.route import Shapes
from quorate.sharding.stages.units import Unit, gated
from quorate.sharding.traffic import Traffic
from quorate.sharding.undivided import undivided


@dataclass
class Losses:
    """The losses of the micro-batches of a step, in the last stage."""

    loss: Callable[[Any, int], Tensor]
    """Returns one number, from the output and the number of a micro-batch."""
    scale: Callable[[Tensor], Tensor]
    """Scales a loss before its backward pass."""
    values: list[Tensor] = field(default_factory=list)
    """Their shares of the loss of the batch."""

    def add(self, output: Any, number: int, share: float) -> Tensor:
        """Note the loss of a micro-batch; return where its backward pass begins."""
        value = self.loss(output, number).reshape(()) * share
        self.values.append(value.detach())
        return self.scale(value)


class Pipeline:
    """One worker's part of a model in stages."""

    def __init__(
        self,
        model: Module,
        units: Sequence[Unit],
        stage_of: Sequence[int],
        layout: Layout,
        shapes: Shapes,
        wire: Wire,
        traffic: Traffic,
    ) -> None:
        """`wire` has one worker for each place in the pipeline, in order."""
        self.model, self.units, self.stage_of, self.layout, self._shapes = model, units, stage_of, layout, shapes
        self.wire, self.traffic, self._plain = wire, traffic, model.forward
        self._device = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))
        """The device of this stage."""
        self._between, self._calls = Between(layout, wire, traffic, self._device), Pieces(wire, traffic)
        traffic.meets.append(self.meet)
        self.stages = layout.stages_of(wire.rank)
        self.last = layout.stages - 1
        self.has_last = self.last in self.stages
        self.ending: Ending
        """Makes the work before the first pass of a step, and after its last."""
        self._losses: Losses | None = None
        """Inside `step`: the losses of its micro-batches."""
        self._anchor = torch.zeros((), requires_grad=True)

    # -- a step by schedule

    def step(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        loss: Callable[[Any, int], Tensor],
        scale: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Make the forward and backward passes of one batch; return the loss, on every worker.

        `loss` is called with the last stage's output and the micro-batch's number, and returns one number; the backward
        pass begins from `scale` of it. Raises `ConfigurationError` inside `quorate.whole`.
        """
        if (before := undivided(self.model)) is not None and before.is_whole:
            raise ConfigurationError("leave quorate.whole before quorate.forward_backward, which trains the stages")
        self._losses = Losses(loss, scale)
        try:
            loss_of_batch: Tensor = self.model(*args, **kwargs)  # which calls the hooks of the model
            return loss_of_batch
        finally:
            self._losses = None

    def _step(self, args: tuple[Any, ...], kwargs: dict[str, Any], losses: Losses) -> Tensor:
        run = self._run("a step", args, kwargs, learns=True)
        order = self.layout.order(len(run.batches))
        self._between.begin(run, order)
        with self.traffic.pausing():
            self.ending.begins()
            self.ending.backward_begins()
            for action in order[self.wire.rank]:
                self._do(run, action, losses)
            self._between.pause(run)
        self.ending.ended()
        return self._sum_of(losses)

    def _end_forward(self, run: Run, number: int, losses: Losses) -> None:
        """Note the loss of a micro-batch, whose output the last stage has."""
        run.kept[self.last, number].ends = [losses.add(run.outputs.pop(number), number, run.batches[number].share)]

    def _do(self, run: Run, action: Action, losses: Losses) -> None:
        stage, kind, number = action
        if kind == FORWARD:
            self._forward(run, stage, number)
            if stage == self.last:
                self._end_forward(run, number, losses)
        elif kind in (BACKWARD, INPUT):
            self._backward_from_losses(run, stage, number, halves=kind == INPUT)
        else:
            self._weights(run, stage, number)

    def _sum_of(self, losses: Losses) -> Tensor:
        """Return the sum of the losses that the last stage has, on every worker."""
        loss = torch.stack(losses.values).sum() if losses.values else torch.zeros((), device=self._device)
        root = self.layout.owner(self.last)
        device = self._device if self._between.is_carried else torch.device("cpu")
        value = loss.detach().to(device, widest(device))
        received = self.traffic.wait_along(self.wire.broadcast(value, root), self.wire.clock)
        is_double = next(self.model.parameters()).dtype == torch.float64
        return received if is_double else received.float()

    # -- a call of the model

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output, on every worker. A backward pass from it goes through all stages. All
        micro-batches go forward, and later all of them backward (Huang et al. 2019, GPipe, arXiv 1811.06965)."""
        if self._losses is not None:
            return self._step(args, kwargs, self._losses)
        learns = torch.is_grad_enabled()
        run = self._run("a call" if learns else "a call without gradients", args, kwargs, learns=learns)
        self._between.begin(run, there_and_back(self.layout, len(run.batches)))
        if learns:
            self.ending.begins()
        for stage in self.stages:
            for number in range(len(run.batches)):
                self._forward(run, stage, number)
        outputs = self._outputs(run)
        self._between.pause(run)
        tensors = outputs.tensors
        if learns and any(outputs.learns):
            tensors = list(_Piped.apply(self, run, outputs, self._anchor, *tensors))  # type: ignore[no-untyped-call]
        return outputs.tree(tensors)

    def _outputs(self, run: Run) -> Merged:
        root, route = self.layout.owner(self.last), run.routes[0]
        if not self.has_last:
            tensors, learns = self._between.take_outputs(root)
            return Merged(tensors, learns, route.outputs, route.spec)
        outputs = merged([run.outputs[number] for number in range(len(run.batches))], run.batches)
        if run.learns:
            for number in range(len(run.batches)):
                run.kept[self.last, number].ends = outputs.ends(number)
        run.outputs.clear()
        self._between.give_outputs(run, outputs.tensors, outputs.learns)
        return outputs

    def backward_of(self, run: Run, outputs: Merged, gradients: Sequence[Tensor]) -> None:
        """Run the backward pass from gradients of all outputs. Raises `ConfigurationError` for a second time."""
        if not run.kept:
            raise ConfigurationError(
                "a backward pass through stages can run only once; nothing is kept for a second one"
            )
        with self.traffic.pausing():
            self.ending.backward_begins()
            for stage in reversed(self.stages):
                for number in range(len(run.batches)):
                    grads = outputs.gradients(gradients, number) if stage == self.last else []
                    self._backward(run, stage, number, grads, halves=False)
            self._between.pause(run)
        self.ending.ended()

    # -- passes

    def meet(self, call: str) -> None:
        """Wait until all workers of the pipeline have reached the same call. Raises `Mismatch` where one makes another.
        Without it a worker that calls the model alone would wait for the others for ever."""
        work = self._calls.swap(call, [torch.empty(0)] * self.wire.size)
        self.traffic.wait_along(work, self.wire.clock)

    def _run(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, learns: bool) -> Run:
        mode = "training" if self.model.training else "evaluation"
        shapes = [tuple(x.shape) for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        self.meet(f"{call} of a model in {mode} with inputs of {', '.join(map(str, shapes)) or 'no shape'}")
        batches = micro_batches(args, kwargs, self.layout.microbatches)
        trains = [module.training for module in self.model.modules()]
        return Run(batches, [self._shapes.route(batch.args, batch.kwargs, trains) for batch in batches], learns)

    def _forward(self, run: Run, stage: int, number: int) -> None:
        batch = run.batches[number]
        passing = Passing(self.units, self._between, run, stage, number, self.last)
        with gated(self.units, passing.called), self.ending.plain_here():
            try:
                output = self._plain(*batch.args, **batch.kwargs)
            except Left:
                return
            finally:
                passing.has_ended = True
        if stage != self.last:
            raise Mismatch(f"the forward pass ended before stage {stage} had sent all its outputs")
        run.outputs[number] = output

    def _backward_from_losses(self, run: Run, stage: int, number: int, *, halves: bool = False) -> None:
        grads = [torch.ones_like(x) for x in run.kept[stage, number].ends]
        self._backward(run, stage, number, grads, halves=halves)

    def _backward(self, run: Run, stage: int, number: int, grads: list[Tensor], *, halves: bool) -> None:
        kept, route = run.kept[stage, number], run.routes[number]
        roots = list(kept.ends)
        for transfer, x in kept.sent.items():
            if x.requires_grad:
                gradient_of_sent = self._between.take(run, "b", transfer, number, route.transfers[transfer].target)
                if gradient_of_sent is not None:
                    roots.append(x)
                    grads.append(gradient_of_sent.to(x.device))
        pairs = [(x, gradient) for x, gradient in zip(roots, grads, strict=True) if x.requires_grad]
        wanted = [x for x in kept.inputs.values() if x.requires_grad]
        if pairs and halves and wanted:
            from torch.distributed.pipelining._backward import stage_backward_input

            ends, gradients = [x for x, _ in pairs], [gradient for _, gradient in pairs]
            _, kept.groups = stage_backward_input(ends, gradients, wanted, iter(self._parameters(stage)))
        elif pairs:
            torch.autograd.backward([x for x, _ in pairs], [gradient for _, gradient in pairs])
        kept.sent, kept.ends = {}, []
        for transfer, x in kept.inputs.items():
            if x.requires_grad:
                self._between.give(run, "b", transfer, number, route.transfers[transfer].source, x.grad)
        kept.inputs = {}
        if not halves:
            del run.kept[stage, number]

    def _weights(self, run: Run, stage: int, number: int) -> None:
        from torch.distributed.pipelining._backward import stage_backward_weight

        kept = run.kept.pop((stage, number))
        if kept.groups:
            stage_backward_weight(iter(self._parameters(stage)), kept.groups)

    def _parameters(self, stage: int) -> list[Parameter]:
        """Return the parameters of a stage in use: gathered ones, where shards are gathered."""
        modules = [u.module for u, other in zip(self.units, self.stage_of, strict=True) if other == stage]
        parameters = {id(p): p for module in modules for p in module.parameters()}
        direct = (self.model.get_parameter(name) for name in self.ending.direct_of(stage))
        return list((parameters | {id(p): p for p in direct}).values())


class _Piped(Function):
    """The outputs of a model in stages, as autograd sees them."""

    @staticmethod
    def forward(ctx: Any, pipeline: Pipeline, run: Run, merged_outputs: Merged, anchor: Tensor, *xs: Tensor) -> Any:
        ctx.kept = pipeline, run, merged_outputs
        outputs = tuple(x.view_as(x) for x in xs)
        ctx.mark_non_differentiable(
            *(x for x, learns in zip(outputs, merged_outputs.learns, strict=True) if not learns)
        )
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        pipeline, run, merged_outputs = ctx.kept
        pipeline.backward_of(run, merged_outputs, gradients)
        return None, None, None, None, *(None for _ in gradients)


class Left(BaseException):
    """Raised when the stage has sent all its outputs; other workers calculate the remainder of the model."""


class Passing:
    """One micro-batch on its way forward through one stage."""

    def __init__(self, units: Sequence[Unit], between: Between, run: Run, stage: int, number: int, last: int) -> None:
        self._units, self._between, self._run, self._stage, self._number = units, between, run, stage, number
        self._is_last, self._kept = stage == last, Kept()
        if run.learns:
            run.kept[stage, number] = self._kept
        self._route = run.routes[number]
        self._calls = iter(self._route.calls)
        self._sends = set(self._route.sent_by(stage))
        self._came: dict[int, Tensor] = {}
        self.has_ended = False
        """Whether a call is no part of the forward pass any more."""

    def called(self, unit: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the output of the unit, calculated if it is in this stage."""
        if self.has_ended:
            return self._recomputed(unit, args, kwargs)
        call = next(self._calls, None)
        if call is None or call.unit != unit:
            raise Mismatch(
                f"the model has called {self._units[unit].name}, and with inputs of the same shape it did not "
                "before; a model in stages calls its modules in the same order each time"
            )
        if call.stage == self._stage:
            if call.takes:
                args, kwargs = self._with_numbers(call.takes, args, kwargs)
            return self._units[unit].module(*args, **kwargs)
        if call.stage > self._stage:
            if call.takes and self._sends:
                self._send(call.takes, pytree.tree_leaves((args, kwargs)))
            if not self._sends and not self._is_last:
                raise Left
        return pytree.tree_unflatten(list(call.leaves), call.spec)

    def _recomputed(self, unit: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Repeat a call in a backward pass, for `torch.utils.checkpoint`, which calls with the original arguments."""
        own = [call for call in self._route.calls if call.unit == unit and call.stage == self._stage]
        if len(own) != 1:
            raise ConfigurationError(
                f"{self._units[unit].name} is called {len(own)} times in a stage, and its activations are to be "
                "recomputed; let the module itself call torch.utils.checkpoint"
            )
        args, kwargs = self._with_numbers(own[0].takes, args, kwargs)
        return self._units[unit].module(*args, **kwargs)

    def _send(self, takes: Sequence[tuple[int, int]], leaves: Sequence[Any]) -> None:
        for place, transfer in takes:
            if transfer in self._sends:
                self._sends.discard(transfer)
                x, target = leaves[place], self._route.transfers[transfer].target
                if self._run.learns:
                    self._kept.sent[transfer] = x
                self._between.give(self._run, "f", transfer, self._number, target, x)

    def _with_numbers(self, takes: Sequence[tuple[int, int]], args: Any, kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        for place, transfer in takes:
            if transfer not in self._came:
                source = self._route.transfers[transfer].source
                x = self._between.take(self._run, "f", transfer, self._number, source)
                assert x is not None
                device = leaves[place].device
                if x.device != device:
                    x = x.detach().to(device).requires_grad_(x.requires_grad)
                self._came[transfer] = self._kept.inputs[transfer] = x
            leaves[place] = self._came[transfer]
        return pytree.tree_unflatten(leaves, spec)
