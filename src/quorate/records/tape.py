"""The decisions of a run under rounds, read from its records, so that the same workers can repeat the training.

The tape has the batches of each worker, and the number of contributions after which a round asked each worker for them.
It also has the looks in which each worker applied which rounds. Everything else follows from the script and its seeds.
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
from quorate.records.rows import Claim, RoundRow

Look = tuple[int, int]
"""A look of one worker for complete rounds: the number of pauses before it, and of looks since the last pause. A pause
counts as a look as well."""


class Position(NamedTuple):
    """A moment of one worker by its counters, named as in a `gave` row; later moments are greater."""

    rests: int
    look: int
    round: int
    """Number of the newest round that it has applied."""
    times: int
    """Number of its contributions."""


_ROUND_FIELDS = {field.name for field in fields(RoundRow)}


def _looks_by_rank() -> dict[int, dict[Look, int]]:
    return defaultdict(dict)


def _sent_copies_by_rank() -> dict[int, list[tuple[Position, int]]]:
    return defaultdict(list)


@dataclass(frozen=True, kw_only=True)
class OptimizerTape:
    """The decisions about the rounds of one optimizer, for one worker."""

    rank: int
    size: int
    """Number of workers at the start; newcomers have the ranks from `size` on."""
    rounds: Mapping[int, RoundRow]
    """The rounds by number; the same for all workers."""
    all_looks: Mapping[int, Mapping[Look, int]]
    """By rank and look: the newest round that was applied in it."""
    copies: Mapping[int, Mapping[Look, int]]
    """By rank and look: the round after which the worker continued from a copy of another replica."""
    dead: Mapping[int, int]
    """By rank of a worker that died: the newest round that it had applied."""
    joined: Mapping[int, int] = field(default_factory=dict)
    """By rank of a newcomer: the round from which on it stepped."""
    sent_copies: Mapping[int, Sequence[tuple[Position, int]]] = field(default_factory=dict)
    """By rank: the copies that it sent to newcomers, as pairs of the moment and the newcomer."""
    sources: Mapping[int, Mapping[Look, int]] = field(default_factory=dict)
    """By rank and look, for each of `copies`: the worker whose replica was copied."""
    ends: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call at the end of the worker's records: see `Replaying`."""

    @property
    def looks(self) -> Mapping[Look, int]:
        """By look of this worker: the newest round that was applied in it."""
        return self.all_looks.get(self.rank, {})

    @cached_property
    def ranks(self) -> Sequence[int]:
        """The ranks of all workers that took part, newcomers included."""
        return [*range(self.size), *sorted(self.joined)]

    @cached_property
    def begins(self) -> Mapping[int, int]:
        """By rank of a newcomer: the round of its first copy. It has applied no round up to that one."""
        return {rank: min(self.copies.get(rank, {}).values(), default=0) for rank in self.joined}

    def joined_by(self, number: int) -> tuple[int, ...]:
        """Return the newcomers that joined in round `number` or before, in the order in which they joined."""
        return tuple(
            rank for since, rank in sorted((since, rank) for rank, since in self.joined.items()) if since <= number
        )

    def applies(self, rank: int, number: int) -> bool:
        """Return whether the records show that `rank` applied round `number` itself."""
        if number > self.dead.get(rank, number) or number <= self.begins.get(rank, 0):
            return False
        looks = self.all_looks.get(rank, {})
        for look, to in self.copies.get(rank, {}).items():
            before = max((newest for other, newest in looks.items() if other < look), default=0)
            if before < number <= to:
                return False
        return True

    def entries_of(self, rank: int) -> Sequence[tuple[Look, int, int]]:
        """Return the copies with which a newcomer began: triples of look, round, and the worker that was copied."""
        if rank not in self.joined:
            return []
        copies, sources = self.copies.get(rank, {}), self.sources.get(rank, {})
        return [(look, number, sources[look]) for look, number in sorted(copies.items()) if look[0] == 0]

    @property
    def is_dead(self) -> bool:
        """Whether this worker died."""
        return self.rank in self.dead

    @cached_property
    def last_look(self) -> Look:
        """The last look in which this worker applied a round."""
        return max(self.looks, default=(0, 0))

    @cached_property
    def last_times(self) -> int:
        """Number of this worker's contributions when a round included one of them for the last time."""
        last, own = self.last_rounds.get(self.rank), str(self.rank)
        return 0 if last is None else (self.rounds[last].times or {}).get(own, 0)

    def last_in(self, number: int) -> set[int]:
        """Return the workers that died and whose last round is round `number`."""
        return {rank for rank in self.dead if self.last_rounds.get(rank) == number}

    @cached_property
    def last_rounds(self) -> Mapping[int, int]:
        """By rank: the last round in which it contributed."""
        return {int(rank): number for number, row in sorted(self.rounds.items()) for rank in row.contributors}


@dataclass(kw_only=True)
class Tape:
    """The decisions of a run, for all its workers and optimizers."""

    folder: Path
    size: int
    rounds: dict[str, dict[int, RoundRow]] = field(default_factory=dict)
    """Rounds by optimizer and number."""
    looks: dict[str, dict[int, dict[Look, int]]] = field(default_factory=lambda: defaultdict(_looks_by_rank))
    """By optimizer and rank: see `OptimizerTape.all_looks`."""
    copies: dict[str, dict[int, dict[Look, int]]] = field(default_factory=lambda: defaultdict(_looks_by_rank))
    """By optimizer and rank: see `OptimizerTape.copies`."""
    claims: dict[tuple[int, int, int], list[Claim]] = field(default_factory=lambda: defaultdict(list))
    """Claims in order, by rank, loader and iteration."""
    divided: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    """By loader and epoch: the workers among which a static share was divided, where they were others than at the
    start."""
    dead: set[int] = field(default_factory=set)
    joined: dict[int, int] = field(default_factory=dict)
    """By rank of a newcomer: the round from which on it stepped."""
    sent_copies: dict[str, dict[int, list[tuple[Position, int]]]] = field(
        default_factory=lambda: defaultdict(_sent_copies_by_rank)
    )
    """By optimizer and rank: see `OptimizerTape.sent_copies`."""
    sources: dict[str, dict[int, dict[Look, int]]] = field(default_factory=lambda: defaultdict(_looks_by_rank))
    """By optimizer and rank: see `OptimizerTape.sources`."""

    def of(self, rank: int, optimizer: str, ends: list[Callable[[], None]]) -> OptimizerTape:
        """Return the tape of one optimizer for the worker `rank`."""
        newest_rounds = {other: max(self.looks[optimizer][other].values(), default=0) for other in self.dead}
        return OptimizerTape(
            rank=rank,
            size=self.size,
            rounds=self.rounds.get(optimizer, {}),
            all_looks=self.looks[optimizer],
            copies=self.copies[optimizer],
            dead=newest_rounds,
            joined=self.joined,
            sent_copies=self.sent_copies[optimizer],
            sources=self.sources[optimizer],
            ends=ends,
        )

    @property
    def joiners(self) -> int:
        """Number of ranks beyond those at the start, up to the last newcomer."""
        return max(self.joined, default=self.size - 1) + 1 - self.size

    def claims_of(self, rank: int, loader: int, iteration: int) -> Sequence[Claim]:
        """Return the claims of one iteration of a loader, in order."""
        return self.claims.get((rank, loader, iteration), [])


def tape_of(folder: Path) -> Tape:
    """Read the records of a run. Raises `ConfigurationError` with the reason if it cannot be replayed."""
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
    unfinished = sorted({*range(tape.size), *tape.joined} - ended - tape.dead)
    if unfinished:
        raise ConfigurationError(f"{folder} did not end normally (rank {unfinished[0]}), so it cannot be replayed")
    return tape


def rounds_in(folder: Path) -> dict[str, dict[int, RoundRow]]:
    """Return the rounds in the records of a run, by optimizer and number."""
    rounds: dict[str, dict[int, RoundRow]] = {}
    for rank in ranks_in(folder):
        for row in rows(records_of(folder, rank)):
            if row["kind"] == "round":
                _add_round(rounds, row)
    return rounds


def _add_round(rounds: dict[str, dict[int, RoundRow]], row: Mapping[str, Any]) -> None:
    """Add a round; of two with the same number the later remains (of the greater rank, or after a copy)."""
    round_row = RoundRow(**{name: value for name, value in row.items() if name in _ROUND_FIELDS})
    rounds.setdefault(str(round_row.optimizer), {})[round_row.number] = round_row


def _check(row: Mapping[str, Any], folder: Path) -> None:
    """Raise `ConfigurationError` for a row without the figures that a replay needs."""
    if row["kind"] == "round" and "times" not in row:
        raise _says_too_little(folder)


def _says_too_little(folder: Path) -> ConfigurationError:
    return ConfigurationError(f"{folder} was recorded by an earlier version, whose records are not sufficient")


def _take(tape: Tape, rank: int, row: Mapping[str, Any]) -> None:
    kind = row["kind"]
    if kind == "round":
        _add_round(tape.rounds, row)
    elif kind == "applied":
        looks = tape.copies if row.get("is_copy") else tape.looks
        look = int(row["rests"]), int(row["look"])
        looks[row["optimizer"]][rank][look] = int(row["round"])
        if row.get("source") is not None:
            tape.sources[row["optimizer"]][rank][look] = int(row["source"])
    elif kind == "gave":
        position = Position(int(row["rests"]), int(row["look"]), int(row["round"]), int(row["times"]))
        tape.sent_copies[row["optimizer"]][rank].append((position, int(row["to"])))
    elif kind == "joined":
        tape.joined[int(row["rank"])] = int(row["round"])
    elif kind == "claim":
        claim = Claim(
            loader=int(row["loader"]), iteration=int(row["iteration"]), batch=int(row["batch"]), of=row.get("of")
        )
        tape.claims[rank, claim.loader, claim.iteration].append(claim)
    elif kind == "divided":
        tape.divided[int(row["loader"]), int(row["epoch"])] = tuple(map(int, row["members"]))
    elif kind == "gone":
        tape.dead.add(int(row["rank"]))


@dataclass
class Replaying:
    """The tape of a worker that replays a run; each worker has its own object, without a tape in other runs."""

    tape: Tape | None = None
    ends: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call where the records of this worker end, as it died in the run."""

    def of(self, rank: int, optimizer: str) -> OptimizerTape | None:
        """Return the tape of `optimizer` for the worker `rank`; None if no run is replayed."""
        return None if self.tape is None else self.tape.of(rank, optimizer, self.ends)
