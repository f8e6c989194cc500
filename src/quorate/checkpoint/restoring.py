"""Restoring a worker from a checkpoint: its replica, and the state of its strategy, rounds and reducer.

The world may have another size than the one that wrote the checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import typing
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from quorate.checkpoint import generators
from quorate.checkpoint.encoding import ABOUT, decoded
from quorate.checkpoint.folder import rank_file, read_manifest, shard_file
from quorate.checkpoint.frozen import check_base, without_base, words_on_rates
from quorate.checkpoint.optimizers import plain_class, restore_optimizer
from quorate.checkpoint.participants import Distributed, Participant, Trained, set_steps
from quorate.checkpoint.parts import ROWS, STRATEGY, others_of
from quorate.checkpoint.pieces import fitted, piece_from, piece_in, shape_of, with_rows
from quorate.checkpoint.saving import saving
from quorate.checkpoint.schema import (
    PlainState,
    SharedKept,
    WorkerKept,
    check,
    check_extra,
    check_field,
    check_options,
    check_workers,
)
from quorate.checkpoint.stages import OldStages
from quorate.checkpoint.tensor_file import read_tensors
from quorate.checkpoint.vectors import KeptVectors, has_loose_tensors
from quorate.core.errors import CheckpointError, ConfigurationError, QuorateError
from quorate.core.neighbours import restore_round
from quorate.core.resize import ADAPTED, laws_of, resized
from quorate.core.vectors import Flat
from quorate.data.loader import Loaders
from quorate.observe.step_times import Timing
from quorate.replica.forms import forms_in, give_forms
from quorate.replica.optimizer_state import caches_in, write_back
from quorate.rounds.terms import check_change
from quorate.wire.current import Place


@dataclass
class Opened:
    """All of a checkpoint, checked by itself, before anything here is changed."""

    manifest: dict[str, Any]
    workers: list[dict[str, Any]]
    shared: list[dict[str, Any]]
    """By shard, as are the next two."""
    optimizers: dict[str, list[Any]]
    models: dict[str, list[tuple[dict[str, Tensor], Any]]]


def restore(place: Place, folder: Path, extras: Mapping[str, Any]) -> list[str]:
    """Restore the state of the worker that wrote `folder`, or of a similar one; return sentences about it. Raises
    `CheckpointError` for every fault; another checkpoint can be restored then."""
    try:
        return _restore(place, folder, _opened(folder), extras)
    except CheckpointError:
        raise
    except ConfigurationError as error:
        raise CheckpointError(str(error)) from error
    except QuorateError:
        raise  # a peer has failed
    except Exception as error:
        detail = str(error).strip().splitlines() or [""]
        raise CheckpointError(f"{folder.name} cannot be loaded: {type(error).__name__}: {detail[0]}") from error


def _opened(folder: Path) -> Opened:
    manifest = read_manifest(folder)
    workers = []
    for rank in manifest["ranks"]:
        name = rank_file(rank)
        workers.append(_read(folder / name))
        check(WorkerKept, workers[-1], name)
        generators.check(workers[-1]["generators"])
    check_workers(workers, manifest.get("round"))
    optimizers, models = {}, {}
    for about in manifest["optimizers"].values():
        optimizers[about["optimizer"]] = [_read(path) for path in _of_shards(folder, about["optimizer"], about)]
        for kept in optimizers[about["optimizer"]]:
            check(PlainState, kept, about["optimizer"])
        if about["model"] not in models:
            models[about["model"]] = [_read_model(path) for path in _of_shards(folder, about["model"], about)]
    most = {"shards": max(about["shards"] for about in manifest["optimizers"].values())}
    shared = [_read(path) for path in _of_shards(folder, STRATEGY, most) if path.name in manifest["files"]]
    for kept in shared:
        check(dict[str, SharedKept], kept, STRATEGY)
    return Opened(manifest, workers, shared, optimizers, models)


def _of_shards(folder: Path, name: str, about: dict[str, Any]) -> list[Path]:
    return [folder / shard_file(name, about["shards"], shard) for shard in range(about["shards"])]


def _restore(place: Place, folder: Path, opened: Opened, extras: Mapping[str, Any]) -> list[str]:
    rank, size = place.wire.rank, place.wire.size
    manifest, workers = opened.manifest, opened.workers
    past = int(manifest["workers"])
    everything = place.context(Trained)
    sentences = [] if past == size else [f"resumed with {size} worker{'s' * (size > 1)} what {past} had begun"]
    chosen = []
    for entry in everything.ordered:
        about = manifest["optimizers"].get(entry.name)
        if about is None:
            names = ", ".join(sorted(manifest["optimizers"]))
            raise CheckpointError(f'{folder.name} has no optimizer "{entry.name}"; it has {names}')
        if any(entry.name not in worker["optimizers"] for worker in workers):
            raise CheckpointError(f'a rank\'s file has no optimizer "{entry.name}", and the manifest has')
        algorithm = plain_class(entry.optimizer).__name__
        if about["algorithm"] not in (algorithm, "_CountedAlone"):  # which old checkpoints of one worker have
            raise CheckpointError(
                f"it has the state of {about['algorithm']}, and the script's optimizer is {algorithm}; resume with the "
                "same optimizer, or load the model alone in a new run"
            )
        give_forms_of(entry, opened.models[about["model"]][0][0])
        chosen.append((entry, about, OldStages(about, opened.optimizers[about["optimizer"]], entry)))
    models_of = {id(entry.model): (entry, there, opened.models[about["model"]]) for entry, about, there in chosen[::-1]}
    for entry, there, models in models_of.values():  # before replicas of which each optimizer has a part of the model
        base = manifest["optimizers"][entry.name].get("base")
        if base is not None:
            check_base(entry.model, base, folder.name)
        _restore_model(entry, *there.model(models), has_base=base is None)
    for entry, about, there in chosen:
        shards = about["shards"]
        optimizers = opened.optimizers[about["optimizer"]]
        if there.is_cut_anew:
            stages = max(1, len(entry.stages))
            now = _layout(stages, entry.shard[0] // stages)
            sentences.append(f"resumed in {now} what was in {_layout(there.count, shards // there.count)}")
        restore_optimizer(entry, there.optimizer(optimizers))
        trees = [tree[entry.name] for tree in opened.shared if entry.name in tree]
        kept = there.joined(trees[: max(1, shards)]) if trees else {"others": [], "state": {}}
        _copy_all(others_of(entry), kept["others"], f"parameters that {folder.name} keeps beside its model")
        own = [worker["optimizers"][entry.name] for worker in workers]
        olds = [there.replica(own[first : first + shards]) for first in range(0, len(own), shards)]
        place_now = (rank, size)
        if entry.coordinates is not None:
            place_now = (entry.coordinates.replica, entry.coordinates.axes.replicas)
        _restore_own(place, entry, olds, *place_now)
        state = about["strategy"], kept["state"]
        sentences += restore_state(entry, *state, olds, *place_now, is_cut_anew=there.is_cut_anew)
        if entry.worker is not None and not entry.worker.finished:
            restore_round(entry.worker.state, entry.worker.neighbours)
            edited = [old.get("edited", False) for old in olds]
            is_same = len(olds) == place_now[1]
            entry.worker.resumed(is_edited=edited[place_now[0]] if is_same else any(edited))
    cautions = (words_on_rates(entry.model, size, past) for entry in everything.ordered)
    sentences += dict.fromkeys(words for words in cautions if words is not None)
    saving(place).go_on(int(manifest["step"]))
    place.context(Loaders).go_on([worker["loaders"] for worker in workers])
    _restore_extras(folder, extras, workers, rank)
    generators_of = [worker["generators"] for worker in workers]
    drawn = min((rank - rank % entry.parts for entry in everything.ordered), default=rank)
    if drawn < past:  # workers that compute layers together draw the same numbers
        generators.restore(generators_of[drawn])
    return sentences


def give_forms_of(entry: Distributed, tensors: Mapping[str, Tensor]) -> None:
    """Give weights of the model the forms that they have in a saved model: see `replica.forms`."""
    forms = {} if entry.coordinates is not None else forms_in(tensors)
    if give_forms(entry.model, forms, [entry.optimizer]):
        entry.laid_out()


def _layout(stages: int, shards: int) -> str:
    if stages == 1:
        return "whole replicas" if shards == 1 else f"{shards} shards"
    return f"{stages} stages" if shards == 1 else f"{stages} stages of {shards} shards"


def _read(path: Path) -> Any:
    tensors, about = read_tensors(path)
    if ABOUT not in about:
        raise CheckpointError(f"{path.parent.name}/{path.name} has no entry beside its tensors")
    return decoded(about[ABOUT], tensors, prefix="")


def _read_model(path: Path) -> tuple[dict[str, Tensor], Any]:
    tensors, about = read_tensors(path)
    rest = decoded(about[ABOUT], tensors, prefix="extra state") if ABOUT in about else {}
    try:
        rows_by_name = dict(json.loads(about.get(ROWS, "{}")))
        tensors = tensors | {key: with_rows(tensors[key], piece_from(rows)) for key, rows in rows_by_name.items()}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path.name} does not say which rows it has: {error!r}") from None
    if not isinstance(rest, dict):
        raise CheckpointError(f"{path.name} does not hold what it should: its extra state has no names")
    return tensors, rest


def _restore_model(
    entry: Distributed, tensors: Mapping[str, Tensor], rest: Mapping[str, Any], *, has_base: bool = True
) -> None:
    elsewhere = entry.elsewhere
    own = {key: x for key, x in entry.model.state_dict().items() if key not in elsewhere}
    if not has_base:
        own = without_base(own, entry.model)
    state = {key: x for key, x in tensors.items() if key in own or not rest} | dict(rest)
    for key in own.keys() ^ state.keys():
        where = f"the script's model has a {key}, and the checkpoint's has none"
        raise CheckpointError(where if key in own else f"the checkpoint's model has a {key}, and the script's has none")
    for key, x in state.items():
        own_value = own[key]
        if isinstance(x, Tensor) != isinstance(own_value, Tensor):
            raise CheckpointError(f"{key} is not a tensor in the checkpoint, or none here")
        if isinstance(x, Tensor) and x.is_complex() != own_value.is_complex():
            raise CheckpointError(f"{key} is {x.dtype} in the checkpoint, but {own_value.dtype} here")
        if isinstance(x, Tensor) and shape_of(x) != own_value.shape:
            raise CheckpointError(
                f"{key} has the shape {shape_of(x)} in the checkpoint, but {tuple(own_value.shape)} here"
            )
    fitting = {key: fitted(own[key], x) if isinstance(x, Tensor) else x for key, x in state.items()}
    try:
        entry.model.load_state_dict(fitting, strict=entry.pipeline is None and has_base)
    except RuntimeError as error:
        why = str(error).splitlines()[-1].strip()
        raise CheckpointError(f"the model cannot load its saved state: {why}") from error


def _copy_all(there: Sequence[Tensor], kept: list[Tensor], nouns: str) -> None:
    if [x.shape for x in there] != [shape_of(x) for x in kept]:
        raise CheckpointError(f"the {nouns} do not match the script's optimizer")
    with torch.no_grad():
        for parameter, x in zip(there, kept, strict=True):
            parameter.copy_(fitted(parameter, x))


def _restore_own(place: Place, entry: Distributed, olds: list[dict[str, Any]], rank: int, size: int) -> None:
    """Restore each worker's own state; in a world of another size a new worker starts from rank 0's."""
    old = olds[rank] if rank < len(olds) else olds[0]
    same = len(olds) == size
    kept = [other["replica"] for other in olds]
    if entry.is_apart and all(replica is not None for replica in kept):
        _restore_replica(entry, kept, rank, size)
    check_options(entry.optimizer.param_groups, old["options"], "the options in the rank's file")
    for group, options in zip(entry.optimizer.param_groups, old["options"], strict=True):
        group.update(options)
    buffers, caches = dict(entry.model.named_buffers()), caches_in(entry.model)
    with torch.no_grad():
        for name, x in old["buffers"].items():
            if name not in buffers or (name in caches and buffers[name].shape != x.shape):
                continue
            if buffers[name].shape != x.shape:
                raise CheckpointError(f"the buffer {name} has the shape {tuple(x.shape)} in the checkpoint")
            write_back([buffers[name]], x.reshape(-1))
    step = old["step"] if same else round(sum(other["step"] for other in olds) / len(olds))
    set_steps(place.context(Timing), entry, step, old["updates"])


def _restore_replica(entry: Distributed, kept: list[dict[str, Any]], rank: int, size: int) -> None:
    """Restore each worker's replica; in a world of another size, or where all share one, the mean of the old ones."""
    if len(kept) == size:
        restore_optimizer(entry, kept[rank]["optimizer"])
    if any(replica["parameters"] is None for replica in kept):
        return  # all shared one, which the model holds already
    if len(kept) == size and not entry.is_shared:
        numbers = kept[rank]["parameters"]
    else:
        columns = zip(*(replica["parameters"] for replica in kept), strict=True)
        numbers = [_mean(column) for column in columns]
    _copy_all(entry.parameters, numbers, "parameters of the replicas")


def _mean(column: Sequence[Tensor]) -> Tensor:
    mean, rows = torch.stack([x.double() for x in column]).mean(0), piece_in(column[0])
    return mean if rows is None else with_rows(mean, rows)


def _restore_extras(folder: Path, extras: Mapping[str, Any], workers: list[dict[str, Any]], rank: int) -> None:
    order = [*([rank] if rank < len(workers) else []), *range(len(workers))]
    for name, thing in extras.items():
        kept = next((workers[other]["extras"][name] for other in order if name in workers[other]["extras"]), None)
        if kept is None:
            names = ", ".join(sorted({key for worker in workers for key in worker["extras"]})) or "nothing"
            raise CheckpointError(
                f"{folder.name} keeps no {name}; besides model and optimizer it keeps {names}, as was given to save()"
            )
        check_extra(thing, kept, name)
        thing.load_state_dict(kept)
        if isinstance(thing, LRScheduler):
            _ask_for_rates(thing)


def _ask_for_rates(scheduler: LRScheduler) -> None:
    """Raise the error that `scheduler`, just loaded, would raise in a later step; optimizers stay as they are."""
    groups = scheduler.optimizer.param_groups
    before = [dict(group) for group in groups]
    with warnings.catch_warnings(), suppress(NotImplementedError):  # those made of others cannot be asked
        warnings.simplefilter("ignore")  # that it was no step that asked
        scheduler.get_lr()
    for group, options in zip(groups, before, strict=True):
        group.update(options)  # some write momenta as they are asked


def restore_state(
    entry: Distributed,
    strategy: str | None,
    shared: dict[str, Any],
    olds: list[dict[str, Any]],
    rank: int,
    size: int,
    *,
    is_cut_anew: bool = False,
) -> list[str]:
    """Restore the optimizer's strategy from the old workers' state; return sentences about it.

    A replica in shards counts as one worker; `is_cut_anew`: in another number of shards than before.

    Raises `CheckpointError` where a field cannot continue in a world of this size.
    """
    worker, sentences = entry.worker, []
    rounds = [old["rounds"] for old in olds]
    if entry.is_in_rounds and worker is not None and all(kept is not None for kept in rounds):
        for old in olds:
            _check_rounds(entry, worker, old, is_same=len(olds) == size)
        sentences += worker.rounds.restore(rounds, 0.0)
    elif entry.is_in_rounds and worker is not None:
        sentences += worker.rounds.restore([], round(sum(old["step"] for old in olds) / len(olds)))
    elif any(kept is not None and kept["entries"] for kept in rounds):
        count = sum(gradient["count"] for kept in rounds for gradient in kept["entries"] if kept is not None)
        has_ended = worker is not None and worker.finished
        why = f"{entry.name} has finished" if has_ended else f"{entry.strategy} takes none that are late"
        sentences.append(f"{count} gradients that were pending are left out: {why}")
    reducers = [old.get("reducer", {}) for old in olds]
    if is_cut_anew and any(reducers):
        sentences.append(f"the memory of the codec of {entry.strategy} starts empty: it was of other shards")
    else:
        sentences += _restore_reducer(entry, reducers, rank, size)
    laws = laws_of(None if worker is None else worker.state)
    if worker is None or not laws:
        return sentences
    if strategy != entry.strategy:
        return [*sentences, f"the state of {entry.strategy} starts empty: the checkpoint is of {strategy}"]
    kinds = _kinds_of(worker.state)
    adapted = {field.name for field in dataclasses.fields(worker.state) if field.metadata.get(ADAPTED)}
    for name, law in laws.items():
        if law == "drop":
            continue
        kept = [shared] if law == "same" else [old["state"] for old in olds]
        if any(name not in fields for fields in kept):
            raise CheckpointError(f"the checkpoint has no {name}, which {entry.strategy} keeps")
        if is_cut_anew and any(has_loose_tensors(fields[name]) for fields in kept):
            sentences.append(f"{name} of {entry.strategy} starts empty: it was of other shards")
            continue
        values = [KeptVectors(worker.replica).read(fields[name]) for fields in kept]
        for field_value in values if name in kinds else ():
            now = None if name in adapted else getattr(worker.state, name)
            check_field(kinds[name], field_value, now, f"{name} of {entry.strategy}")
        value = resized(law, f"{name} of {entry.strategy}", values, rank, size)
        object.__setattr__(worker.state, name, value)
        if len(olds) != size and law != "same":
            sentences.append(f"resized by the law {law}: {name} of {entry.strategy}")
    return sentences


def _restore_reducer(entry: Distributed, olds: list[dict[str, Any]], rank: int, size: int) -> list[str]:
    """Restore the reducer of the optimizer's means; it begins again where another reducer had kept its state."""
    state = None if entry.worker is None else entry.worker.reducer_state
    laws = laws_of(state)
    if not laws:
        return ["what codecs had left out of gradients is lost: nothing is compressed here"] if any(olds) else []
    assert entry.worker is not None
    for name, law in laws.items():
        now = getattr(state, name)
        values = [KeptVectors(entry.worker.replica).read(old.get(name)) for old in olds]
        if any(not _is_like(value, now) for value in values):
            return [
                f"the memory of the codec of {entry.strategy} starts empty: the checkpoint has another one's, or none"
            ]
        value = resized(law, f"{name} of the codec", values, rank, size)
        if law == "total" or not _written(now, value):  # of a total, `now` has copies, and more than a worker keeps
            setattr(state, name, value)
    return []


def _written(now: Any, value: Any) -> bool:
    """Return whether the tensors of `now` have taken the numbers of `value`: others may hold views of them."""
    if isinstance(now, dict):
        now.update({key: x for key, x in value.items() if not _written(now.get(key), x)})
        return True
    if isinstance(now, Flat) or (isinstance(now, Tensor) and now.shape == value.shape):
        now.copy_(value)
        return True
    return False


def _is_like(value: Any, now: Any) -> bool:
    if isinstance(now, dict) and isinstance(value, dict):
        counts = all(isinstance(x, int) for x in (*now.values(), *value.values()))  # there may be more by now
        return counts or (value.keys() == now.keys() and all(_is_like(value[key], now[key]) for key in now))
    return type(value) is type(now)


def _check_rounds(entry: Distributed, worker: Participant, old: dict[str, Any], *, is_same: bool) -> None:
    """Raise `CheckpointError` for options that the optimizer cannot have, and settings that no quorum can have."""
    kept, groups = old["rounds"], entry.optimizer.param_groups
    for options in (kept["best_options"], kept["options"]):
        if options is None:
            continue
        check_options(groups[: len(options)], options, "the options that rounds keep")
        for group, saved, numbers in zip(groups, old["options"], options, strict=False):
            unknown = sorted(numbers.keys() - saved.keys() - group.keys())
            if unknown:
                raise CheckpointError(f"the options that rounds keep hold {unknown[0]}, which the optimizer has not")
    if is_same:
        check_change(worker.rounds.agreed, kept.get("settings", {}))


def _kinds_of(state: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(type(state))
    except (NameError, TypeError):
        return {}
