"""What was decided in a run under rounds, as its records say it: enough for the same workers to train it once more.

Which batches each worker had, after how many handings-in a round asked each worker for what it had, and at which look
for rounds each worker applied which. Everything else follows from the script and its seeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.core.records import ranks_in, records_of, rows
from quorate.core.rows import Claim, RoundRow

Look = tuple[int, int]
"""Of one worker: how often all had settled before, and how often it has looked which rounds are there since then; that
it settles is a look as well."""
_KNOWN = {one.name for one in fields(RoundRow)}


def _by_rank() -> dict[int, dict[Look, int]]:
    return defaultdict(dict)


@dataclass(frozen=True, kw_only=True)
class OptimizerTape:
    """What was decided about the rounds of one optimizer, for one worker."""

    rank: int
    rounds: Mapping[int, RoundRow]
    """By number; the same for all workers."""
    all_looks: Mapping[int, Mapping[Look, int]]
    """By rank and look, the newest round that was applied in it."""
    copies: Mapping[int, Mapping[Look, int]]
    """Likewise, the round after which the worker went on from a copy of another one."""
    gone: Mapping[int, int]
    """Workers that died: the newest round that each had applied."""
    ends: list[Callable[[], None]] = field(default_factory=list)
    """As of `Replaying`."""

    @property
    def looks(self) -> Mapping[Look, int]:
        """This worker's."""
        return self.all_looks.get(self.rank, {})

    @property
    def is_gone(self) -> bool:
        """Whether this worker died."""
        return self.rank in self.gone

    @property
    def last_look(self) -> Look:
        """In which it applied something."""
        return max(self.looks, default=(0, 0))

    @property
    def last_times(self) -> int:
        """How often it had handed in when a round took something of it last."""
        own = str(self.rank)
        return max((one.times[own] for one in self.rounds.values() if one.times and own in one.contributors), default=0)

    def last_round_of(self, rank: int) -> int:
        """The last one in which `rank` is; 0: none."""
        return max((number for number, one in self.rounds.items() if str(rank) in one.contributors), default=0)


@dataclass(kw_only=True)
class Tape:
    """The whole run."""

    folder: Path
    size: int
    rounds: dict[str, dict[int, RoundRow]] = field(default_factory=dict)
    """By optimizer and number."""
    looks: dict[str, dict[int, dict[Look, int]]] = field(default_factory=lambda: defaultdict(_by_rank))
    """By optimizer and rank."""
    copies: dict[str, dict[int, dict[Look, int]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    """Likewise."""
    claims: dict[tuple[int, int, int], list[Claim]] = field(default_factory=lambda: defaultdict(list))
    """By rank, loader and iteration, in order."""
    gone: set[int] = field(default_factory=set)

    def of(self, rank: int, optimizer: str, ends: list[Callable[[], None]]) -> OptimizerTape:
        """For the worker `rank`."""
        newest = {other: max(self.looks[optimizer][other].values(), default=0) for other in self.gone}
        return OptimizerTape(
            rank=rank,
            rounds=self.rounds.get(optimizer, {}),
            all_looks=self.looks[optimizer],
            copies=self.copies[optimizer],
            gone=newest,
            ends=ends,
        )

    def claims_of(self, rank: int, loader: int, iteration: int) -> Sequence[Claim]:
        """In order."""
        return self.claims.get((rank, loader, iteration), [])


def tape_of(folder: Path) -> Tape:
    """Read the records of a run. Raises `ConfigurationError` where it cannot be replayed, and says why."""
    ranks = ranks_in(folder)
    tape = Tape(folder=folder, size=0)
    ended = set[int]()
    for rank in ranks:
        sessions = 0
        for row in rows(records_of(folder, rank)):
            kind = row["kind"]
            try:
                if kind == "start":
                    sessions, tape.size = sessions + 1, int(row["size"])
                elif kind == "end":
                    ended.add(rank)
                else:
                    _take(tape, rank, row)
            except ConfigurationError:
                raise
            except (KeyError, TypeError, ValueError):
                raise ConfigurationError(f"a row of {records_of(folder, rank)} is damaged: {row}") from None
        if sessions > 1:
            raise ConfigurationError(f"{folder} was resumed, and a run is replayed from its first step only")
    if not tape.rounds:
        raise ConfigurationError(
            f"{folder} has records of no rounds, by which a replay goes: it is for quorum and its presets, adaptive, "
            "eager-averaging, decoupled-diloco and async-local-sgd"
        )
    unfinished = sorted(set(range(tape.size)) - ended - tape.gone)
    if unfinished:
        raise ConfigurationError(f"{folder} did not come to its end (rank {unfinished[0]}), so it is not replayed")
    return tape


def rounds_in(folder: Path) -> dict[str, dict[int, RoundRow]]:
    """The rounds that the records in `folder` tell of, by optimizer and number."""
    found: dict[str, dict[int, RoundRow]] = {}
    for rank in ranks_in(folder):
        for row in rows(records_of(folder, rank)):
            if row["kind"] == "round":
                one = _round(row)
                found.setdefault(str(one.optimizer), {})[one.number] = one
    return found


def _round(row: Mapping[str, Any]) -> RoundRow:
    return RoundRow(**{name: value for name, value in row.items() if name in _KNOWN})


def _take(tape: Tape, rank: int, row: Mapping[str, Any]) -> None:
    kind = row["kind"]
    if kind == "round":
        if "times" not in row:
            raise ConfigurationError(f"{tape.folder} was recorded by an earlier version, which says too little")
        one = _round(row)
        tape.rounds.setdefault(str(one.optimizer), {})[one.number] = one
    elif kind == "applied":
        of = tape.copies if row.get("is_copy") else tape.looks
        of[row["optimizer"]][rank][int(row["rests"]), int(row["look"])] = int(row["round"])
    elif kind == "claim":
        claim = Claim(
            loader=int(row["loader"]), iteration=int(row["iteration"]), batch=int(row["batch"]), of=row.get("of")
        )
        tape.claims[rank, claim.loader, claim.iteration].append(claim)
    elif kind == "joined":
        raise ConfigurationError(f"rank {row['rank']} joined {tape.folder} later; such a run is not replayed")
    elif kind == "gone":
        tape.gone.add(int(row["rank"]))


@dataclass
class Replaying:
    """One of each worker: what it does is what the tape says."""

    tape: Tape | None = None
    ends: list[Callable[[], None]] = field(default_factory=list)
    """Called where the records of this worker end, as it died."""

    def of(self, rank: int, optimizer: str) -> OptimizerTape | None:
        """For the rounds of `optimizer` on the worker `rank`."""
        return None if self.tape is None else self.tape.of(rank, optimizer, self.ends)
