"""Pairs played for a given time and held against `compatibility.json`, in an order that is that of the commit."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.compatibility.choices import BASE, Choice
from tests.compatibility.journal import ROOT, Journal
from tests.compatibility.laws import Verdict
from tests.compatibility.pairs import Pair, Verdicts, hosts_of, names_of, rows_of, verdict_of_hosts
from tests.compatibility.player import Player
from tests.compatibility.progress import LINE_SECONDS, Progress
from tests.support.hosts import are_possible

CHUNK = 16
"""Trainings between two looks at the clock."""
Cases = Sequence[tuple[Sequence[str], Sequence[Choice]]]
"""Choices that are played at a time, each with the strategies to try if there is none among them."""


@dataclass(frozen=True)
class Row:
    """Choices that are played at a time, and those pairs of them that are held against the file."""

    chosen: tuple[Choice, ...]
    hosts: tuple[str, ...]
    pairs: tuple[Pair, ...]

    @property
    def case(self) -> tuple[Sequence[str], Sequence[Choice]]:
        return self.hosts, self.chosen


class Silent(Progress):
    """No progress, as each chunk has a few stages of few pairs."""

    def begin(self, stage: str, total: int, known: int, failures: int = 0) -> None:
        pass

    def advance(self, failure: str = "") -> None:
        pass

    def show(self, *, at_once: bool = False) -> None:
        pass


def commit() -> str:
    """Return the commit of this code; nothing where it is not known."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def in_order_of(name: str, cases: Sequence[Pair]) -> list[Pair]:
    """Return the pairs in the order that belongs to this name."""
    return sorted(cases, key=lambda pair: zlib.crc32(f"{name} {sorted(names_of(pair))}".encode()))


def rows_for(cases: Sequence[Pair], known: Verdicts) -> list[Row]:
    """Return rows in which each of these pairs is once: several at a time of those that work, the others alone."""
    axes = {choice.name: choice.axis for pair in cases for choice in pair}
    works = {names: verdict for names, verdict in known.items() if verdict.state == "works"}
    missing = {names_of(pair): pair for pair in cases if names_of(pair) in works}
    by_host: dict[str, Verdicts] = {BASE: {}}
    for names, verdict in works.items():
        if {axes.get(name) for name in names} != {"codec", "reduce"}:  # few strategies take a rule beside a codec
            by_host.setdefault(verdict.under or BASE, {})[names] = verdict
    rows = [row for host, verdicts in by_host.items() for row in _rows(host, verdicts, missing)]
    rest = [pair for pair in cases if known[names_of(pair)].state not in ("works", "untested")]
    return rows + [alone(pair, known) for pair in (*missing.values(), *rest)]


def _rows(host: str, known: Verdicts, missing: dict[frozenset[str], Pair]) -> list[Row]:
    """Return rows with the missing pairs among those that are known to work under a strategy, and take them out."""
    rows = []
    pending = [pair for names, pair in missing.items() if names in known]
    for chosen in rows_of(sorted(pending, key=lambda pair: pair[0].axis != "strategy"), known):
        ours = [missing.pop(names, None) for names in map(names_of, itertools.combinations(chosen, 2))]
        rows.append(Row(tuple(chosen), (host,), tuple(pair for pair in ours if pair)))
    return rows


def alone(pair: Pair, known: Verdicts) -> Row:
    """Return the row of one pair."""
    return Row(pair, (BASE,) if pair[0].axis == "strategy" else tuple(hosts_of(pair, known)), (pair,))


def play(player: Player, cases: Cases) -> list[Verdict]:
    """Return the verdicts on these cases."""
    return player.mapped("choices", verdict_of_hosts, cases, is_final=False)


def check(
    parts: dict[str, Sequence[Pair]],
    known: Verdicts,
    seconds: float,
    workers: int | None = None,
    play: Callable[[Player, Cases], list[Verdict]] = play,
) -> list[str]:
    """Play pairs of each part for an equal share of so many seconds; return a sentence for each that differs.

    A part that ends early leaves its seconds to the others. A chunk that has begun is played to its end. Pairs that
    work are played several at a time, and alone if that fails. A pair that differs is played once more, as other
    programs may have been in its way, and counts if it differs again. Pairs with hosts, which are network namespaces,
    are left out where this user can make none.
    """
    if not are_possible():
        parts = {part: [pair for pair in cases if "hosts" not in names_of(pair)] for part, cases in parts.items()}
    end, differences = time.monotonic() + seconds, list[str]()
    for place, (part, cases) in enumerate(parts.items()):
        begin = shown = time.monotonic()
        until = begin + (end - begin) / (len(parts) - place)
        pending, played = rows_for(in_order_of(commit(), cases), known), 0
        random.Random(commit()).shuffle(pending)
        total = sum(len(row.pairs) for row in pending)
        in_processes = any(choice.in_processes for pair in cases for choice in pair)
        count = workers or (os.cpu_count() or 1) + in_processes
        with TemporaryDirectory() as folder, ExitStack() as stack:
            journal = Journal(Path(folder, "results"))
            player = stack.enter_context(Player(count, journal, Silent(part), in_processes=in_processes))
            while pending and time.monotonic() < until:
                chunk, pending = pending[:CHUNK], pending[CHUNK:]
                played += sum(len(row.pairs) for row in chunk)
                for pair, verdict in _unlike(chunk, known, partial(play, player), journal):
                    said = f"the file says {known[names_of(pair)].state}, and it is {verdict.state}: {verdict.words}"
                    differences.append(f"{' + '.join(sorted(names_of(pair)))}: {said}")
                    print(differences[-1], flush=True)
                if time.monotonic() - shown > LINE_SECONDS:
                    shown = time.monotonic()
                    print(f"{part}: {played} of {total} pairs, {len(differences)} differ", flush=True)
        print(f"{part}: {played} of {total} pairs in {time.monotonic() - begin:.0f} s", flush=True)
    return differences


def _unlike(
    rows: Sequence[Row], known: Verdicts, play: Callable[[Cases], list[Verdict]], journal: Journal
) -> list[tuple[Pair, Verdict]]:
    """Return the pairs of these rows whose state is twice not the known one, each with its verdict."""

    def differs(row: Row, verdict: Verdict) -> bool:
        return any(verdict.state != known[names_of(pair)].state for pair in row.pairs)

    suspect = [
        row for row, verdict in zip(rows, play([row.case for row in rows]), strict=True) if differs(row, verdict)
    ]
    for _ in range(2):
        journal.clear()  # a pair may be a row
        suspect = [alone(pair, known) for row in suspect for pair in row.pairs]
        verdicts = play([row.case for row in suspect])
        ended = [(row, verdict) for row, verdict in zip(suspect, verdicts, strict=True) if differs(row, verdict)]
        suspect = [row for row, _ in ended]
    return [(row.pairs[0], verdict) for row, verdict in ended]
