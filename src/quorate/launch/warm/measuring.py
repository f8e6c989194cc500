"""A program that runs a script alone up to the end of its first `optimizer.step()`, and says what memory that took.

What `quorate doctor --memory` starts, by `python -m quorate.launch.warm.measuring ANSWER SCRIPT [ARGUMENT ...]`. The
answer, one JSON object, goes to the file ANSWER. No records are kept, and any mesh is one of one worker.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from quorate.core.axes import Axes
from quorate.core.local_tensor import local
from quorate.core.telling import flush
from quorate.launch.warm.script import live_as_main
from quorate.launch.worker.world import World
from quorate.observe.activations import Saved, Storage, storage_of
from quorate.sharding.blocks import blocks_of, class_of, in_words
from quorate.sharding.host_step import MASTER
from quorate.sharding.memory import Model, Size
from quorate.sharding.mesh import Meshes
from quorate.sharding.parallelize import blocks_chosen, sharded
from quorate.wire import current

OF_ONE_WORKER = {"QUORATE_BOARD": "none"}
"""Variables with which the script's worker is alone, and keeps no records."""
_COPIES = 5
_COPIED = 1 << 25
"""Bytes."""


def answer(optimizer: Optimizer, saved: Saved) -> dict[str, Any]:
    """Return the description of a model whose optimizer has made a step."""
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    modules = [x for x in gc.get_objects() if issubclass(type(x), Module)]
    model = model_of(trained, modules)
    spread = None if model is None or current.place() is None else sharded(model, current.here(), optimizer)
    blocks = {} if model is None else blocks_by_name(model)
    named = dict(model.named_parameters()) if model is not None else {str(n): p for n, p in enumerate(trained)}
    precision = spread.precision if spread is not None else None
    rests = None if spread is None or spread.offload is None else spread.offload.where
    if rests is not None:
        optimizer.state_dict()  # a step that is made beside the training has been made then
    used = None if precision is None else getattr(torch, precision).itemsize
    by_module = saved.by_module(without=dict(storages_of(modules)))
    activations = _by_block(model, blocks, by_module)
    sizes = [_size(p, optimizer, used, _block_of(name, blocks), rests) for name, p in named.items()]
    buffers = [] if model is None else list(model.buffers())
    measured = Model(sizes=sizes, buffers=sum(map(_bytes, buffers)), activations=sum(activations.values()))
    return {
        "model": "no module that has all of its parameters" if model is None else class_of(model),
        "optimizer": _plain_name(optimizer),
        "device": str(local(trained[0]).device) if trained else "cpu",
        "precision": precision,
        "offload": rests,
        "blocks": in_words(list(blocks.items())),
        "activations": activations,
        "memory": measured.as_json(),
    }


def model_of(trained: list[Tensor], modules: list[Module]) -> Module | None:
    """The smallest of the modules that have all that is trained."""
    wanted = set(map(id, trained))
    whole = [module for module in modules if wanted <= {id(p) for p in module.parameters()}] if wanted else []
    return min(whole, key=lambda module: sum(1 for _ in module.modules()), default=None)


def blocks_by_name(model: Module) -> dict[str, Module]:
    """Return the blocks that the script has listed, or that are found."""
    chosen = None if current.place() is None else blocks_chosen(model, current.here())
    if chosen is None:
        return dict(blocks_of(model))
    named = dict(model.named_modules())
    return {name: named[name] for name in chosen}


def seconds_of_a_byte() -> float:
    """Return the seconds per byte of a copy that no cache holds."""
    source = torch.ones(_COPIED >> 2)
    into, seconds = torch.empty_like(source), []
    for _ in range(_COPIES):
        begin = time.perf_counter()
        into.copy_(source)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) / _COPIED


def _block_of(name: str, blocks: dict[str, Module]) -> str:
    return next((block for block in blocks if name.startswith(f"{block}.")), "")


def storages_of(modules: list[Module]) -> Iterator[tuple[Storage, None]]:
    """Yield the storage of each parameter and buffer."""
    for module in modules:
        for x in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            with suppress(RuntimeError):  # a tensor without storage
                yield storage_of(local(x)), None


def _by_block(model: Module | None, blocks: dict[str, Module], by_module: dict[Module | None, int]) -> dict[str, int]:
    """Return bytes by the name of the block, in the model's order; the empty name has those in no block."""
    names = {} if model is None else {id(module): name for name, module in model.named_modules()}
    totals = dict.fromkeys([*blocks, ""], 0)
    for module, nbytes in by_module.items():
        totals[_block_of(f"{names.get(id(module), '')}.", blocks)] += nbytes
    return {name: nbytes for name, nbytes in totals.items() if nbytes}


def _size(p: Tensor, optimizer: Optimizer, used: int | None, block: str, rests: str | None) -> Size:
    """Return the size of a parameter; 32-bit copies of offloaded 16-bit tensors count as of 16 bits."""
    kept = [x for key, x in optimizer.state.get(p, {}).items() if isinstance(x, Tensor) and key != MASTER]
    like = sum(_bytes(x) for x in kept if x.shape == p.shape and p.dim())
    widened = like // 2 if rests is not None and p.element_size() == 2 else like
    return Size(
        numbers=p.numel(),
        rows=p.shape[0] if p.dim() else 1,
        bytes=_bytes(p),
        gathered_bytes=_bytes(p) if used is None else p.numel() * used,
        is_trained=p.requires_grad,
        kept_like=widened,
        kept_apart=sum(map(_bytes, kept)) - like,
        block=block,
    )


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _plain_name(optimizer: Optimizer) -> str:
    """The class that the script has chosen, not what `distribute` made of it."""
    kinds = type(optimizer).__mro__
    return next(kind.__name__ for kind in kinds if kind.__module__.partition(".")[0] != "quorate")


def mesh_of_one(world: World, **_: Any) -> Any:
    """Replaces `World.mesh`: alone, a mesh of many workers cannot be made."""
    return current.here().context(Meshes).mesh(world.wire, Axes(1, 1), world.device)


def live_alone(script: str, arguments: Sequence[str]) -> NoReturn:
    """Execute the script as `__main__`, with one worker and without records; any mesh is one of one worker."""
    worlds: Any = World
    worlds.mesh = mesh_of_one
    os.environ.update(OF_ONE_WORKER)
    sys.path.pop(0)  # the folder from which this program was started
    live_as_main(script, arguments)


def end_at_once() -> NoReturn:
    """End this process, after what was written; nothing that the script registered runs: it was only looked at."""
    sys.stdout.flush()
    flush()
    os._exit(0)


def main() -> NoReturn:
    """Do what the arguments say."""
    path, script, *arguments = sys.argv[1:]
    saved, watching = Saved(), ExitStack()

    def stepped(optimizer: Optimizer, *_: Any) -> NoReturn:
        measured = answer(optimizer, saved)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(measured, file)
        end_at_once()

    register_optimizer_step_post_hook(stepped)
    watching.enter_context(saved.watching())
    live_alone(script, arguments)


if __name__ == "__main__":
    main()
