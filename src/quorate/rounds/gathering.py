"""A round that is being formed: what workers give to it, and how long whom is waited for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quorate.core.vectors import Flat, Layout, add_into
from quorate.rounds.forming import Forming
from quorate.rounds.terms import Agreed


@dataclass
class Contribution:
    """What one worker gave to the round that is being formed."""

    weight: float
    used_up: float
    """Of gradients: what is in it, and what was lost since the last one."""
    step: float
    options: Any
    stalenesses: list[tuple[int, int]]
    vector: Flat | None
    measures: list[Any] = field(default_factory=list)
    """With each contribution, in order."""
    times: int = 0
    """How often the worker had handed in by then."""
    sizes: Sequence[int] | None = None
    """The bytes of its code, and of the vector; None where it has none."""

    @property
    def gives(self) -> bool:
        """Whether there is a vector, here or with the worker."""
        return bool(self.stalenesses)


def given_from(header: dict[str, Any], vector: Flat | None) -> Contribution:
    """What `Snapshot.header` said, perhaps among other things."""
    stalenesses = [(staleness, count) for staleness, count in header["stalenesses"]]
    return Contribution(
        header["weight"],
        header["used_up"],
        header["step"],
        header["options"],
        stalenesses,
        vector,
        header["measures"],
        header["times"],
        header["sizes"],
    )


@dataclass
class OpenRound:
    """A round that is being formed."""

    number: int
    since: float
    settles: bool
    until: dict[int, float]
    """By rank that is waited for, how long."""
    spans: bool = False
    """Whether the hosts form it among themselves."""
    given: dict[int, Contribution] = field(default_factory=dict)
    is_extended: bool = False
    forming: Forming | None = None
    """By whom it is formed, once that is decided."""

    def __post_init__(self) -> None:
        self.earliest = min(self.until.values(), default=math.inf)
        """Nobody turns out to be silent before; they are only ever waited for longer."""

    def is_here(self, rank: int, number: int, until: float) -> None:
        """`rank` gives to round `number`, and has so much longer to do so."""
        if self.number == number and rank in self.until:
            self.until[rank] = until

    def extend(self, until: float) -> None:
        """Wait for everyone until then at least; once."""
        self.is_extended = True
        self.until = {rank: max(at, until) for rank, at in self.until.items()}

    @property
    def looks_at(self) -> float:
        """When the next one may turn out to be silent."""
        return min((at for rank, at in self.until.items() if rank not in self.given), default=math.inf)

    def silent(self, now: float, *, but: int) -> list[int]:
        """Who has not answered in time, and is not waited for from here on."""
        answered = {*self.given, but}
        silent = [rank for rank, at in self.until.items() if rank not in answered and now >= at]
        self.until = {rank: at for rank, at in self.until.items() if rank not in silent}
        return silent


def furthest(given: Iterable[Contribution], step: float, options: Any) -> tuple[float, Any]:
    """The options of whoever is furthest in the training, and where; `step` and `options` are those so far."""
    best = max((one for one in given if one.gives), key=lambda one: one.step, default=None)
    return (step, options) if best is None or best.step < step else (best.step, best.options)


def sum_of(vectors: Sequence[Flat], blank: Callable[[Layout], Flat] | None) -> Flat | None:
    """In order; formed in what `blank` gives (None: ordinary memory). One vector is its own sum; None where none is."""
    if len(vectors) < 2:
        return vectors[0] if vectors else None
    first, second, *rest = vectors
    total = first + second if blank is None else add_into(first, second, blank(first.layout))
    for one in rest:
        total.add_(one)
    return total


def sum_by_hosts(
    hosts: Iterable[Iterable[int]], given: Mapping[int, Contribution], blank: Callable[[Layout], Flat] | None = None
) -> Flat | None:
    """As several hosts form it: the contributions of each in order, then the sums of the hosts in order."""
    sums = (sum_of([vector for rank in host if (vector := given[rank].vector) is not None], blank) for host in hosts)
    return sum_of([one for one in sums if one is not None], blank)


class Asking:
    """Whether those that a round waits for are there: they are asked now and then.

    `grace` is how long one that was heard of counts as there, in seconds.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._until: dict[int, float] = {}
        """Until when each is to say that it is there, then when it is asked again."""
        self._is_there: set[int] = set()

    def heard(self, rank: int, now: float) -> None:
        """Something came from `rank`."""
        if rank in self._until and rank not in self._is_there:
            self._is_there.add(rank)
            self._until[rank] = now + self._grace

    def forget(self, rank: int) -> None:
        """`rank` is waited for no more."""
        self._until.pop(rank, None)

    def due(self, held: set[int], now: float) -> tuple[list[int], list[int]]:
        """Of those that are waited for now: who has not answered, and who is to be asked (again)."""
        for rank in self._until.keys() - held:
            del self._until[rank]
        for rank in held - self._until.keys():
            self._is_there.add(rank)
            self._until[rank] = now + self._grace
        due = [rank for rank in sorted(held) if self._until[rank] <= now]
        return [rank for rank in due if rank not in self._is_there], [rank for rank in due if rank in self._is_there]

    def asked(self, rank: int, until: float) -> None:
        """`rank` was asked, and is to answer until then."""
        self._is_there.discard(rank)
        self._until[rank] = until

    @property
    def looks_at(self) -> float:
        """When the next of them is due."""
        return min(self._until.values(), default=math.inf)


_THIN, _MOST_THIN = 1e7, 2.0
"""Bytes a second that links between hosts may fall to, and seconds for which that is no silence, whatever they have
carried so far: others may begin to use them."""
_SLOWEST = 1e5
"""Bytes per second that a link carries at least, until it is known what it does."""
_REMEMBERED = 8


class Carrying:
    """How long a vector is on its way, as one worker has seen it: that is not silence."""

    def __init__(self, agreed: Agreed) -> None:
        self._agreed = agreed
        self._took = deque[float](maxlen=_REMEMBERED)

    def took(self, seconds: float) -> None:
        """One has arrived."""
        self._took.append(seconds)

    @property
    def between_hosts(self) -> float:
        """As `seconds`, over links that may have become slower."""
        return max(self.seconds, min(self._agreed.vector_bytes / _THIN, _MOST_THIN) if self._agreed.is_large else 0.0)

    @property
    def latest(self) -> float:
        """What the newest took; 0 where nothing is known."""
        return self._took[-1] if self._took else 0.0

    @property
    def seconds(self) -> float:
        """What one more may take: four times the longest of late; a slow link's time while nothing is known."""
        agreed = self._agreed
        if not agreed.is_large:
            return 0.0
        return 4 * max(self._took) if self._took else agreed.size * agreed.vector_bytes / _SLOWEST


class Patience:
    """A member's with its leader: links may be slow, and leaders may come to nothing."""

    def __init__(self, agreed: Agreed) -> None:
        self._agreed = agreed
        self._carrying = Carrying(agreed)
        self._asked, self._asked_at, self._spans = 0, 0.0, False
        self._barren, self._was_led = 0, False
        """Leaders since the newest round, the first left out; and whether there was one."""

    def asked(self, number: int, now: float, *, spans: bool = False) -> None:
        """The leader has asked for round `number`, which `spans` hosts."""
        self._asked, self._asked_at, self._spans = number, now, spans

    def got(self, number: int, now: float) -> None:
        """The result of round `number` is here."""
        if number == self._asked:
            self._carrying.took(now - self._asked_at)

    def new_round(self) -> None:
        """Rounds go on."""
        self._barren, self._was_led = 0, False

    def new_leader(self) -> None:
        """Another one leads, or tries to."""
        self._barren += self._was_led
        self._was_led = True

    @property
    def seconds(self) -> float:
        """Without a word from the leader, after which it is asked whether it is there, and then replaced.

        Twice as long with each leader that brought no round: those who would lead must not chase each other.
        """
        carrying = self._carrying.between_hosts if self._spans else self._carrying.seconds
        seconds = (self._agreed.grace + carrying) * 2.0 ** min(self._barren, 8)
        return min(seconds, max(self._agreed.patience, self._agreed.grace))
