"""What was decided in a run under rounds, as its records say it: enough for the same workers to train it once more.

Which batches each worker had, after how many handings-in a round asked each worker for what it had, and at which look
for rounds each worker applied which. Everything else follows from the script and its seeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from quorate.core.errors import ConfigurationError
from quorate.records.records import ranks_in, records_of, rows
from quorate.records.round_rows import RoundRow
from quorate.records.rows import Claim

Look = tuple[int, int]
"""Of one worker: how often all had settled before, and how often it has looked which rounds are there since then; that
it settles is a look as well."""


class Position(NamedTuple):
    """A moment of one worker's, by what it has counted; later ones are greater."""

    rests: int
    look: int
    round: int
    """The newest that it has applied."""
    times: int
    """How often it has handed in."""


_KNOWN = {one.name for one in fields(RoundRow)}


def _by_rank() -> dict[int, dict[Look, int]]:
    return defaultdict(dict)


def _lists() -> dict[int, list[tuple[Position, int]]]:
    return defaultdict(list)


@dataclass(frozen=True, kw_only=True)
class OptimizerTape:
    """What was decided about the rounds of one optimizer, for one worker."""

    rank: int
    size: int
    """Workers at the start; those that joined have the ranks from there on."""
    rounds: Mapping[int, RoundRow]
    """By number; the same for all workers."""
    all_looks: Mapping[int, Mapping[Look, int]]
    """By rank and look, the newest round that was applied in it."""
    copies: Mapping[int, Mapping[Look, int]]
    """Likewise, the round after which the worker went on from a copy of another one."""
    gone: Mapping[int, int]
    """Workers that died: the newest round that each had applied."""
    joined: Mapping[int, int] = field(default_factory=dict)
    """Workers that joined: the round from which on each stepped."""
    given: Mapping[int, Sequence[tuple[Position, int]]] = field(default_factory=dict)
    """By rank, copies for those that joined: when each was given, and to whom."""
    sources: Mapping[int, Mapping[Look, int]] = field(default_factory=dict)
    """Of `copies`: whose they were."""
    ends: list[Callable[[], None]] = field(default_factory=list)
    """As of `Replaying`."""

    @property
    def looks(self) -> Mapping[Look, int]:
        """This worker's."""
        return self.all_looks.get(self.rank, {})

    @cached_property
    def ranks(self) -> Sequence[int]:
        """All that were ever there."""
        return [*range(self.size), *sorted(self.joined)]

    @cached_property
    def begins(self) -> Mapping[int, int]:
        """By rank that joined, the round of its first copy: it has applied none up to there."""
        return {rank: min(self.copies.get(rank, {}).values(), default=0) for rank in self.joined}

    def joined_by(self, number: int) -> tuple[int, ...]:
        """Who stepped from round `number` on, or before, and was not there at the start."""
        return tuple(
            rank for since, rank in sorted((since, rank) for rank, since in self.joined.items()) if since <= number
        )

    def applies(self, rank: int, number: int) -> bool:
        """Whether it is known that `rank` applied round `number` itself."""
        if number > self.gone.get(rank, number) or number <= self.begins.get(rank, 0):
            return False
        looks = self.all_looks.get(rank, {})
        for look, to in self.copies.get(rank, {}).items():
            before = max((newest for other, newest in looks.items() if other < look), default=0)
            if before < number <= to:
                return False
        return True

    def entries_of(self, rank: int) -> Sequence[tuple[Look, int, int]]:
        """Of a worker that joined: in which look it became a copy as of which round, and of whom."""
        if rank not in self.joined:
            return []
        copies, sources = self.copies.get(rank, {}), self.sources.get(rank, {})
        return [(look, number, sources[look]) for look, number in sorted(copies.items()) if look[0] == 0]

    @property
    def is_gone(self) -> bool:
        """Whether this worker died."""
        return self.rank in self.gone

    @cached_property
    def last_look(self) -> Look:
        """In which it applied something."""
        return max(self.looks, default=(0, 0))

    @cached_property
    def last_times(self) -> int:
        """How often it had handed in when a round took something of it last."""
        last, own = self.last_rounds.get(self.rank), str(self.rank)
        return 0 if last is None else (self.rounds[last].times or {}).get(own, 0)

    def last_in(self, number: int) -> set[int]:
        """Who died, and is in round `number` last."""
        return {rank for rank in self.gone if self.last_rounds.get(rank) == number}

    @cached_property
    def last_rounds(self) -> Mapping[int, int]:
        """By rank, the last round in which it is."""
        return {int(rank): number for number, one in sorted(self.rounds.items()) for rank in one.contributors}


@dataclass(kw_only=True)
class Tape:
    """The whole run."""

    folder: Path
    size: int
    rounds: dict[str, dict[int, RoundRow]] = field(default_factory=dict)
    """By optimizer and number."""
    looks: dict[str, dict[int, dict[Look, int]]] = field(default_factory=lambda: defaultdict(_by_rank))
    """By optimizer and rank."""
    copies: dict[str, dict[int, dict[Look, int]]] = field(default_factory=lambda: defaultdict(_by_rank))
    """Likewise."""
    claims: dict[tuple[int, int, int], list[Claim]] = field(default_factory=lambda: defaultdict(list))
    """By rank, loader and iteration, in order."""
    gone: set[int] = field(default_factory=set)
    joined: dict[int, int] = field(default_factory=dict)
    """By rank, the round from which on it stepped."""
    given: dict[str, dict[int, list[tuple[Position, int]]]] = field(default_factory=lambda: defaultdict(_lists))
    """By optimizer and rank: as of `OptimizerTape`."""
    sources: dict[str, dict[int, dict[Look, int]]] = field(default_factory=lambda: defaultdict(_by_rank))
    """By optimizer and rank: of `copies`, whose they were."""

    def of(self, rank: int, optimizer: str, ends: list[Callable[[], None]]) -> OptimizerTape:
        """For the worker `rank`."""
        newest = {other: max(self.looks[optimizer][other].values(), default=0) for other in self.gone}
        return OptimizerTape(
            rank=rank,
            size=self.size,
            rounds=self.rounds.get(optimizer, {}),
            all_looks=self.looks[optimizer],
            copies=self.copies[optimizer],
            gone=newest,
            joined=self.joined,
            given=self.given[optimizer],
            sources=self.sources[optimizer],
            ends=ends,
        )

    @property
    def joiners(self) -> int:
        """Ranks behind those that were there at the start, up to the last one that joined."""
        return max(self.joined, default=self.size - 1) + 1 - self.size

    def claims_of(self, rank: int, loader: int, iteration: int) -> Sequence[Claim]:
        """In order."""
        return self.claims.get((rank, loader, iteration), [])


def tape_of(folder: Path) -> Tape:
    """Read the records of a run. Raises `ConfigurationError` where it cannot be replayed, and says why."""
    tape = Tape(folder=folder, size=0)
    ended = set[int]()
    for rank in ranks_in(folder):
        sessions = 0
        for row in rows(records_of(folder, rank)):
            kind = row["kind"]
            _check(row, folder)
            try:
                if kind == "start":
                    sessions, tape.size = sessions + 1, int(row["size"])
                elif kind == "end":
                    ended.add(rank)
                else:
                    _take(tape, rank, row)
            except (KeyError, TypeError, ValueError):
                raise ConfigurationError(f"a row of {records_of(folder, rank)} is damaged: {row}") from None
        if sessions > 1:
            raise ConfigurationError(f"{folder} was resumed, but a run can only be replayed from its first step")
    if not tape.rounds:
        raise ConfigurationError(
            f"{folder} has no records of rounds, which a replay needs; it works for quorum and its presets, adaptive, "
            "eager-averaging, decoupled-diloco and async-local-sgd"
        )
    for optimizer, rank in ((optimizer, rank) for optimizer in tape.copies for rank in tape.joined):
        if tape.copies[optimizer][rank].keys() - tape.sources[optimizer][rank].keys():
            raise _says_too_little(folder)
    unfinished = sorted({*range(tape.size), *tape.joined} - ended - tape.gone)
    if unfinished:
        raise ConfigurationError(f"{folder} did not end normally (rank {unfinished[0]}), so it cannot be replayed")
    return tape


def rounds_in(folder: Path) -> dict[str, dict[int, RoundRow]]:
    """The rounds that the records in `folder` tell of, by optimizer and number."""
    found: dict[str, dict[int, RoundRow]] = {}
    for rank in ranks_in(folder):
        for row in rows(records_of(folder, rank)):
            if row["kind"] == "round":
                _add_round(found, row)
    return found


def _add_round(rounds: dict[str, dict[int, RoundRow]], row: Mapping[str, Any]) -> None:
    """The later one stays, of two of a number: of the greater rank, or after a copy."""
    one = RoundRow(**{name: value for name, value in row.items() if name in _KNOWN})
    rounds.setdefault(str(one.optimizer), {})[one.number] = one


def _check(row: Mapping[str, Any], folder: Path) -> None:
    """Raise `ConfigurationError` for what is not replayed."""
    if row["kind"] == "round" and "times" not in row:
        raise _says_too_little(folder)


def _says_too_little(folder: Path) -> ConfigurationError:
    return ConfigurationError(f"{folder} was recorded by an earlier version, whose records are not sufficient")


def _take(tape: Tape, rank: int, row: Mapping[str, Any]) -> None:
    kind = row["kind"]
    if kind == "round":
        _add_round(tape.rounds, row)
    elif kind == "applied":
        of = tape.copies if row.get("is_copy") else tape.looks
        look = int(row["rests"]), int(row["look"])
        of[row["optimizer"]][rank][look] = int(row["round"])
        if row.get("source") is not None:
            tape.sources[row["optimizer"]][rank][look] = int(row["source"])
    elif kind == "gave":
        at = Position(int(row["rests"]), int(row["look"]), int(row["round"]), int(row["times"]))
        tape.given[row["optimizer"]][rank].append((at, int(row["to"])))
    elif kind == "joined":
        tape.joined[int(row["rank"])] = int(row["round"])
    elif kind == "claim":
        claim = Claim(
            loader=int(row["loader"]), iteration=int(row["iteration"]), batch=int(row["batch"]), of=row.get("of")
        )
        tape.claims[rank, claim.loader, claim.iteration].append(claim)
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
