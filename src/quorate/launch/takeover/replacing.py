"""Replacements of torch's functions and of its DDP, in a process whose script is to train under a strategy."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel as OfTorch
from torch.nn.parallel import distributed
from torch.optim.swa_utils import AveragedModel

from quorate.core.errors import ConfigurationError
from quorate.core.script_errors import OneSentence
from quorate.core.telling import flush, tell
from quorate.data.consumption import Consumed
from quorate.launch.run.overrides import Overrides, asked_strategy, unused
from quorate.launch.takeover.fully_shard import replace_fully_shard
from quorate.launch.takeover.optimizers import FoundOptimizers, count_optimizers
from quorate.launch.takeover.other_processes import refuse_groups_of_children, refuse_other_sizes
from quorate.launch.takeover.wrapper import DistributedDataParallel, TakenOver, count_examples, settle, turn_inside
from quorate.launch.worker.baselines import baselines
from quorate.launch.worker.join import join
from quorate.train.alone import class_of
from quorate.train.chosen import Chosen
from quorate.wire import current


def take_over(chosen: Overrides) -> None:
    """Let the script of this process train under what was asked for, once, before it runs."""
    if torch.nn.parallel.DistributedDataParallel is not OfTorch:
        return
    count_optimizers()
    is_baseline = chosen.strategy is not None and chosen.strategy in baselines
    _replace_class(RecordedDistributedDataParallel if is_baseline else DistributedDataParallel)
    _replace_end()
    _replace_start_of_processes()
    if not is_baseline:
        _replace_turns()
        _replace_averages()
        replace_fully_shard()
    if "QUORATE_BOARD" not in os.environ:
        atexit.register(_check_used, asked_strategy(chosen) or "", os.getpid())


def _check_used(asked: str, pid: int) -> None:
    """End with status 1 where nothing of what was asked for was used, and no launcher of ours looks at that."""
    if os.getpid() == pid and class_of.cache_info().currsize == 0:
        tell(f"quorate: {unused(asked)}\n")
        flush()
        os._exit(1)


def _replace_class(kind: Any) -> None:
    """Make `kind` torch's class, also for those who have imported that already."""

    def new(cls: Any, *arguments: Any, **named: Any) -> Any:
        return object.__new__(kind if cls is OfTorch else cls)

    plain: Any = OfTorch
    plain.__new__ = new
    for module in (torch.nn.parallel, distributed):
        module.DistributedDataParallel = kind  # type: ignore[attr-defined]


def _replace_turns() -> None:
    """Let `eval()` and `train()` of a model count as those of its wrapper, as scripts call either."""
    plain = Module.train

    @functools.wraps(plain)
    def train(self: Any, mode: bool = True) -> Any:
        place = current.place()
        if place is not None:
            turn_inside(self, place.context(TakenOver), is_training=mode)
        return plain(self, mode)

    Module.train = train  # type: ignore[method-assign]


def _replace_averages() -> None:
    """Let a moving average of a replica that differs from others be named."""
    plain = AveragedModel.update_parameters

    @functools.wraps(plain)
    def update_parameters(self: Any, model: Module) -> None:
        place = current.place()
        if place is not None and (agreed := place.context(TakenOver).agreed) is not None:
            agreed.averages()
        plain(self, model)

    AveragedModel.update_parameters = update_parameters  # type: ignore[method-assign]


def _replace_end() -> None:
    """Let the training end, with the agreed model on all workers, where the script destroys its process group."""
    plain = dist.destroy_process_group

    @functools.wraps(plain)
    def destroy_process_group(group: Any = None) -> None:
        place = current.place()
        if place is not None and group in (None, dist.group.WORLD):
            settle(place)
        if dist.is_initialized():
            plain(group)

    for module in (dist, dist.distributed_c10d):
        module.destroy_process_group = destroy_process_group  # type: ignore[attr-defined]


class _Joined:
    """The processes that a script has started, of which this worker was one."""

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Return True: all have ended."""
        return True


def _replace_start_of_processes() -> None:
    """Let a function that a script starts as many processes of as there are workers run in each worker, as its rank."""

    def start(function: Callable[..., Any], args: Any = (), nprocs: int = 1, join: bool = True, **named: Any) -> Any:
        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if current.place() is None:
            sys.excepthook = OneSentence(names_line=True)
        if nprocs != size:
            advice = f"start it with -n {nprocs}" if nprocs > 0 else f"let it start {size}"
            raise ConfigurationError(
                f"the script starts {nprocs} processes by itself (torch.multiprocessing.spawn), and {size} workers "
                f"were started of it; {advice}"
            )
        between = next((type(x).__name__ for x in args if type(x).__module__.startswith("multiprocessing.")), None)
        if between is not None:
            raise ConfigurationError(
                f"the script gives a {between} to the processes that it starts, and under a strategy each of them is "
                'a worker with its own; use torch.distributed.all_gather_object, or strategy="ddp" in Lightning'
            )
        function(rank, *args)
        return None if join else _Joined()

    refuse_groups_of_children()
    refuse_other_sizes()
    for module in (torch.multiprocessing, torch.multiprocessing.spawn):
        for name in ("spawn", "start_processes"):
            if callable(getattr(module, name, None)) and not isinstance(getattr(module, name), type(os)):
                setattr(module, name, start)


class RecordedDistributedDataParallel(OfTorch):
    """torch's class; optimizers of its parameters are recorded from the first forward pass with gradients on."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        join()
        super().__init__(*arguments, **named)
        place = current.here()
        chosen, self._optimizers = place.context(Chosen), place.context(FoundOptimizers)
        for name in chosen.baselines:
            chosen.baselines[name] = lambda model: self.no_sync
        self._optimizers.modules.append(ref(self.module))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call torch's."""
        if torch.is_grad_enabled():
            self._look((*inputs, *kwargs.values()))
        return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _look(self, arguments: tuple[Any, ...]) -> None:
        self._optimizers.distribute()
        if self._optimizers.modules[0]() is self.module:
            count_examples(current.here().context(Consumed), arguments)


RecordedDistributedDataParallel.__name__ = OfTorch.__name__
