"""Names as users write them: in another case, without dashes, or as a paper calls the method."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from quorate.cli.listing import registry
from quorate.core.errors import ConfigurationError, unknown

PUBLISHED = {
    "1-bit Adam": "one-bit-adam",
    "1-bit LAMB": "one-bit-lamb",
    "0/1 Adam": "zero-one-adam",
    "OneBitAdam": "one-bit-adam",
    "OneBitLamb": "one-bit-lamb",
    "ZeroOneAdam": "zero-one-adam",
    "asgd": "parameter-server:mode=async",
    "asynchronous DiLoCo": "async-local-sgd",
    "asynchronous SGD": "parameter-server:mode=async",
    "BMUF": "diloco:outer_rate=1,outer_momentum=0.9,nesterov=false",
    "DANA-Slim": "dana",
    "Downpour SGD": "downpour",
    "elastic averaging": "easgd",
    "FedAdagrad": "fed-opt:server=adagrad",
    "FedAdam": "fed-opt:server=adam",
    "FedYogi": "fed-opt:server=yogi",
    "GASLoC": "noloco",
    "gap-aware SGD": "parameter-server:mode=async,staleness_scaling=gap",
    "HeLoCo": "async-local-sgd:late=turn",
    "Horovod": "all-reduce",
    "OpenDiLoCo": "diloco",
    "stale synchronous parallel": "ssp",
    "synchronous SGD": "all-reduce",
    "Adasum": "all-reduce:reduce=adasum",
}
"""Published methods that are a strategy with settings here; the page "Which strategy?" has them too."""

_SHARDS = "a model in shards is --zero 1, 2 or 3, or --mesh shards=S, beside any strategy"
_STAGES = "a model in stages is --mesh stages=L, beside any strategy"
_TENSOR = "layers are divided by --mesh tensor=T, beside any strategy"
ELSEWHERE = {
    "eager-SGD": "eager-SGD is eager-solo or eager-majority",
    **dict.fromkeys(("FSDP", "FSDP2", "HSDP", "ZeRO", "ZeRO-1", "ZeRO-2", "ZeRO-3", "DeepSpeed", "shard"), _SHARDS),
    **dict.fromkeys(("pipeline", "pipeline parallel", "PP", "GPipe", "1F1B"), _STAGES),
    **dict.fromkeys(("tensor", "tensor parallel", "TP", "Megatron"), _TENSOR),
}
"""Sentences about names that are options, or several strategies."""

_FAMILIES_OF_SETTINGS = {
    "compress": ("codecs", "reducers"),
    "reduce": ("rules", "reducers"),
    "topology": ("topologies",),
}


def folded(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


_PUBLISHED = {folded(name): use for name, use in PUBLISHED.items()}
_ELSEWHERE = {folded(name): sentence for name, sentence in ELSEWHERE.items()}


def known_as(name: str, *families: str) -> str:
    """Return how `families` write the name, with settings for a published strategy; an unknown name as it is."""
    names = [known for family in families for known in registry(family)]
    if name in names or name.endswith(".py"):
        return name
    written = {folded(known): known for known in names}
    published = _PUBLISHED.get(folded(name), name) if "strategies" in families else name
    return written.get(folded(name), published) if folded(name) else name


def setting_known_as(key: str, value: Any) -> Any:
    """Return the value of a setting; the name of a codec, a rule or a topology as its family writes it."""
    families = _FAMILIES_OF_SETTINGS.get(key)
    if families is None or not isinstance(value, str):
        return value
    name, colon, settings = value.partition(":")
    return f"{known_as(name, *families)}{colon}{settings}"


def unknown_name(kind: str, name: str, known: Iterable[str], family: str = "") -> ConfigurationError:
    """Return the error for an unknown name: what has it here, or the nearest names, and the command that lists all."""
    sentence = _ELSEWHERE.get(folded(name))
    if sentence is not None:
        return ConfigurationError(f'unknown {kind} "{name}": {sentence}')
    return unknown(kind, name, known, listed_by=f"quorate list {family}".rstrip())
