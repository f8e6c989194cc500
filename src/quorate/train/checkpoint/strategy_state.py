"""A strategy's state and its rounds, in a world that may have another size than the one that kept them."""

from __future__ import annotations

from typing import Any

from quorate.core.errors import CheckpointError
from quorate.core.resize import laws_of, resized
from quorate.train.checkpoint.trained import Distributed
from quorate.train.checkpoint.vectors import parts_as_flats


def restore_state(
    one: Distributed, strategy: str | None, shared: dict[str, Any], olds: list[dict[str, Any]], rank: int, size: int
) -> list[str]:
    """Give the optimizer's strategy what the old workers have kept; returns what is to be said about it.

    Raises `CheckpointError` where a field cannot go on in a world of this size.
    """
    worker, sentences = one.worker, []
    rounds = [old["rounds"] for old in olds]
    if worker is not None and worker.has_rounds and all(kept is not None for kept in rounds):
        sentences += worker.rounds.restore(rounds)
    elif any(kept is not None and kept["entries"] for kept in rounds):
        count = sum(entry["count"] for kept in rounds for entry in kept["entries"])
        sentences.append(f"{count} gradients that were pending are left out: {one.strategy} takes none that are late")
    laws = laws_of(None if worker is None else worker.state)
    if worker is None or not laws:
        return sentences
    if strategy != one.strategy:
        return [*sentences, f"the state of {one.strategy} begins anew: the checkpoint is of {strategy}"]
    for name, law in laws.items():
        if law == "drop":
            continue
        kept = [shared] if law == "same" else [old["state"] for old in olds]
        if any(name not in fields for fields in kept):
            raise CheckpointError(f"the checkpoint has no {name}, which {one.strategy} keeps")
        values = [parts_as_flats(fields[name], worker.peers.layout) for fields in kept]
        value = resized(law, f"{name} of {one.strategy}", values, rank, size)
        object.__setattr__(worker.state, name, value)
        if len(olds) != size and law != "same":
            sentences.append(f"resized by the law {law}: {name} of {one.strategy}")
    return sentences
