"""`make compatibility`: play all pairs of choices, write `compatibility.json` and the pages, and name what fails.

`make compatibility PART=virtual` plays the pairs of the virtual world, `PART=processes` those that need processes,
hosts or a mesh, `PART=triples` half of the triples, `PART=changed` the pairs that failed, or that the file does not
have. Results of other parts are kept. The exit status is 1 if a cell fails.

Each result is kept in `build/compatibility` as it comes. A run that was interrupted goes on from there if the code is
the same; `make compatibility PART="processes --fresh"` begins again.

`make compatibility PART="virtual processes --check 600"` plays pairs for 600 seconds and holds their states against
the file, which stays as it is. Pairs that work are played several at a time, so that all take less than that on two
cores. Each commit has an order of its own, so that several play all pairs where that is too short.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.compatibility.check import check
from tests.compatibility.journal import FOLDER, ROOT, Journal, fingerprint
from tests.compatibility.pairs import Pair, Verdicts, half_of, names_of, pairs, play_pairs, play_triples, triples
from tests.compatibility.player import Player
from tests.compatibility.progress import Progress
from tests.compatibility.table import kept_triples, kept_verdicts, table_of, write

PARTS = ("virtual", "triples", "processes", "changed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the parts that were asked for, and return the exit status."""
    parser = argparse.ArgumentParser(prog="make compatibility", description="Play all pairs of choices.")
    parser.add_argument("parts", nargs="*", choices=PARTS, default=["virtual", "triples", "processes"])
    parser.add_argument("--workers", type=int, help="trainings at a time")
    parser.add_argument("--fresh", action="store_true", help="forget the results of an interrupted run of this code")
    parser.add_argument("--check", type=float, metavar="SECONDS", help="hold pairs against the file for so long")
    given = parser.parse_args(arguments)
    if given.check is not None:
        known = kept_verdicts()
        differences = check({part: _pairs_of(part, known) for part in given.parts}, known, given.check, given.workers)
        print(f"pairs whose state is not that of the file: {len(differences)}")
        return int(bool(differences))
    journal = Journal(FOLDER / f"{fingerprint()}.jsonl")
    if given.fresh:
        journal.clear()
    if journal:
        print(f"{len(journal)} results of an interrupted run are kept; --fresh begins again", flush=True)
    verdicts, of_triples = kept_verdicts(), kept_triples()
    for part in given.parts:
        begin, spent = time.monotonic(), _cpu_seconds()
        cases = _pairs_of(part, verdicts)
        in_processes = any(choice.in_processes for pair in cases for choice in pair)
        workers = given.workers or (os.cpu_count() or 1) + in_processes
        with Player(workers, journal, Progress(part), in_processes=in_processes) as player:
            if part == "triples":
                of_triples = play_triples(half_of(triples(verdicts)), player)
            else:
                verdicts |= play_pairs(cases, verdicts, player)
        seconds, cpu = time.monotonic() - begin, _cpu_seconds() - spent
        print(f"{part}: {seconds:.0f} s, {cpu:.0f} s of CPU", flush=True)
        write(table_of(verdicts, of_triples))
    for script in ("compatibility_page.py", "support_table.py"):
        subprocess.run([sys.executable, ROOT / "docs" / script], check=True, stdout=subprocess.DEVNULL)
    journal.clear()
    return report(verdicts, of_triples)


def _pairs_of(part: str, verdicts: Verdicts) -> list[Pair]:
    return [
        pair
        for in_processes in (False, True)
        for pair in pairs(in_processes=in_processes)
        if part == ("processes" if in_processes else "virtual")
        or (part == "changed" and (names_of(pair) not in verdicts or verdicts[names_of(pair)].state == "fails"))
    ]


def report(verdicts: Verdicts, of_triples: Mapping[str, Any]) -> int:
    """Print how many pairs are in which state, and all that fail; return the exit status."""
    counts = Counter(verdict.state for verdict in verdicts.values())
    late = sum(verdict.when == "first step" for verdict in verdicts.values())
    missing = [pair for of in (False, True) for pair in pairs(in_processes=of) if names_of(pair) not in verdicts]
    print(f"pairs: {dict(counts)}; {late} refused in the first step, before any update; {len(missing)} not played")
    print(f"triples: {of_triples.get('works', 0)} of {of_triples.get('played', 0)} work")
    for names, verdict in verdicts.items():
        if verdict.state == "fails":
            print(f"fails: {' + '.join(sorted(names))} under {verdict.under}: {verdict.words}")
    failed = [f"{names}: {words}" for names, words in of_triples.get("others", {}).items() if words.startswith("fails")]
    print(*(f"fails: {line}" for line in failed), sep="\n", end="\n" if failed else "")
    return int(bool(counts["fails"] or failed))


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print(f"interrupted; the results are kept in {FOLDER}, and the same command goes on from them")
        sys.exit(130)
