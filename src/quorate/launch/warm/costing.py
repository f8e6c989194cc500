"""A program that runs a script alone for some steps, and says what each layer and each part of a step takes.

`quorate doctor --cost` starts it, by `python -m quorate.launch.warm.costing ANSWER SCRIPT [ARGUMENT ...]`. The answer,
one JSON object, goes to the file ANSWER: that of `measuring`, of the first step, and `cost`. Operations are counted in
the second step, by torch's FlopCounterMode. Later steps are timed in turn: in one each layer, in the next the whole.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import math
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.flop_counter import FlopCounterMode

from quorate.core.local_tensor import local
from quorate.launch.warm.loading import Waits, bytes_of
from quorate.launch.warm.measuring import answer, end_at_once, live_alone, model_of, seconds_of_a_byte, storages_of
from quorate.observe.activations import Saved

S = TypeVar("S")
Meter = Callable[[], float]
"""A number that only rises, such as the clock."""
_BEFORE, _FEWEST, _MOST, _SECONDS = 3, 3, 100, 3.0
"""Steps for memory, for operations and to warm up; the fewest and the most of others, and seconds until there are
enough. So a script makes nine steps at least."""
_PROBE, _PROBES = 512, 50
"""Rows of the matrices by which the peak is measured, and products."""
_KERNELS = ("mkldnn_rnn_layer", "_cudnn_rnn")
"""Kernels that compute a recurrent layer, whose operations torch's FlopCounterMode does not count."""


@dataclass
class _Frame:
    """A pass of a layer that is running."""

    name: str
    begin: float
    inside: float = 0.0
    """The part of other layers meanwhile."""
    boundary: tuple[Any, ...] = ()
    """Nodes of autograd at which the layer's own begin."""


class Layers:
    """The quantity, such as seconds or operations, that each layer of a model takes of both passes, by its name.

    A layer is a module with what it computes itself, without the modules inside of it. In the forward pass it is the
    time between the hooks of a module. The backward pass consists of nodes of autograd. A node belongs to the layer in
    whose forward pass it was made, together with the nodes that accumulate gradients of its parameters. Hooks do
    nothing while `meter` is None.
    """

    def __init__(self, model: Module) -> None:
        """Watch all modules of `model`; each has the first of its names."""
        self.meter: Meter | None = None
        self.taken: dict[str, list[float]] = {}
        """The sums of a layer in forward and in backward passes, since `begin`."""
        self.moved: dict[str, int] = {}
        """Bytes of the newest input and output of a layer."""
        self._frames: list[_Frame] = []
        self._handles: list[Any] = []
        self._claimed: dict[Any, str] = {}
        for name, module in model.named_modules():
            self._watch(name, module)

    def begin(self, meter: Meter | None) -> None:
        """Begin to measure by `meter`, or stop; forget what was measured."""
        for handle in self._handles:
            handle.remove()
        self.meter, self.taken = meter, defaultdict(lambda: [0.0, 0.0])
        self._frames, self._handles, self._claimed = [], [], {}

    def _watch(self, name: str, module: Module) -> None:
        def enters(_: Module, args: Any, kwargs: Mapping[str, Any]) -> None:
            if self.meter is not None:
                boundary = tuple(_nodes((args, kwargs)))
                self.moved[name] = bytes_of([args, dict(kwargs)])
                self._enter(name, boundary)

        def leaves(_: Module, __: Any, output: Any) -> None:
            if self.meter is None or not any(frame.name == name for frame in self._frames):
                return
            frame = self._leave(name, 0)
            since = self.meter()
            self.moved[name] = self.moved.get(name, 0) + bytes_of(output)
            self._claim(name, _nodes(output), frame.boundary)
            if self._frames:  # looking at the graph is nobody's
                self._frames[-1].inside += self.meter() - since

        module.register_forward_pre_hook(enters, with_kwargs=True)
        module.register_forward_hook(leaves, always_call=True)

    def _enter(self, name: str, boundary: tuple[Any, ...] = ()) -> None:
        assert self.meter is not None
        self._frames.append(_Frame(name, self.meter(), boundary=boundary))

    def _leave(self, name: str, which: int) -> _Frame:
        assert self.meter is not None
        now = self.meter()
        while (frame := self._frames.pop()).name != name:
            pass  # a pass that has raised
        elapsed = now - frame.begin
        self.taken[name][which] += elapsed - frame.inside
        if self._frames:
            self._frames[-1].inside += elapsed
        return frame

    def _claim(self, name: str, nodes: Iterable[Any], boundary: tuple[Any, ...]) -> None:
        """Watch the nodes behind `nodes`, up to those of the layer's input, that belong to no layer yet."""
        seen, waiting = set(boundary), list(nodes)
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
            if node not in self._claimed:
                self._claimed[node] = name
                self._watch_node(name, node)

    def _watch_node(self, name: str, node: Any) -> None:
        def enters(_: Any) -> None:
            if self.meter is not None:
                self._enter(name)

        def leaves(*_: Any) -> None:
            if self.meter is not None and any(frame.name == name for frame in self._frames):
                self._leave(name, 1)

        self._handles += [node.register_prehook(enters), node.register_hook(leaves)]


def _nodes(tensors: Any) -> Iterator[Any]:
    """Yield the nodes of autograd that have made the tensors in lists, tuples and dicts."""
    if isinstance(tensors, Tensor):
        if tensors.grad_fn is not None:
            yield tensors.grad_fn
    elif isinstance(tensors, Mapping):
        for x in tensors.values():
            yield from _nodes(x)
    elif isinstance(tensors, list | tuple):
        for x in tensors:
            yield from _nodes(x)


class Steps:
    """The steps of a script; what was measured in each of them."""

    def __init__(self, layers: Layers | None, waits: Waits, clock: Meter) -> None:
        self._layers, self._waits, self._clock = layers, waits, clock
        self.flops: dict[str, list[float]] = {}
        """Operations of each layer in forward and backward passes."""
        self.timed: list[tuple[float, dict[str, list[float]]]] = []
        """Seconds of steps in which layers are timed, and of each layer."""
        self.plain: list[dict[str, float]] = []
        """Seconds of other steps: of all, and of those the wait for data and the update."""
        self._counter: FlopCounterMode | None = None
        self._began, self._waited, self._update, self._count = clock(), waits.seconds, 0.0, 0

    def updates_now(self) -> None:
        """The optimizer begins its step."""
        self._update = self._clock()

    def stepped(self) -> None:
        """Record the step, which has ended."""
        now, waited = self._clock(), self._waits.seconds
        self._count += 1
        if self._counter is not None:
            self.flops = dict(self._layers.taken) if self._layers is not None else {}
            self._counter.__exit__(None, None, None)
            self._counter = None
        elif self._count > _BEFORE and self._count % 2 == 0 and self._layers is not None:
            self.timed.append((now - self._began, dict(self._layers.taken)))
        elif self._count > _BEFORE:
            self.plain.append(
                {"seconds": now - self._began, "data": waited - self._waited, "update": now - self._update}
            )
        self._prepare()
        self._waited, self._began = self._waits.seconds, self._clock()

    def _prepare(self) -> None:
        """Set the meter of the next step."""
        if self._layers is None:
            return
        if self._count == 1:
            counter = self._counter = counter_of_operations()
            counter.__enter__()
            self._layers.begin(counter.get_total_flops)
        else:
            is_timed = self._count + 1 > _BEFORE and (self._count + 1) % 2 == 0
            self._layers.begin(self._clock if is_timed else None)

    @property
    def has_fewest(self) -> bool:
        """Whether there are as many steps as are needed."""
        return len(self.plain) >= _FEWEST

    @property
    def is_enough(self) -> bool:
        """Whether steps have been timed for long enough."""
        total = sum(step["seconds"] for step in self.plain)
        return self.has_fewest and (total >= _SECONDS or len(self.plain) >= _MOST)


def report(steps: Steps, model: Module | None, layers: Layers | None, kept: dict[str, int]) -> dict[str, Any]:
    """Return what was measured: `layers`, a row for each, in the order of the model, and averages of the parts.

    Averages are of the middle half of the steps by their seconds, so that they add up, and outliers do not count. A
    parameter that several modules share counts for the first one.
    """
    timed, rows = [taken for _, taken in middle(steps.timed, key=lambda step: step[0])], list[dict[str, Any]]()
    names = {name for taken in (*timed, steps.flops) for name in taken}
    seen: set[int] = set()
    for name, module in {} if model is None else dict(model.named_modules()).items():
        own = [p for p in module.parameters(recurse=False) if id(p) not in seen]
        seen.update(map(id, own))
        if name not in names and not own:
            continue
        is_inmost = not any(other.startswith(f"{name}." if name else "") for other in names - {name})
        forward, backward = (
            statistics.fmean([taken.get(name, (0.0, 0.0))[x] for taken in timed] or [0.0]) for x in (0, 1)
        )
        rows.append(
            {
                "name": name,
                "kind": type(module).__name__,
                "parameters": sum(p.numel() for p in own),
                "gradients": sum(p.numel() * p.element_size() for p in own if p.requires_grad),
                "flops": sum(steps.flops.get(name, (0.0, 0.0))),
                "kept": kept.get(name, 0),
                "moved": layers.moved.get(name, 0) if is_inmost and layers is not None else 0,
                "forward": forward,
                "backward": backward,
            }
        )
    usual = middle(steps.plain, key=lambda step: step["seconds"])
    averages = {part: statistics.fmean(step[part] for step in usual) for part in ("seconds", "data", "update")}
    return {**averages, "layers": rows, "steps": [step["seconds"] for step in steps.plain]}


def middle(steps: Sequence[S], key: Callable[[S], float]) -> Sequence[S]:
    """Return the middle half of the steps by `key`."""
    ranked = sorted(steps, key=key)
    return ranked[len(ranked) // 4 : len(ranked) - len(ranked) // 4]


def peak(device: torch.device, dtype: torch.dtype, clock: Meter) -> float:
    """Return the operations per second of the product of two matrices, the best of several."""
    matrix = torch.ones(_PROBE, _PROBE, device=device, dtype=dtype)
    into, seconds = torch.empty_like(matrix), []
    for _ in range(_PROBES):
        begin = clock()
        torch.mm(matrix, matrix, out=into)
        seconds.append(clock() - begin)
    return 2 * float(_PROBE) ** 3 / min(seconds)


def clock_of(device: torch.device) -> Callable[[], float]:
    """Return the clock, which first waits for a GPU."""
    if device.type != "cuda":
        return time.perf_counter

    def now() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


def main() -> NoReturn:
    """Do what the arguments say."""
    path, script, *arguments = sys.argv[1:]
    waits, saved, watching = Waits(), Saved(), ExitStack()
    looks = list[_Look]()
    is_over = False

    def stepped(optimizer: Optimizer, *_: Any) -> None:
        if not looks:
            watching.close()
            looks.append(_Look(optimizer, saved, waits))
        if optimizer is not looks[0].optimizer or is_over:
            return
        with torch.no_grad():
            looks[0].steps.stepped()
        if looks[0].steps.is_enough:
            keep()
            end_at_once()

    def keep() -> None:
        nonlocal is_over
        if is_over or not looks or not looks[0].steps.has_fewest:
            return
        is_over = True
        with open(path, "w", encoding="utf-8") as file:
            json.dump(looks[0].answer(), file)

    atexit.register(keep)  # of a script that ends sooner
    register_optimizer_step_pre_hook(
        lambda optimizer, *_: looks[0].steps.updates_now() if looks and optimizer is looks[0].optimizer else None
    )
    register_optimizer_step_post_hook(stepped)
    waits.watch()
    watching.enter_context(saved.watching())
    live_alone(script, arguments)


class _Look:
    """The optimizer and the model that are looked at, from the end of the first step on."""

    def __init__(self, optimizer: Optimizer, saved: Saved, waits: Waits) -> None:
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        self.optimizer, self._about = optimizer, answer(optimizer, saved)
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        self._tensor = local(max(trained, key=lambda p: p.numel()))
        self._clock = clock_of(self._tensor.device)
        modules = [x for x in gc.get_objects() if issubclass(type(x), Module)]
        self._model = model_of(trained, modules)
        self._kept = dict(_kept(self._model, saved))
        self._layers = None if self._model is None else Layers(self._model)
        self._peak = self._measured_peak()  # and again at the end: others may use the machine, too
        self.steps = Steps(self._layers, waits, self._clock)

    def answer(self) -> dict[str, Any]:
        """Return the answer of this program."""
        cost = report(self.steps, self._model, self._layers, self._kept)
        if self._layers is not None:
            self._layers.begin(None)
        cost |= {
            "peak": max(self._peak, self._measured_peak()),
            "bandwidth": 2 / seconds_of_a_byte(),
            "threads": torch.get_num_threads(),
            "dtype": str(self._tensor.dtype).removeprefix("torch."),
        }
        return {**self._about, "cost": cost}

    def _measured_peak(self) -> float:
        return peak(self._tensor.device, self._tensor.dtype, self._clock)


def _kept(model: Module | None, saved: Saved) -> Iterator[tuple[str, int]]:
    """Yield the name of each module, and the bytes that it keeps for the backward pass."""
    if model is None:
        return
    names = {id(module): name for name, module in model.named_modules()}
    for module, nbytes in saved.by_module(without=dict(storages_of(list(model.modules())))).items():
        if id(module) in names:
            yield names[id(module)], nbytes


def counter_of_operations() -> FlopCounterMode:
    """Return a counter that also knows fused LSTM and GRU; multiplications and additions count one each."""
    known: dict[Any, Callable[..., int]] = {}
    for kernel in _KERNELS:
        for name, passes in ((kernel, 1), (f"{kernel}_backward", 2)):
            if hasattr(torch.ops.aten, name):
                known[getattr(torch.ops.aten, name)] = _recurrent(passes)
    return FlopCounterMode(display=False, custom_mapping=known)


def _recurrent(passes: int) -> Callable[..., int]:
    """Return the formula of a kernel whose first argument is its input, and whose next ones are its weights.

    Each weight matrix is multiplied with each token once, and twice in the backward pass.
    """

    def operations(inputs: Sequence[int], *others: Any, **_: Any) -> int:
        tokens = math.prod(inputs[:-1])
        first = others[0]
        weights = first if first and not isinstance(first, torch.Size) else others[:2]
        matrices = [shape for shape in weights if isinstance(shape, torch.Size) and len(shape) == 2]
        return 2 * passes * tokens * sum(map(math.prod, matrices))

    return operations


if __name__ == "__main__":
    importlib.import_module("quorate.launch.warm.costing").main()  # not this copy, so that scripts can set limits
