"""Distributed training in PyTorch in which how workers agree is one argument.

The API: `join` the world, `distribute` the optimizer, read data from a `loader`, `log` what is worth keeping, `save` a
checkpoint and `load` it. Each is imported when it is first used, so that the command line starts without torch.
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from quorate import attention as attention
    from quorate import optim as optim
    from quorate import shrink as shrink
    from quorate import strategies as strategies
    from quorate.attention.sparse import sparse_attention as sparse_attention
    from quorate.data.files.files import files as files
    from quorate.data.loading import loader as loader
    from quorate.data.loading import shard as shard
    from quorate.launch.worker.checked_pattern import CheckedPattern as CheckedPattern
    from quorate.launch.worker.checkpoints import load as load
    from quorate.launch.worker.checkpoints import save as save
    from quorate.launch.worker.join import join as join
    from quorate.launch.worker.recording import log as log
    from quorate.launch.worker.world import World as World
    from quorate.notebook.launching import launch as launch
    from quorate.notebook.reporting import report as report
    from quorate.optim.parameter_groups import parameter_groups as parameter_groups
    from quorate.sharding.experts import Experts as Experts
    from quorate.sharding.parallelize import parallelize as parallelize
    from quorate.sharding.sequence import sequence_attention as sequence_attention
    from quorate.sharding.sequence import sequence_mean as sequence_mean
    from quorate.sharding.sequence import sequence_piece as sequence_piece
    from quorate.sharding.tensor.branches import branches as branches
    from quorate.sharding.tensor.finding import tensor_plan as tensor_plan
    from quorate.sharding.whole_models import whole as whole
    from quorate.train.adversarial import adversarial as adversarial
    from quorate.train.batch_norm import ghost_batch_norm as ghost_batch_norm
    from quorate.train.batch_norm import sync_batch_norm as sync_batch_norm
    from quorate.train.distribute import distribute as distribute
    from quorate.train.distributed_optimizer import DistributedOptimizer as DistributedOptimizer
    from quorate.train.example_schedule import schedule as schedule
    from quorate.train.forward_backward import forward_backward as forward_backward
    from quorate.train.gathered import gathered as gathered
    from quorate.train.privacy import privacy_spent as privacy_spent

__all__ = [
    "CheckedPattern",
    "DistributedOptimizer",
    "Experts",
    "World",
    "adversarial",
    "attention",
    "branches",
    "distribute",
    "files",
    "forward_backward",
    "gathered",
    "ghost_batch_norm",
    "join",
    "launch",
    "load",
    "loader",
    "log",
    "optim",
    "parallelize",
    "parameter_groups",
    "privacy_spent",
    "report",
    "save",
    "schedule",
    "sequence_attention",
    "sequence_mean",
    "sequence_piece",
    "shard",
    "shrink",
    "sparse_attention",
    "strategies",
    "sync_batch_norm",
    "tensor_plan",
    "whole",
]

_PLACES = {
    "adversarial": "quorate.train.adversarial",
    "join": "quorate.launch.worker.join",
    "load": "quorate.launch.worker.checkpoints",
    "save": "quorate.launch.worker.checkpoints",
    "log": "quorate.launch.worker.recording",
    "CheckedPattern": "quorate.launch.worker.checked_pattern",
    "Experts": "quorate.sharding.experts",
    "World": "quorate.launch.worker.world",
    "distribute": "quorate.train.distribute",
    "DistributedOptimizer": "quorate.train.distributed_optimizer",
    "forward_backward": "quorate.train.forward_backward",
    "gathered": "quorate.train.gathered",
    "parallelize": "quorate.sharding.parallelize",
    "branches": "quorate.sharding.tensor.branches",
    "sequence_attention": "quorate.sharding.sequence",
    "sequence_mean": "quorate.sharding.sequence",
    "sequence_piece": "quorate.sharding.sequence",
    "whole": "quorate.sharding.whole_models",
    "tensor_plan": "quorate.sharding.tensor.finding",
    "ghost_batch_norm": "quorate.train.batch_norm",
    "sync_batch_norm": "quorate.train.batch_norm",
    "parameter_groups": "quorate.optim.parameter_groups",
    "privacy_spent": "quorate.train.privacy",
    "schedule": "quorate.train.example_schedule",
    "loader": "quorate.data.loading",
    "shard": "quorate.data.loading",
    "sparse_attention": "quorate.attention.sparse",
    "files": "quorate.data.files.files",
}

_PACKAGES = {name: f"quorate.{name}" for name in ("attention", "launch", "optim", "report", "shrink", "strategies")}
"""Subpackages of the public API; `launch` and `report` are also callable."""
_PACKAGES |= {name: f"quorate.{name}" for name in ("jax", "keras", "tf")}  # not in __all__: they need extras


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("quorate.core.installed").version_of("quorate") or "0+source"
    if name in _PACKAGES:
        return importlib.import_module(_PACKAGES[name])
    if name not in _PLACES:
        raise AttributeError(f"module 'quorate' has no attribute {name!r}; its public names are {', '.join(__all__)}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def _warn_of_another_distribution() -> None:
    """On PyPI `quorate` is another program; it writes the same folder as the distribution `torch-quorate`."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        names = {name.partition("-")[0].lower() for name in os.listdir(folder) if name.endswith(".dist-info")}
    except OSError:  # it lies in an archive
        return
    if {"quorate", "torch_quorate"} <= names:
        warnings.warn(
            f"another program called quorate is installed in {folder} too, and the two overwrite each other's files; "
            "uninstall both distributions, quorate and torch-quorate, then install Quorate from its clone again",
            stacklevel=2,
        )


_warn_of_another_distribution()
