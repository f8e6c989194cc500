"""What a strategy, its rounds and its reducer remember, in a world that may have another size than the one that kept
it."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from torch import Tensor

from quorate.checkpoint.participants import Distributed, Participant
from quorate.checkpoint.schema import check_field, check_options
from quorate.checkpoint.vectors import KeptVectors, has_loose_tensors
from quorate.core.errors import CheckpointError
from quorate.core.resize import ADAPTED, laws_of, resized
from quorate.core.vectors import Flat
from quorate.rounds.terms import check_change


def restore_state(
    one: Distributed,
    strategy: str | None,
    shared: dict[str, Any],
    olds: list[dict[str, Any]],
    rank: int,
    size: int,
    *,
    is_cut_anew: bool = False,
) -> list[str]:
    """Give the optimizer's strategy what the old workers have kept; returns what is to be said about it.

    A replica in shards counts as one worker; `is_cut_anew`: in another number of shards than before.

    Raises `CheckpointError` where a field cannot go on in a world of this size.
    """
    worker, sentences = one.worker, []
    rounds = [old["rounds"] for old in olds]
    if worker is not None and worker.has_rounds and all(kept is not None for kept in rounds):
        for old in olds:
            _check_rounds(one, worker, old, is_same=len(olds) == size)
        sentences += worker.rounds.restore(rounds)
    elif any(kept is not None and kept["entries"] for kept in rounds):
        count = sum(entry["count"] for kept in rounds for entry in kept["entries"])
        sentences.append(f"{count} gradients that were pending are left out: {one.strategy} takes none that are late")
    reducers = [old.get("reducer", {}) for old in olds]
    if is_cut_anew and any(reducers):
        sentences.append(f"what the codec of {one.strategy} remembers begins anew: it was of other shards")
    else:
        sentences += _restore_reducer(one, reducers, rank, size)
    laws = laws_of(None if worker is None else worker.state)
    if worker is None or not laws:
        return sentences
    if strategy != one.strategy:
        return [*sentences, f"the state of {one.strategy} begins anew: the checkpoint is of {strategy}"]
    kinds = _kinds_of(worker.state)
    adapted = {field.name for field in dataclasses.fields(worker.state) if field.metadata.get(ADAPTED)}
    for name, law in laws.items():
        if law == "drop":
            continue
        kept = [shared] if law == "same" else [old["state"] for old in olds]
        if any(name not in fields for fields in kept):
            raise CheckpointError(f"the checkpoint has no {name}, which {one.strategy} keeps")
        if is_cut_anew and any(has_loose_tensors(fields[name]) for fields in kept):
            sentences.append(f"{name} of {one.strategy} begins anew: it was of other shards")
            continue
        values = [KeptVectors(worker.replica).read(fields[name]) for fields in kept]
        for given in values if name in kinds else ():
            now = None if name in adapted else getattr(worker.state, name)
            check_field(kinds[name], given, now, f"{name} of {one.strategy}")
        value = resized(law, f"{name} of {one.strategy}", values, rank, size)
        object.__setattr__(worker.state, name, value)
        if len(olds) != size and law != "same":
            sentences.append(f"resized by the law {law}: {name} of {one.strategy}")
    return sentences


def _restore_reducer(one: Distributed, olds: list[dict[str, Any]], rank: int, size: int) -> list[str]:
    """The same of what the reducer of the optimizer's means remembers; it begins anew where another one had kept it."""
    state = None if one.worker is None else one.worker.reducer_state
    laws = laws_of(state)
    if not laws:
        return ["what codecs had left out of gradients is lost: nothing is compressed here"] if any(olds) else []
    assert one.worker is not None
    for name, law in laws.items():
        now = getattr(state, name)
        values = [KeptVectors(one.worker.replica).read(old.get(name)) for old in olds]
        if any(not _is_like(value, now) for value in values):
            return [
                f"what the codec of {one.strategy} remembers begins anew: the checkpoint has another one's, or none"
            ]
        value = resized(law, f"{name} of the codec", values, rank, size)
        if law == "total" or not _written(now, value):  # of a total, `now` has copies, and more than a worker keeps
            setattr(state, name, value)
    return []


def _written(now: Any, value: Any) -> bool:
    """Whether the tensors of `now` have taken the numbers of `value`: others may hold views of them."""
    if isinstance(now, dict):
        now.update({key: one for key, one in value.items() if not _written(now.get(key), one)})
        return True
    if isinstance(now, Flat) or (isinstance(now, Tensor) and now.shape == value.shape):
        now.copy_(value)
        return True
    return False


def _is_like(value: Any, now: Any) -> bool:
    if isinstance(now, dict) and isinstance(value, dict):
        counts = all(isinstance(one, int) for one in (*now.values(), *value.values()))  # there may be more by now
        return counts or (value.keys() == now.keys() and all(_is_like(value[key], now[key]) for key in now))
    return type(value) is type(now)


def _check_rounds(one: Distributed, worker: Participant, old: dict[str, Any], *, is_same: bool) -> None:
    """Raise `CheckpointError` for options that the optimizer cannot have, and settings that no quorum can."""
    kept, groups = old["rounds"], one.optimizer.param_groups
    for options in (kept["best_options"], kept["options"]):
        if options is None:
            continue
        check_options(groups[: len(options)], options, "the options that rounds keep")
        for group, known, numbers in zip(groups, old["options"], options, strict=False):
            unknown = sorted(numbers.keys() - known.keys() - group.keys())
            if unknown:
                raise CheckpointError(f"the options that rounds keep hold {unknown[0]}, which the optimizer has not")
    if is_same:
        check_change(worker.rounds.agreed, kept.get("settings", {}))


def _kinds_of(state: Any) -> dict[str, Any]:
    """The types of a state's fields, where they can be told."""
    try:
        return typing.get_type_hints(type(state))
    except (NameError, TypeError):
        return {}
