"""Pairs played for a given time and held against `compatibility.json`, in an order that is that of the commit."""

from __future__ import annotations

import os
import subprocess
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.compatibility.journal import ROOT, Journal
from tests.compatibility.pairs import Pair, Verdicts, names_of, play_pairs
from tests.compatibility.player import Player
from tests.compatibility.progress import LINE_SECONDS, Progress
from tests.support.hosts import are_possible

CHUNK = 16
"""Pairs between two looks at the clock."""


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


def check(
    parts: dict[str, Sequence[Pair]],
    known: Verdicts,
    seconds: float,
    workers: int | None = None,
    play: Callable[[Sequence[Pair], Verdicts, Player], Verdicts] = play_pairs,
) -> list[str]:
    """Play pairs of each part for an equal share of so many seconds; return a sentence for each that differs.

    A part that ends early leaves its seconds to the others. A chunk that has begun is played to its end. A pair that
    differs is played once more, as other programs may have been in its way, and counts if it differs again. Pairs with
    hosts, which are network namespaces, are left out where this user can make none.
    """
    if not are_possible():
        parts = {part: [pair for pair in cases if "hosts" not in names_of(pair)] for part, cases in parts.items()}
    end, differences = time.monotonic() + seconds, list[str]()
    for place, (part, cases) in enumerate(parts.items()):
        begin = shown = time.monotonic()
        until = begin + (end - begin) / (len(parts) - place)
        pending, played = in_order_of(commit(), cases), 0
        in_processes = any(choice.in_processes for pair in cases for choice in pair)
        count = workers or (os.cpu_count() or 1) + in_processes
        with TemporaryDirectory() as folder, ExitStack() as stack:
            journal = Journal(Path(folder, "results"))
            player = stack.enter_context(Player(count, journal, Silent(part), in_processes=in_processes))
            while pending and time.monotonic() < until:
                chunk, pending = pending[:CHUNK], pending[CHUNK:]
                verdicts = play(chunk, known, player)
                played += len(verdicts)
                unlike = [pair for pair in chunk if _differs(pair, verdicts, known)]
                if unlike:
                    journal.clear()
                    verdicts = play(unlike, known, player)
                for pair in unlike:
                    if _differs(pair, verdicts, known):
                        names = names_of(pair)
                        verdict = verdicts[names]
                        said = f"the file says {known[names].state}, and it is {verdict.state}: {verdict.words}"
                        differences.append(f"{' + '.join(sorted(names))}: {said}")
                        print(differences[-1], flush=True)
                if time.monotonic() - shown > LINE_SECONDS:
                    shown = time.monotonic()
                    print(f"{part}: {played} of {len(cases)} pairs, {len(differences)} differ", flush=True)
        print(f"{part}: {played} of {len(cases)} pairs in {time.monotonic() - begin:.0f} s", flush=True)
    return differences


def _differs(pair: Pair, verdicts: Verdicts, known: Verdicts) -> bool:
    names = names_of(pair)
    return names in verdicts and verdicts[names].state != known[names].state
