"""The required form of a checkpoint's manifest and trees: checksums only detect later changes of a file.

All types are strict. A checkpoint that passes can be read without leaving its folder, or the bounds of an array.
Whether it fits this script's model and optimizer is checked later, where they can be compared.

Trees of rounds have a schema of their own here: the rounds, their numbers and their vectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, with_config
from torch import Tensor
from typing_extensions import TypedDict

from quorate.checkpoint.encoding import FLAT, PIECES
from quorate.checkpoint.pieces import leaves
from quorate.core.errors import CheckpointError
from quorate.data.position import Position
from quorate.data.streams.position import StreamPosition

MOST_WORKERS = 1_000_000
STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True, extra="ignore")

Count = Annotated[int, Field(ge=0, le=2**53)]
Workers = Annotated[int, Field(ge=1, le=MOST_WORKERS)]
Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Whole = dict[Literal["\x00flat"], Annotated[list[Tensor], Field(min_length=1)]]
_InPieces = dict[Literal["\x00pieces"], Annotated[list[dict[str, Tensor] | Tensor], Field(min_length=2, max_length=2)]]
Vector = Annotated[_Whole | _InPieces, Field(min_length=1)]
"""Over all parameters, by parts or by their names."""
assert (FLAT, PIECES) == ("\x00flat", "\x00pieces")


@with_config(STRICT)
class _EntryKept(TypedDict):
    version: Annotated[int, Field(ge=-1, le=2**53)]
    weight: Finite
    count: Count
    vector: Vector


@with_config(STRICT)
class _LedgerKept(TypedDict):
    produced: Finite
    taken: Finite
    dropped: Finite
    replaced: Finite
    expired: Finite


_Numbers = Annotated[list[float | None], Field(min_length=4, max_length=4)]


@with_config(STRICT)
class _MomentumKept(TypedDict):
    vector: Vector
    numbers: list[_Numbers] | dict[str, _Numbers]
    """In the order of parameters, or by their names."""


@with_config(ConfigDict(strict=True, extra="forbid"))
class RoundsSettings(TypedDict):
    """The settings that change from one round to the next."""

    wait_for: NotRequired[int | float | str]
    max_staleness: NotRequired[Count]


@with_config(STRICT)
class _OwnOptions(TypedDict):
    left: list[dict[str, Any]]
    others: list[list[str]]
    told: list[dict[str, Any]]


@with_config(STRICT)
class RoundsKept(TypedDict):
    """A worker's rounds."""

    number: Count
    best_step: Finite
    best_options: list[dict[str, Any]] | None
    step: Finite
    options: list[dict[str, Any]] | None
    progress: NotRequired[Finite]
    momentum: NotRequired[_MomentumKept]
    ledger: _LedgerKept
    entries: list[_EntryKept]
    settings: NotRequired[RoundsSettings]
    request: NotRequired[Annotated[int, Field(ge=-1, le=2**63)]]
    workers: NotRequired[Workers]
    places: NotRequired[Annotated[int, Field(ge=7, le=35)]]
    """Elements of a header before its counts: `COUNTS` of `means.headers`, which has grown."""
    error: NotRequired[dict[str, Any]]
    own_options: NotRequired[_OwnOptions]
    """Options that the optimizer's own steps have written."""


_SWITCHES = ("foreach", "fused")
"""Options of torch's optimizers that are None or a choice."""

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=255)]


@with_config(STRICT)
class _FileAbout(TypedDict):
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Count


@with_config(STRICT)
class _OptimizerAbout(TypedDict):
    algorithm: str
    strategy: str | None
    settings: dict[str, Any]
    model: FileName
    optimizer: FileName
    shards: NotRequired[Annotated[int, Field(ge=1, lt=MOST_WORKERS)]]
    tensor: NotRequired[Annotated[int, Field(ge=1, lt=MOST_WORKERS)]]
    stages: NotRequired[list[list[str]]]
    base: NotRequired[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]]
    """The digest of the parameters that are not trained, where the model's file lacks them."""


@with_config(STRICT)
class Manifest(TypedDict):
    """The contents of `manifest.json`; all files are listed in `files`, with names that stay inside the folder."""

    format: int
    step: Count
    workers: Workers
    ranks: NotRequired[list[Annotated[int, Field(ge=0, lt=MOST_WORKERS)]]]
    optimizers: Annotated[dict[str, _OptimizerAbout], Field(min_length=1)]
    round: NotRequired[Count | None]
    best: NotRequired[Annotated[float, Field(allow_inf_nan=False)]]
    files: dict[FileName, _FileAbout]


@with_config(STRICT)
class _Group(TypedDict):
    params: list[int]


def _inner_state(kept: dict[str, Any]) -> dict[str, Any]:
    if "param_groups" in kept:
        check(PlainState, kept, "it")
    return kept


@with_config(STRICT)
class _PlainState(TypedDict):
    state: dict[int | str, Any]
    param_groups: list[_Group]
    names: NotRequired[list[Annotated[list[str], Field(min_length=1)]]]
    """All names of each parameter in the model."""
    own: NotRequired[dict[str, Any]]
    """Its `state_dict()`, if that has another format than torch's."""
    inner: NotRequired[dict[str, Annotated[dict[str, Any], AfterValidator(_inner_state)]]]
    """State of optimizers inside it, by the paths to them."""
    masks: NotRequired[dict[int, Tensor]]
    """The places of the numbers that pruning has kept, by the number of the parameter."""
    pruned_at: NotRequired[int]
    """The update of the newest pruning by a schedule; -1: there was none."""


def _in_order(kept: dict[str, Any]) -> dict[str, Any]:
    numbers = [number for group in kept["param_groups"] for number in group["params"]]
    if numbers != list(range(len(numbers))):
        raise ValueError("its parameters are not numbered in order")
    if len(kept.get("names", numbers)) != len(numbers):
        raise ValueError("it has not as many names as parameters")
    beyond = next((key for key in kept["state"] if isinstance(key, int) and not 0 <= key < len(numbers)), None)
    if beyond is not None:
        raise ValueError(f"it has state of a parameter {beyond}")
    return kept


PlainState = Annotated[_PlainState, AfterValidator(_in_order)]
"""An optimizer's state, in torch's format."""


@with_config(STRICT)
class Replica(TypedDict):
    """One worker's own replica."""

    parameters: list[Tensor] | None
    """None where all workers shared one, which is the model."""
    optimizer: PlainState


@with_config(STRICT)
class OwnKept(TypedDict):
    """One worker's own state of one optimizer."""

    step: Count
    updates: Count
    options: list[dict[str, Any]]
    buffers: dict[str, Tensor]
    rounds: RoundsKept | None
    state: dict[str, Any]
    replica: Replica | None
    edited: NotRequired[bool]
    """Whether the script has edited the replica, and neither a step nor a pause had counted that."""
    reducer: NotRequired[dict[str, Any]]


def _position(state: dict[str, Any]) -> dict[str, Any]:
    position = StreamPosition.from_plain(state) if "shuffle_buffer" in state else Position.read(state)
    if max(position.epoch, abs(position.seed)) >= 2**63:
        raise ValueError("a number is too large")
    return state


@with_config(STRICT)
class WorkerKept(TypedDict):
    """The contents of a rank's file."""

    optimizers: dict[str, OwnKept]
    loaders: dict[Annotated[str, Field(pattern="^[0-9]+$")], Annotated[dict[str, Any], AfterValidator(_position)]]
    generators: dict[str, Any]
    extras: dict[str, Any]


@with_config(STRICT)
class SharedKept(TypedDict):
    """State of one optimizer that is equal on all workers."""

    others: list[Tensor]
    state: dict[str, Any]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check(kind: Any, value: Any, name: str) -> None:
    """Raise `CheckpointError`, for the file `name`, where `value` is no `kind`."""
    try:
        _adapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place, why = ".".join(map(str, first["loc"])) or "it", first["msg"].removeprefix("Value error, ")
        raise CheckpointError(f"{name} does not hold what it should: {place}: {why}") from None
    except RecursionError:
        raise CheckpointError(f"{name} does not hold what it should: it is too deep") from None


def check_manifest(said: Any, name: str, rank_file: Any, shard_file: Any) -> dict[str, Any]:
    """Return the manifest with its ranks filled in. `rank_file(rank)` and `shard_file(name, shards, shard)` return
    names of files."""
    check(Manifest, said, name)
    manifest = dict(said)
    ranks = manifest.setdefault("ranks", list(range(manifest["workers"])))
    if len(ranks) != manifest["workers"] or ranks != sorted(set(ranks)):
        raise CheckpointError(f"{name} does not name the ranks of its {manifest['workers']} workers once, in order")
    needed = [rank_file(rank) for rank in ranks]
    for about in manifest["optimizers"].values():
        shards = about.setdefault("shards", 1)
        if shards % max(1, len(about.setdefault("stages", []))):
            raise CheckpointError(f"{name} has {shards} shards, which are not those of {len(about['stages'])} stages")
        if len(ranks) % shards:
            raise CheckpointError(
                f"{name} has {len(ranks)} workers, who cannot have held {shards} shards of each replica"
            )
        needed += [shard_file(about[kind], shards, shard) for kind in ("model", "optimizer") for shard in range(shards)]
    missing = next((file for file in needed if file not in manifest["files"]), None)
    if missing is not None:
        raise CheckpointError(f"{name} does not list the file {missing}, which is to be read")
    return manifest


def check_workers(workers: Sequence[dict[str, Any]], number: int | None) -> None:
    """Raise `CheckpointError` where the ranks' files do not belong together, or are of another round than `number`."""
    first = workers[0]["optimizers"]
    for worker in workers[1:]:
        if worker["optimizers"].keys() != first.keys():
            raise CheckpointError("the ranks' files are of different optimizers")
        for name, own in worker["optimizers"].items():
            if (own["rounds"] is None) != (first[name]["rounds"] is None):
                raise CheckpointError("some of the ranks' files were saved under rounds, and some were not")
    in_rounds = [name for name, own in first.items() if own["rounds"] is not None]
    for name in in_rounds:
        rounds = {worker["optimizers"][name]["rounds"]["number"] for worker in workers}
        if len(in_rounds) == 1 and number is not None:  # else it is that of one of them
            rounds.add(number)
        if len(rounds) > 1:
            raise CheckpointError("the ranks' files are of different rounds")


def check_options(groups: Sequence[Mapping[str, Any]], kept: Any, noun: str) -> None:
    """Raise `CheckpointError` where options of parameter groups have other types than those of `groups`."""
    if not isinstance(kept, list) or len(kept) != len(groups):
        raise CheckpointError(f"{noun} are not those of the {len(groups)} parameter groups of the script's optimizer")
    for place, (group, options) in enumerate(zip(groups, kept, strict=True)):
        for key, value in options.items():
            is_switch = key in _SWITCHES and not (value is None or isinstance(value, bool))
            if key != "params" and (is_switch or not _is_like(value, group.get(key, value))):
                raise CheckpointError(f"{noun} hold {key} = {value!r} for group {place}, which it cannot be")


def check_field(kind: Any, value: Any, now: Any, name: str) -> None:
    """Raise `CheckpointError` for a `value` that a strategy's field of type `kind`, initially `now`, cannot have
    had."""
    try:
        adapter = TypeAdapter(kind, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
    except PydanticUserError:
        return  # nothing can be said of it from here
    try:
        adapter.validate_python(value)
    except (ValidationError, RecursionError):
        raise CheckpointError(f"the checkpoint's {name} is a {type(value).__name__}, which it cannot be") from None
    if isinstance(now, list) and now and len(value) != len(now):
        raise CheckpointError(f"the checkpoint's {name} has {len(value)} values, and {len(now)} here")
    if not _has_sound_numbers(value):
        raise CheckpointError(f"the checkpoint's {name} is or holds a number that it cannot be")


def check_extra(thing: Any, kept: Any, name: str) -> None:
    """Raise `CheckpointError` where one of torch's own objects (a scheduler, a scaler) cannot have had this state. They
    do not check what they load. Other objects check their own state."""
    if not type(thing).__module__.startswith("torch."):
        return
    own_state = thing.state_dict()
    for key, value in kept.items() if isinstance(kept, dict) else [("", kept)]:
        own = own_state.get(key)
        is_like = not isinstance(own, bool | int | float | str) or _is_like(value, own)
        if not (isinstance(kept, dict) and is_like and _has_sound_numbers(value)):
            raise CheckpointError(f"what is kept of {name} cannot be that of a {type(thing).__name__}: {key}")


def _has_sound_numbers(value: Any) -> bool:
    numbers = (x for x in leaves(value) if isinstance(x, int | float))
    return all(math.isinf(x) or abs(x) <= 2**63 for x in numbers)  # false of NaN


def _is_like(value: Any, own: Any) -> bool:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(own, Tensor) and own.numel() == 1:
        own = own.item()
    if isinstance(value, float) and not math.isfinite(value):
        return bool(value == own)
    if isinstance(own, bool):
        return value is None or isinstance(value, bool)
    if isinstance(own, int | float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(own, tuple | list):
        if isinstance(own, list) and not own:  # a step may have put numbers there
            return isinstance(value, list) and all(isinstance(x, bool | int | float | str) for x in value)
        is_like = isinstance(value, tuple | list) and len(value) == len(own)
        return is_like and all(_is_like(x, y) for x, y in zip(value, own, strict=True))
    if own is None:
        return value is None or isinstance(value, bool | int | float | str)
    return isinstance(value, type(own))
