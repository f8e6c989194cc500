"""Names of strategies, codecs and ways to reduce, and of their settings, as types for editors and type checkers.

A test keeps them equal to the registries.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

StrategyName = Literal[
    "ad-psgd",
    "adaptive",
    "adaptive-local-sgd",
    "all-reduce",
    "async-local-sgd",
    "auto",
    "backup-workers",
    "bounded-staleness",
    "choco-sgd",
    "d-psgd",
    "d2",
    "dana",
    "dc-asgd",
    "dcd-psgd",
    "decoupled-diloco",
    "detox",
    "diloco",
    "downpour",
    "draco",
    "eager-averaging",
    "eager-majority",
    "eager-solo",
    "eamsgd",
    "easgd",
    "ecd-psgd",
    "fed-avg",
    "fed-buff",
    "fed-opt",
    "fed-prox",
    "gradient-coding",
    "group-averaging",
    "hierarchical-local-sgd",
    "hogwild",
    "local-sgd",
    "muloco",
    "noloco",
    "one-bit-adam",
    "one-bit-lamb",
    "osgp",
    "parameter-server",
    "post-local-sgd",
    "quorum",
    "relay",
    "robust",
    "scaffold",
    "sgp",
    "slowmo",
    "sparse-loco",
    "ssp",
    "streaming-diloco",
    "symmetric-easgd",
    "sync-backup",
    "zero-one-adam",
]

CodecName = Literal[
    "arc-top-k",
    "atomo",
    "auto",
    "blocks",
    "chunked-top-k",
    "demo",
    "dgc",
    "fp8",
    "half",
    "mask",
    "natural",
    "none",
    "one-bit",
    "power-sgd",
    "qsgd",
    "random-k",
    "sign",
    "terngrad",
    "threshold",
    "tiled-top-k",
    "top-k",
]

ReduceName = Literal[
    "adasum",
    "auto",
    "bucketing",
    "bulyan",
    "centered-clipping",
    "dense",
    "gather",
    "geometric-median",
    "halving-doubling",
    "hierarchical",
    "krum",
    "majority",
    "mean",
    "median",
    "monna",
    "multi-krum",
    "nearest-neighbors",
    "recursive-doubling",
    "ring",
    "tree",
    "trimmed-mean",
    "two-phase",
]

# fmt: off
_OfAll = TypedDict(  # noqa: UP013
    "_OfAll",
    {
        "across_every": Any, "act": Any, "after": Any, "agreement": Any, "alpha": Any, "at": Any, "averaging": Any,
        "backup": Any, "batch": Any, "beta": Any, "beta1": Any, "beta2": Any, "bits": Any, "block": Any, "bound": Any,
        "bucket": Any, "buffers": Any, "by": Any, "candidates": Any, "chunk": Any, "clip": Any, "clip_norm": Any,
        "code": Any, "compensation": Any, "compensation_decay": Any, "consensus_rate": Any, "consistent": Any,
        "correct": Any, "decay": Any, "delay_compensation": Any, "density": Any, "divide_by": Any, "double_every": Any,
        "doubles_after": Any, "drift": Any, "dropouts": Any, "dtype": Any, "dynamic": Any, "every": Any, "f": Any,
        "factor": Any, "format": Any, "fragments": Any, "fragments_by": Any, "freeze": Any, "grace": Any,
        "group_size": Any, "in_order": Any, "iterations": Any, "keep": Any, "late": Any, "late_aligned": Any,
        "late_alpha": Any, "late_cutoff": Any, "late_kappa": Any, "late_most": Any, "late_opposed": Any,
        "late_turned": Any, "late_weight": Any, "lateness": Any, "learners": Any, "least": Any, "levels": Any,
        "local_epochs": Any, "local_steps": Any, "longest": Any, "m": Any, "margin": Any, "masking": Any,
        "max_staleness": Any, "merge": Any, "micro_batches": Any, "min_rate": Any, "mixing": Any, "mode": Any,
        "momentum": Any, "momentum_every": Any, "most": Any, "mu": Any, "nesterov": Any, "noise": Any,
        "noise_seed": Any, "norm": Any, "of": Any, "on_death": Any, "on_error": Any, "outer": Any, "outer_device": Any,
        "outer_gain": Any, "outer_momentum": Any, "outer_rate": Any, "outer_reach": Any, "overlap": Any,
        "patience": Any, "pull_every": Any, "pulls": Any, "push_every": Any, "rank": Any, "replication": Any,
        "rounding": Any, "rule": Any, "s": Any, "sampled": Any, "scale": Any, "scaled": Any, "secure": Any,
        "secure_bits": Any, "secure_dropouts": Any, "server": Any, "server_rate": Any, "servers": Any,
        "shrunk_rate": Any, "size": Any, "slow_every": Any, "smallest": Any, "softsync": Any, "staleness_scaling": Any,
        "start": Any, "step_size": Any, "stragglers": Any, "sum_threads": Any, "sync_every": Any, "tau": Any,
        "tile": Any, "topology": Any, "total_steps": Any, "wait_for": Any, "warm_start": Any, "warmup_rounds": Any,
        "warmup_stages": Any, "weigh": Any, "window": Any,
    },
    total=False,
)
# fmt: on


class Settings(_OfAll, total=False):
    """Settings of all strategies, codecs and rules, and the options that say how means are formed."""

    compress: CodecName
    reduce: ReduceName
    error_feedback: bool | None
    error_decay: float
    clip_codes: bool
    dense: tuple[str, ...] | list[str]
    dense_below: int
    part_bytes: int | None
    first_part_bytes: int | None
    part_order: Literal["registration", "arrival"]
    part_layout: Literal["sizes", "measured"]
    part_overlap: bool
    part_channels: int
    autotune: bool | Literal["only"]
    attack: str
    on_anomaly: Literal["ignore", "warn", "skip"]
    reduce_dtype: Literal["float32", "bfloat16"]
