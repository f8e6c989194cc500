"""`quorate doctor --data`: whether the workers of a script wait for data, and how many loader processes suffice."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from quorate.cli.tables import paragraphs, table, terminal_width
from quorate.core.errors import ConfigurationError
from quorate.core.resources import usable_cores
from quorate.launch.warm.alone import measured
from quorate.report.wording import bytes_in_words, number_in_words, seconds_in_words, share_in_words

PROGRAM = "quorate.launch.warm.loading"
STEPS = 8
"""Steps that a script makes at least."""
SMALL_SHARE = 0.05
"""Share of a step in which a worker may wait for data without being told to change anything."""


def measure(script: str, arguments: Sequence[str], workers: int) -> list[dict[str, Any]]:
    """Run the script in so many processes at once, each alone; return their answers, by rank.

    Raises `ConfigurationError` for a script that makes too few steps or has no loader, and `QuorateError` for one that
    fails.
    """
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, usable_cores() // workers))

    def run(_: int) -> dict[str, Any]:
        return measured(script, arguments, program=PROGRAM, steps=STEPS, environment={"OMP_NUM_THREADS": threads})

    with ThreadPoolExecutor(workers) as pool:
        answers = list(pool.map(run, range(workers)))
    if not all(answer["loader"] for answer in answers):
        raise ConfigurationError(
            f"{script} iterates over no torch.utils.data.DataLoader and no quorate.loader, so there is nothing to "
            "measure"
        )
    return answers


def verdict(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all workers together say: the share of waiting, rates and expected waits by number of processes, and
    the fewest that suffice. The slowest worker counts, as others may wait for it."""
    by_number: dict[int, list[float]] = {}
    failed = set[int]()
    for answer in answers:
        for trial in answer["trials"]:
            if trial["rate"]:
                by_number.setdefault(trial["processes"], []).append(trial["rate"])
            else:
                failed.add(trial["processes"])
    rates = {number: min(rates) for number, rates in sorted(by_number.items()) if number not in failed}
    busy = min(answer["busy"] for answer in answers)
    waits = {number: expected_wait(number, rate, busy) for number, rate in rates.items()}
    enough = [number for number, wait in waits.items() if wait < SMALL_SHARE * (busy + wait)]
    return {
        "share": max(answer["waited"] / answer["seconds"] for answer in answers),
        "busy": busy,
        "rates": rates,
        "waits": waits,
        "suffices": enough[0] if enough else None,
        "best": min(waits, key=lambda number: waits[number], default=None),
    }


def expected_wait(processes: int, rate: float, busy: float) -> float:
    """Return the seconds in which a step would wait for a batch.

    Without processes, batches are loaded between steps; otherwise beside them, if there are cores for both.
    """
    return 1.0 / rate if processes == 0 else max(0.0, 1.0 / rate - busy)


def in_words(script: str, answers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the waits of each worker, the table of rates, and what it means."""
    outcome, first = verdict(answers), answers[0]
    for rank, answer in enumerate(answers):
        who = f"worker {rank}: " if len(answers) > 1 else ""
        yield from paragraphs(
            f"{who}{answer['steps']} steps of {seconds_in_words(answer['seconds'])}, of which "
            f"{seconds_in_words(answer['waited'])} ({share_in_words(answer['waited'] / answer['seconds'])}) waited for "
            "data"
        )
    busy = outcome["busy"]
    yield from paragraphs(
        f"the rest of a step takes {seconds_in_words(busy)}, so {number_in_words(1.0 / max(busy, 1e-9))} batches/s of "
        f"{bytes_in_words(first['batch_bytes'])} are needed; num_workers is {first['processes']}",
        "",
    )
    waits = outcome["waits"]
    rows = [
        [
            str(number),
            number_in_words(rate),
            f"{bytes_in_words(rate * first['batch_bytes'])}/s",
            seconds_in_words(waits[number]) if waits[number] else "0",
        ]
        for number, rate in outcome["rates"].items()
    ]
    yield from table(["num_workers", "batches/s", "read", "a step would wait"], rows, terminal_width())
    errors = {trial["processes"]: trial["error"] for trial in first["trials"] if trial["rate"] is None}
    yield from paragraphs(*(f"num_workers={number} fails: {error}" for number, error in errors.items()))
    yield from paragraphs("", _advice(script, outcome, first["processes"]))


def _advice(script: str, outcome: Mapping[str, Any], processes: int) -> str:
    if outcome["share"] < SMALL_SHARE:
        return f"The loader is not the bottleneck: {share_in_words(outcome['share'])} of a step waits for data."
    number, best = outcome["suffices"], outcome["best"]
    if number is not None and number != processes:
        return f"The loader is the bottleneck. Pass num_workers={number} to the loader of {script}."
    if number is not None or best is None:
        return (
            "The loader is the bottleneck. It delivers enough batches while nothing is trained: training and loading "
            "share the cores, or an epoch starts processes that persistent_workers=True would keep."
        )
    advice = "" if best == processes else f" num_workers={best} is the best that was tried."
    return (
        f"The loader is the bottleneck, and no number of processes suffices here.{advice} Store examples decoded or "
        "smaller, or give each worker more cores."
    )
