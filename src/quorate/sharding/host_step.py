"""The optimizer's step in host memory: gradients are copied to the host, updated parameters are copied back.

The optimizer's state, and a copy of each parameter on which the step is made, lie on the host (ZeRO-Offload: Ren et
al. 2021, arXiv 2101.06840, section 4). A step copies each gradient to the host and the parameters back: twice the bytes
of the pieces that are held here, in the parameters' dtype. Parameters that other code has written to since the last
step (a mean of replicas, the script) are copied to the host once more. A digest of their bits detects them.

With `delays` another thread makes the step while the training continues (section 5.2 of the paper, delayed parameter
update). The parameters that `optimizer.step()` leaves are those before the newest gradient: x[t + 1] = x[t] - u(g[t -
1]). With `corrects` these steps are corrected (`optim.delay_correction`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from quorate.core.device_copies import HostCopy, event_on
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.core.local_tensor import as_piece_of, exchange_numbers, local
from quorate.optim.delay_correction import delay_corrected
from quorate.sharding.bits import digest_of
from quorate.sharding.boundary import Boundary, HostMemory

_OF_SCALER = ("grad_scale", "found_inf")
_PATIENCE = 600.0
"""Seconds to wait for a step of the host."""
Run = Callable[[Optimizer], object]
Look = tuple[Sequence[Parameter], "HostCopy | None"]
"""Parameters, and for each of them a flag on its way to the host: whether it was written since the last step."""
MASTER = "master"
"""The name under which the optimizer keeps the numbers of a parameter of a small dtype, in float32."""
_SMALL = (torch.bfloat16, torch.float16)


@dataclass
class _Step:
    """A step that is being made."""

    optimizer: Optimizer
    """An optimizer like the user's, over the copies on the host."""
    attributes: dict[str, Any]
    """Attributes of `optimizer` before the step."""
    groups: Sequence[dict[str, Any]]
    """Its parameter groups before the step."""
    parameters: Sequence[Parameter]
    """The user's parameters, of which the optimizer updates copies."""
    thread: Thread | None = None
    is_taken_over: bool = False
    """Whether the user's optimizer has the state after this step."""
    failure: list[BaseException] = field(default_factory=list)


class HostStep:
    """Steps of one optimizer of class `plain`, whose parameters are on a device. `crosses` is False where parameters
    lie on the host anyway: no bytes are counted then."""

    def __init__(
        self,
        optimizer: Optimizer,
        plain: type[Optimizer],
        boundary: Boundary,
        memory: HostMemory,
        *,
        delays: bool = False,
        corrects: bool = False,
        crosses: bool = True,
    ) -> None:
        self._optimizer, self._plain, self._delays, self._corrects = optimizer, plain, delays, corrects
        self._boundary = boundary if crosses else Boundary()
        self._copies = HostCopies(optimizer, self._boundary, memory)
        self._under_way: _Step | None = None
        self._loaded: dict[str, Any] | None = None
        optimizer.register_state_dict_pre_hook(self._before_state_dict)
        optimizer.register_load_state_dict_pre_hook(self._before_load)
        optimizer.register_load_state_dict_post_hook(self._after_load)

    def step(self, run: Run) -> None:
        """Make one step; `run` makes it with an optimizer like the user's that has the same state and options. Raises
        `ConfigurationError` where the script has written to parameters during a step."""
        self.catch_up()
        under_way = self._begun()
        if self._delays:
            thread = Thread(target=self._make, args=(under_way, run), daemon=True, name="quorate-host-step")
            self._under_way, under_way.thread = under_way, thread
            thread.start()
        else:
            self._make(under_way, run)
            self._take_over(under_way)
            self._copies.show(under_way.parameters)

    def catch_up(self) -> None:
        """Complete every requested step. Raises as `step`, and what the step raised."""
        if self._under_way is not None:
            under_way = self._wait()
            assert under_way is not None
            self._under_way = None
            self._check_unwritten(under_way.parameters)
            self._copies.show(under_way.parameters)

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Inside, parameters use their copies if a step is in progress, so that the values for a pass do not change."""
        under_way = self._wait()
        chosen = [] if under_way is None else [(p, self._copies.numbers_of(p)) for p in under_way.parameters]
        before = [exchange_numbers(p, x) for p, x in chosen]
        try:
            yield
        finally:
            for (p, _), x in zip(chosen, before, strict=True):
                exchange_numbers(p, x)

    def _wait(self) -> _Step | None:
        """Wait for the step in progress; parameters stay as they are."""
        under_way = self._under_way
        if under_way is not None and under_way.thread is not None:
            under_way.thread.join(_PATIENCE)
            if under_way.thread.is_alive():
                raise QuorateError(f"the optimizer's step on the host has not ended within {_PATIENCE:g} s")
            self._take_over(under_way)
        return under_way

    # -- before the step

    def _begun(self) -> _Step:
        """Copy everything that a step needs to the host."""
        optimizer = self._optimizer
        stepped = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        look = self._copies.look(stepped)
        new = [p for p in stepped if p not in self._copies]
        self._copies.take_gradients([p for p in stepped if p in self._copies])
        self._copies.refresh(stepped, look)
        self._copies.take_gradients(new)
        state: defaultdict[Tensor, Any] = defaultdict(dict)
        for p in stepped:
            if p in optimizer.state:
                self._copies.pause(p, optimizer.state[p])
                kept = {key: x for key, x in optimizer.state[p].items() if key != MASTER}
                state.update({self._copies[p]: kept} if kept else {})
        for p in stepped:
            self._copies.give_gradient(p)
        groups = [self._group(group) for group in optimizer.param_groups]
        like: Any = self._plain.__new__(self._plain)
        attributes = {**optimizer.__dict__, "param_groups": groups, "state": state}
        attributes |= {key: attributes[key].clone() for key in _OF_SCALER if isinstance(attributes.get(key), Tensor)}
        like.__dict__.update(attributes)
        return _Step(like, attributes, [dict(group) for group in groups], stepped)

    def _group(self, group: dict[str, Any]) -> dict[str, Any]:
        options = {key: x.detach().to("cpu", copy=True) if isinstance(x, Tensor) else x for key, x in group.items()}
        return {**options, "params": [self._copies[p] for p in group["params"] if p.grad is not None]}

    # -- the step, and after it

    def _make(self, under_way: _Step, run: Run) -> None:
        try:
            with delay_corrected(under_way.optimizer) if self._corrects else nullcontext():
                run(under_way.optimizer)
        except BaseException as error:  # raised in the training thread
            under_way.failure.append(error)

    def _take_over(self, under_way: _Step) -> None:
        """Move the state after the step into the user's optimizer, once. Raises what the step raised."""
        if under_way.is_taken_over:
            return
        under_way.is_taken_over = True
        for error in under_way.failure:
            raise error
        like, optimizer = under_way.optimizer.__dict__, self._optimizer
        now: Any = like["param_groups"]
        for group, after, before in zip(optimizer.param_groups, now, under_way.groups, strict=False):
            group.update({k: x for k, x in after.items() if k != "params" and x is not before.get(k)})
        own: dict[str, Any] = optimizer.__dict__
        own.update({key: x for key, x in like.items() if x is not under_way.attributes.get(key)})
        for p in under_way.parameters:
            copy = self._copies[p]
            copy.grad = None
            if copy in like["state"]:
                before = optimizer.state[p]
                kept = {**like["state"][copy], **({MASTER: before[MASTER]} if MASTER in before else {})}
                before.clear()
                before.update(kept)
                self._copies.pause(p, before)

    def _check_unwritten(self, parameters: Sequence[Parameter]) -> None:
        if any(self._copies.are_written(parameters)):
            raise ConfigurationError(
                "the parameters were changed between two steps, while delayed_update was still running the previous "
                "step; change them inside `with world.evaluate():`, where all steps are complete"
            )

    # -- load_state_dict, which would give state the device and the dtype of the parameters

    def _before_state_dict(self, _: Optimizer) -> None:
        self._wait()

    def _before_load(self, _: Optimizer, state: dict[str, Any]) -> None:
        self.catch_up()
        self._loaded = state

    def _after_load(self, optimizer: Optimizer) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        numbers = [number for group in loaded["param_groups"] for number in group["params"]]
        every = [p for group in optimizer.param_groups for p in group["params"]]
        for number, p in zip(numbers, every, strict=True):
            values = loaded["state"].get(number, {})
            for key, x in values.items() if isinstance(values, dict) else ():
                there = optimizer.state[p].get(key)
                if isinstance(x, Tensor) and isinstance(there, Tensor) and local(there).shape == local(x).shape:
                    optimizer.state[p][key] = as_piece_of(p, _copied(local(x))) if x.dim() else x.clone().cpu()
        self._copies.forget_shown()  # the loaded state includes what is kept of small dtypes


def _copied(x: Tensor) -> Tensor:
    return x.detach().to("cpu", copy=True)


@dataclass
class _Held:
    """The copy of one parameter, and its buffers."""

    copy: Parameter
    """On the host."""
    shown: Tensor | None = None
    """The digest of the parameter after the last step."""
    gradient: Tensor | None = None
    passing: Tensor | None = None
    """A buffer of the parameter's dtype, where the copy has another one."""


class HostCopies:
    """Copies of one optimizer's parameters, and of their gradients."""

    def __init__(self, optimizer: Optimizer, boundary: Boundary, memory: HostMemory) -> None:
        self._optimizer, self._boundary, self._memory = optimizer, boundary, memory
        self._held: dict[Parameter, _Held] = {}

    def __getitem__(self, p: Parameter) -> Parameter:
        return self._held[p].copy

    def __contains__(self, p: Parameter) -> bool:
        return p in self._held

    def forget_shown(self) -> None:
        """Compare each parameter with its copy before the next step, number by number."""
        for held in self._held.values():
            held.shown = None

    def refresh(self, stepped: Sequence[Parameter], look: Look) -> None:
        """Update the copies of parameters that were written since the last step."""
        written = [p for p, is_new in zip(stepped, self._written(stepped, look), strict=True) if is_new]
        received = {}
        for p in written:
            here = local(p.detach())
            received[p] = _empty_like(here)
            self._boundary.to_host(here, received[p])
        self._boundary.wait([local(p) for p in written])
        for p, numbers in received.items():
            self._write_copy(p, numbers)
            self._held[p].shown = digest_of(local(p))

    def look(self, parameters: Sequence[Parameter]) -> Look:
        """Compare the parameters with those that were shown after the last step; the device is not waited for."""
        shown = [p for p in parameters if p in self._held and self._held[p].shown is not None]
        looks = [torch.ne(digest_of(local(p)), _shown(self._held[p])).any() for p in shown]
        return shown, HostCopy(torch.stack(looks)) if looks else None

    def are_written(self, parameters: Sequence[Parameter]) -> list[bool]:
        """Return for each parameter whether it was written since the last step, or there was no step."""
        return self._written(parameters, self.look(parameters))

    @staticmethod
    def _written(parameters: Sequence[Parameter], look: Look) -> list[bool]:
        shown, flags = look
        written = {} if flags is None else dict(zip(shown, flags.value().tolist(), strict=True))
        return [written.get(p, True) for p in parameters]

    def _write_copy(self, p: Parameter, numbers: Tensor) -> None:
        """Write `numbers` to the copy; a copy of a small dtype keeps its master numbers that round to them."""
        wide = torch.float32 if numbers.dtype in _SMALL else numbers.dtype
        state = self._optimizer.state
        with torch.no_grad():
            held = self._held.get(p)
            kept = state[p].get(MASTER) if wide != numbers.dtype and p in state else None
            there = kept if kept is not None else held.copy if held is not None else None
            new = numbers.to(wide)
            if there is None or local(there).shape != new.shape:
                there = as_piece_of(p, self._memory.empty(new.shape, wide))
            elif wide != numbers.dtype:
                old = self._memory.kept(local(there).detach(), wide)
                there, new = as_piece_of(p, old), torch.where(old.to(numbers.dtype) == numbers, old, new)
            local(there).detach().copy_(new)
        if held is None or local(held.copy).data_ptr() != local(there).data_ptr():
            self._held[p] = held = _Held(Parameter(there.detach()), gradient=None if held is None else held.gradient)
        if wide != numbers.dtype:
            held.passing = numbers
            state[p][MASTER] = there.detach()

    def take_gradients(self, parameters: Sequence[Parameter]) -> None:
        """Copy the gradients of `parameters` to the host; the device is waited for once."""
        for p in parameters:
            self._take_gradient(p)
        self._boundary.wait([local(p) for p in parameters])

    def _take_gradient(self, p: Parameter) -> None:
        held, grad = self._held[p], local(_gradient_of(p))
        if grad.layout != torch.strided:
            held.gradient = grad.to("cpu", copy=True)
            self._boundary.to_host_bytes += grad.coalesce().values().nbytes + grad.coalesce().indices().nbytes
            return
        there = held.gradient
        if there is None or there.shape != grad.shape or there.dtype != grad.dtype:
            there = _empty_like(grad)
        held.gradient = there
        self._boundary.to_host(grad, there)

    def give_gradient(self, p: Parameter) -> None:
        """Give the copy of `p` its gradient, in the copy's dtype."""
        held = self._held[p]
        assert held.gradient is not None
        held.copy.grad = as_piece_of(held.copy, held.gradient.to(local(held.copy).dtype))

    def pause(self, p: Parameter, kept: dict[str, Any]) -> None:
        """Move the optimizer's state of `p` to memory of the host, in the precision of its copy."""
        copy = local(self._held[p].copy)
        for key, x in kept.items():
            if not isinstance(x, Tensor):
                continue
            here, is_like = local(x), local(x).shape == copy.shape
            wide = copy.dtype if is_like and here.dtype in _SMALL else here.dtype
            settled = self._memory.kept(here, wide) if is_like else here.cpu()
            if settled is not here:
                kept[key] = as_piece_of(p, settled) if is_like else settled

    def numbers_of(self, p: Parameter) -> Tensor:
        """Return the numbers of the copy, in the dtype of the parameter."""
        held = self._held[p]
        numbers = local(held.copy).detach()
        return numbers if held.passing is None else held.passing.copy_(numbers)

    def show(self, parameters: Sequence[Parameter]) -> None:
        """Write the copies back to the parameters on the device, which is not waited for: gradients of the next step,
        for which it is, are copied behind them."""
        for p in parameters:
            self._boundary.to_device(self.numbers_of(p), local(p.detach()))
            self._held[p].shown = digest_of(local(p))


def _empty_like(x: Tensor) -> Tensor:
    """Return a tensor of the host, pinned where the device of `x` copies by itself."""
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=event_on(x.device) is not None, device="cpu")


def _gradient_of(p: Parameter) -> Tensor:
    assert p.grad is not None
    return p.grad.detach()


def _shown(held: _Held) -> Tensor:
    assert held.shown is not None
    return held.shown
