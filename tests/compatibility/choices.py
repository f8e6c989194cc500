"""The axes of `make compatibility`, and the choices on each: which settings, optimizers and features are combined."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from quorate.aggregation import rules
from quorate.codecs import codecs
from quorate.means import reducers
from quorate.strategies import strategies
from tests.support.every_strategy import OF_FEW_STEPS

BASE = "all-reduce"
HOSTS = (BASE, "quorum", "local-sgd", "diloco", "parameter-server", "fed-avg", "d-psgd")
"""The strategies under which pairs of other choices are tried first."""


@dataclass(frozen=True, eq=False)
class Choice:
    """One choice on an axis: settings of `distribute`, and the parts of a `Training` that it changes."""

    axis: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    """Fields of `Training`, by name."""

    @property
    def in_processes(self) -> bool:
        """Whether the choice needs processes."""
        return self.axis in ("mesh", "world")


SOON: dict[str, dict[str, Any]] = {
    **OF_FEW_STEPS,
    "hierarchical-local-sgd": {"sync_every": 1, "across_every": 2},
    "streaming-diloco": {"overlap": 0},
    "slowmo": {"slow_every": 1},
    "easgd": {"sync_every": 1},
    "eamsgd": {"sync_every": 1},
    "symmetric-easgd": {"sync_every": 1},
    "post-local-sgd": {"after": 1},
    "fed-avg": {"sampled": 1.0},
    "fed-prox": {"sampled": 1.0},
    "fed-opt": {"sampled": 1.0},
    "scaffold": {"sampled": 1.0},
}
"""The settings with which strategies do within a few steps what they do in a long training."""
OPTIMIZERS = (
    "SGD with momentum",
    "AdamW",
    "Adagrad",
    "Adafactor",
    "Muon",
    "LARS",
    "LAMB",
    "AdaScale",
    "LBFGS",
    "sparse gradients",
)
LOOPS = ("GradScaler", "accumulation", "clipping", "several models", "closure", "frozen layers")
MESHES = ("zero=1", "zero=2", "zero=3", "offload", "tensor", "stages", "sequence", "experts")
OF_CODECS: dict[str, dict[str, Any]] = {"threshold": {"of": "absolute", "at": 0.01}}
"""The settings of codecs and rules without which they refuse to begin."""


def _strategy(name: str) -> Choice:
    fields = {field.name: field for field in dataclasses.fields(strategies.get(name))}
    soon = {"sync_every": 2} if "sync_every" in fields and name not in OF_FEW_STEPS else {}
    return Choice("strategy", name, soon | SOON.get(name, {}), {"strategy": name})


@cache
def choices() -> tuple[Choice, ...]:
    """Return the choices of all axes; the usual choice of an axis, which is nothing special, is not among them."""
    own = [name for name, place in strategies.places.items() if place.startswith("quorate.")]
    compressors = [*codecs.places, "power-sgd", "arc-top-k"]
    sums = [name for name in reducers.places if name not in ("dense", "auto", *compressors)]
    return (
        *map(_strategy, sorted(own, key=lambda name: (name != BASE, name))),
        *(
            Choice("codec", name, {"compress": name, "dense_below": 0, **OF_CODECS.get(name, {})})
            for name in compressors
        ),
        Choice("codec", "compress=auto", {"compress": "auto"}),
        *(Choice("reduce", name, {"reduce": name}) for name in sums),
        *(Choice("reduce", name, {"reduce": name}, {"is_alike": name == "majority"}) for name in rules.places),
        Choice("death", "a worker dies", {"on_death": "continue"}, {"ends": "dies"}),
        Choice("death", "the batch is kept", {"on_death": "continue", "batch": "kept"}, {"ends": "dies"}),
        Choice("death", "a worker joins", {"on_death": "continue"}, {"ends": "joins"}),
        *(
            Choice("momentum", f"momentum={name}", {"momentum": name}, {"momentum": 0.9})
            for name in ("average", "reset", "common", "worker")
        ),
        *(Choice("optimizer", name, {}, {"optimizer": name}) for name in OPTIMIZERS),
        *(Choice("loop", name, {}, {"loop": name}) for name in LOOPS),
        Choice("mean", "attack", {"attack": "sign-flip"}),
        Choice("mean", "on_anomaly", {"on_anomaly": "warn"}),
        Choice("mean", "reduce_dtype", {"reduce_dtype": "bfloat16"}),
        Choice("mean", "weight", {"weight": "examples"}),
        Choice("clients", "clients", {}, {"clients": True}),
        *(Choice("shrink", name, {}, {"shrink": name}) for name in ("prune", "low_rank", "cluster")),
        *(Choice("attention", name, {}, {"attention": name}) for name in ("window", "bigbird")),
        Choice("script", "script of DDP", {}, {"is_of_ddp": True}),
        *(Choice("mesh", name, {}, {"mesh": name}) for name in MESHES),
        Choice("world", "processes", {}, {"world": "processes"}),
        Choice("world", "hosts", {}, {"world": "hosts"}),
    )
