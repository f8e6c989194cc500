"""A program that runs a script alone for some steps, and says what memory they took, and how long each block took.

What `quorate plan SCRIPT` starts, by `python -m quorate.planning.timing ANSWER SCRIPT [ARGUMENT ...]`. The answer,
one JSON object, goes to the file ANSWER: that of `measuring`, which the first step is for, and `times`, of the steps
behind it. A block's backward pass is timed from the gradient of its output to the gradient of its input. If nothing
needs the gradient of its input, the pass is assumed to take twice as long as the forward pass.
"""

from __future__ import annotations

import atexit
import gc
import json
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from quorate.core.errors import ConfigurationError
from quorate.launch.warm.measuring import answer, blocks_by_name, end_at_once, live_alone, model_of, seconds_of_a_byte
from quorate.observe.activations import Saved
from quorate.planning.measured import MOST_TIMED_STEPS, TIMED_SECONDS, TIMED_STEPS
from quorate.sharding.tensor.finding import tensor_plan

TENSORS = (2, 3, 4, 6, 8, 12, 16)
"""Workers of a tensor axis for which it is asked whether the layers can be cut."""
_PARTS = ("outside", "model", "backward", "update")
_NOT_CUT = ("whole", "sequence")
_PROBES = 5


class Timer:
    """Seconds of a step, of each block and altogether."""

    def __init__(
        self, model: Module | None, blocks: Mapping[str, Module], now: Callable[[], float] = time.perf_counter
    ) -> None:
        """`now`: the clock, in seconds."""
        self._clock, self.examples = now, 0
        self.outputs: dict[str, int] = {}
        self.inputs: dict[str, tuple[Any, Any]] = {}
        """The newest arguments of blocks."""
        self.steps: list[dict[str, float]] = []
        self._now: dict[str, float] = defaultdict(float)
        self._began: dict[str, float] = {}
        self._stepped = now()
        if model is not None:
            model.register_forward_pre_hook(self._given, with_kwargs=True)
            model.register_forward_hook(lambda *_: self._end("model"))
        for name, module in blocks.items():
            self._watch(name, module)

    def _watch(self, name: str, module: Module) -> None:
        forward, backward = f"forward {name}", f"backward {name}"
        warnings.filterwarnings("ignore", "Full backward hook is firing")  # for inputs that need no gradient

        def ended(_: Module, __: Any, output: Any) -> None:
            self._end(forward)
            self.outputs[name] = sum(x.numel() * x.element_size() for x in tensors_in(output))

        def begins(_: Module, args: Any, kwargs: Any) -> None:
            self.inputs[name] = args, kwargs
            self._begin(forward)

        module.register_forward_pre_hook(begins, with_kwargs=True)
        module.register_forward_hook(ended)
        module.register_full_backward_pre_hook(lambda *_: self._begin(backward))
        module.register_full_backward_hook(lambda *_: self._end(backward))

    def _begin(self, part: str) -> None:
        self._began[part] = self._clock()

    def _end(self, part: str) -> None:
        now = self._clock()
        self._now[part] += now - self._began.pop(part, now)

    def _given(self, _: Module, args: Any, kwargs: Any) -> None:
        tensors = [*tensors_in(args), *tensors_in(list(kwargs.values()))]
        if "first" not in self._began:
            self._begin("first")
            self._now["examples"] = 0
        self._now["examples"] += len(tensors[0]) if tensors and tensors[0].dim() else 1
        self._begin("model")

    def steps_now(self) -> None:
        """The optimizer begins its step."""
        self._begin("update")

    def stepped(self) -> None:
        """It has ended."""
        self._end("update")
        now, first = self._clock(), self._began.pop("first", self._stepped)
        self._now["outside"] = first - self._stepped
        self._now["backward"] = now - first - self._now["update"] - self._now["model"]
        self.steps.append(dict(self._now))
        self._now = defaultdict(float)
        self._stepped = self._clock()

    @property
    def is_enough(self) -> bool:
        """Whether steps have been timed for long enough."""
        timed = self.seconds
        return self.has_fewest and (sum(timed) >= TIMED_SECONDS or len(timed) >= MOST_TIMED_STEPS)

    @property
    def seconds(self) -> list[float]:
        """Seconds of each step but the first."""
        return [sum(step[part] for part in _PARTS) for step in self.steps[1:]]

    @property
    def has_fewest(self) -> bool:
        """Whether there are as many steps as are needed."""
        return len(self.steps) >= TIMED_STEPS - 1

    def median(self, part: str) -> float:
        """Return the median over all steps but the first: `examples`, or seconds of a part in `_PARTS`."""
        return statistics.median(step.get(part, 0.0) for step in self.steps[1:])

    @property
    def parts(self) -> dict[str, float]:
        """Median seconds of what a step is made of."""
        return {part: self.median(part) for part in _PARTS}

    def report(self, blocks: Mapping[str, Module]) -> dict[str, Any]:
        """Medians; `seconds` are of each step."""
        median = self.median
        by_block = {name: [median(f"forward {name}"), median(f"backward {name}")] for name in blocks}
        for seconds in by_block.values():
            seconds[1] = seconds[1] or 2 * seconds[0]
        rest = [
            median(part) - sum(x[place] for x in by_block.values()) for place, part in enumerate(("model", "backward"))
        ]
        return {
            "examples": round(median("examples")),
            "blocks": by_block,
            "rest": [max(0.0, seconds) for seconds in rest],
            "update": median("update"),
            "outside": median("outside"),
            "outputs": dict(self.outputs),
            "fixed": fixed_shares(blocks, self.inputs, round(median("examples"))),
            "copied": seconds_of_a_byte(),
            "steps": len(self.steps) - 1,
            "seconds": self.seconds,
        }


class Timers(Timer):
    """A `Timer`, and one of the seconds that the processor works for this process."""

    def __init__(
        self, model: Module | None, blocks: Mapping[str, Module], now: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(model, blocks, now)
        self.processor = Timer(model, {}, time.process_time)

    def steps_now(self) -> None:
        """See `Timer`."""
        super().steps_now()
        self.processor.steps_now()

    def stepped(self) -> None:
        """See `Timer`."""
        super().stepped()
        self.processor.stepped()

    def report(self, blocks: Mapping[str, Module]) -> dict[str, Any]:
        """Medians; `processor` is the share of a step in which the processor works."""
        seconds, worked = (sum(parts.values()) for parts in (self.parts, self.processor.parts))
        return {**super().report(blocks), "processor": min(1.0, worked / seconds) if worked > 0.0 else 1.0}


def cuts(model: Module, blocks: Mapping[str, Module]) -> dict[str, Any]:
    """By workers of a tensor axis: why layers cannot be cut over them, or how many numbers of each block are."""
    by_workers: dict[str, Any] = {}
    for workers in TENSORS:
        try:
            plan = tensor_plan(model, workers)
        except ConfigurationError as error:
            by_workers[str(workers)] = str(error)
            continue
        cut = [name for name, style in plan.items() if style not in _NOT_CUT]
        by_block = dict.fromkeys(["", *blocks], 0)
        named = dict(model.named_modules())
        for name in cut:
            block = next((other for other in blocks if name.startswith(f"{other}.")), "")
            by_block[block] += sum(p.numel() for p in named[name].parameters())
        by_workers[str(workers)] = by_block
    return by_workers


def main() -> NoReturn:
    """Do what the arguments say."""
    path, script, *arguments = sys.argv[1:]
    saved, watching = Saved(), ExitStack()
    report: dict[str, Any] = {}
    timers: list[tuple[Timers, Optimizer, dict[str, Module]]] = []

    def first(optimizer: Optimizer) -> None:
        watching.close()
        report.update(answer(optimizer, saved))
        modules = [x for x in gc.get_objects() if issubclass(type(x), Module)]
        model = model_of([p for group in optimizer.param_groups for p in group["params"]], modules)
        blocks = {} if model is None else blocks_by_name(model)
        report["cuts"] = {} if model is None else cuts(model, blocks)
        timers.append((Timers(model, blocks), optimizer, blocks))

    def stepped(optimizer: Optimizer, *_: Any) -> None:
        if not timers:
            first(optimizer)
            return
        timer, its = timers[0][:2]
        if optimizer is not its:
            return
        timer.stepped()
        if timer.is_enough:
            keep()
            end_at_once()

    def keep() -> None:
        if not timers or not timers[0][0].has_fewest:
            return
        timer, _, blocks = timers[0]
        report["times"] = timer.report(blocks)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(report, file)

    atexit.register(keep)  # of a script that ends sooner
    register_optimizer_step_pre_hook(lambda optimizer, *_: timers[0][0].steps_now() if timers else None)
    register_optimizer_step_post_hook(stepped)
    watching.enter_context(saved.watching())
    live_alone(script, arguments)


def tensors_in(x: Any) -> list[Tensor]:
    """The first tensor that is there, in a list; none where there is none."""
    if isinstance(x, Tensor):
        return [x]
    inside = list(x.values()) if isinstance(x, Mapping) else list(x) if isinstance(x, tuple | list) else []
    return next((tensors for item in inside if (tensors := tensors_in(item))), [])


def fixed_shares(
    blocks: Mapping[str, Module], inputs: Mapping[str, tuple[Any, Any]], examples: int
) -> tuple[float, float]:
    """Return the shares of the seconds of both passes that do not depend on the number of examples.

    They come from a line through one example and all, with no parameters in a cache. 0 if blocks cannot be called with
    one example.
    """
    names = [name for name in blocks if name in inputs]
    if not names or examples < 2:
        return 0.0, 0.0
    calls = [(blocks[name], *inputs[name]) for name in names]
    try:
        whole = _seconds([(block, *_first(args, kwargs, examples, examples)) for block, args, kwargs in calls])
        one_example = _seconds([(block, *_first(args, kwargs, 1, examples)) for block, args, kwargs in calls])
    except (RuntimeError, TypeError, ValueError, IndexError):  # a block that is not of examples one by one
        return 0.0, 0.0
    shares = [
        (x - (most - x) / (examples - 1)) / most if most > 0 else 0.0
        for x, most in zip(one_example, whole, strict=True)
    ]
    return min(1.0, max(0.0, shares[0])), min(1.0, max(0.0, shares[1]))


def _first(args: Any, kwargs: Any, count: int, examples: int) -> tuple[Any, Any]:
    def cut(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        part = x.detach()[:count].clone() if x.dim() and len(x) == examples else x.detach()
        return part.requires_grad_(x.requires_grad)

    return tuple(map(cut, args)), {name: cut(x) for name, x in kwargs.items()}


def _seconds(calls: Sequence[tuple[Module, Any, Any]]) -> tuple[float, float]:
    """Medians of the forward and of the backward passes of all these calls, one after the other."""
    forward, backward = [], []
    for _ in range(_PROBES):
        both = [0.0, 0.0]
        for block, args, kwargs in calls:
            begin = time.perf_counter()
            output = tensors_in(block(*args, **kwargs))[0]
            between = time.perf_counter()
            output.sum().backward()
            both[0] += between - begin
            both[1] += time.perf_counter() - between
        forward.append(both[0])
        backward.append(both[1])
    return statistics.median(forward), statistics.median(backward)


if __name__ == "__main__":
    main()
