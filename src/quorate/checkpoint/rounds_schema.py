"""What a checkpoint's trees must be where they hold rounds, and the numbers and vectors of all of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from torch import Tensor
from typing_extensions import TypedDict

from quorate.checkpoint.encoding import FLAT, PIECES

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
    """Those that change."""

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
    places: NotRequired[Annotated[int, Field(ge=7, le=30)]]
    """Elements of a header before its counts: `COUNTS` of `means.headers`, which has grown."""
    error: NotRequired[dict[str, Any]]
    own_options: NotRequired[_OwnOptions]
    """Options that the optimizer's own steps have written."""
