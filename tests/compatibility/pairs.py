"""All pairs of choices, and triples of a strategy, a codec or rule and a feature of the loop, each with its verdict."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.compatibility.choices import HOSTS, MESHES, Choice, choices
from tests.compatibility.laws import Verdict, refusal, training_of, verdict
from tests.compatibility.player import Player

Pair = tuple[Choice, Choice]
Triple = tuple[Choice, Choice, Choice]
Verdicts = dict[frozenset[str], Verdict]
"""By the names of two choices, or of one, which is under its strategies alone."""
MOST_IN_ROW = 6
"""The most choices without a strategy that are played at a time."""
MOST_HOSTS = 3
"""The most strategies under which a pair of other choices is tried."""
UNTESTED: Mapping[frozenset[str], str] = {
    frozenset(("GradScaler", "LBFGS")): "torch's GradScaler takes no closure, and LBFGS needs one",
    frozenset(
        ("LBFGS", "a worker joins")
    ): "LBFGS needs workers that make as many steps, and one that joins makes fewer",
    **{
        frozenset(("a worker joins", name)): "workers that join a training in processes are started by its launcher"
        for name in (*MESHES, "processes", "hosts")
    },
    frozenset(("clipping", "sparse gradients")): "torch's clip_grad_norm_ takes no sparse gradients",
    frozenset(("script of DDP", "clients")): "a script for torch DDP assigns its batches itself, and has no clients",
    **{
        frozenset(("script of DDP", mesh)): "a script for torch DDP gives each worker other batches, and workers that "
        "compute layers or a sequence together need the same"
        for mesh in ("tensor", "sequence")
    },
}
"""Pairs that no script can have, with the reason."""


def pairs(*, in_processes: bool = False) -> list[Pair]:
    """Return the pairs of choices on two axes that the virtual world plays, or that need processes."""
    return [
        (first, second)
        for first, second in itertools.combinations(choices(), 2)
        if first.axis != second.axis and (first.in_processes or second.in_processes) == in_processes
    ]


def names_of(chosen: Iterable[Choice]) -> frozenset[str]:
    """Return the key of these choices in `Verdicts`."""
    return frozenset(choice.name for choice in chosen)


def verdict_of(chosen: Sequence[Choice]) -> Verdict:
    """Return the verdict on choices with a strategy among them."""
    return UNTESTED_VERDICTS.get(names_of(chosen)) or verdict(training_of(chosen))


UNTESTED_VERDICTS = {names: Verdict("untested", reason) for names, reason in UNTESTED.items()}


def hosts_of(chosen: Sequence[Choice], known: Verdicts) -> list[str]:
    """Return the strategies that take each of these choices by itself, the usual ones first."""
    strategies = [choice.name for choice in choices() if choice.axis == "strategy"]
    takes = [
        name
        for name in (*HOSTS, *(name for name in strategies if name not in HOSTS))
        if all(known[frozenset((name, choice.name))].state == "works" for choice in chosen)
    ]
    return takes[:MOST_HOSTS]


def verdict_under(hosts: Sequence[str], pair: Sequence[Choice], play: Callable[..., Verdict] = verdict) -> Verdict:
    """Return the verdict on a pair without a strategy: the first that is no refusal, under these strategies."""
    if names_of(pair) in UNTESTED:
        return UNTESTED_VERDICTS[names_of(pair)]
    refusal = Verdict("refused", "no strategy takes both", "")
    for host in hosts:
        answer = play(training_of(pair, host))
        if answer.state != "refused":
            return answer
        refusal = answer if not refusal.under else refusal
    return refusal


def begins_under(case: tuple[Sequence[str], Pair]) -> str | Verdict:
    """Return the first of these strategies under which a pair begins, or the verdict that refuses it."""
    hosts, pair = case
    if names_of(pair) in UNTESTED:
        return UNTESTED_VERDICTS[names_of(pair)]
    refused = Verdict("refused", "no strategy takes both", "")
    for host in hosts:
        answer = refusal(training_of(pair, host))
        if answer is None:
            return host
        refused = refused if refused.under else answer
    return refused


def rows_of(pending: Sequence[Pair], known: Verdicts | None = None) -> list[list[Choice]]:
    """Return few rows of choices of different axes, of which all begin in pairs, so that each pair is in one.

    Pairs that work by the `known` verdicts may be in a row as well.
    """
    begin = {names for names, verdict in (known or {}).items() if verdict.state == "works"}
    begin, missing = begin | set(map(names_of, pending)), dict.fromkeys(map(names_of, pending))
    members = list(dict.fromkeys(choice for pair in pending for choice in pair))
    by_names, rows = {names_of(pair): pair for pair in pending}, []
    while missing:
        row = list(by_names[next(iter(missing))])
        while len(row) < MOST_IN_ROW:
            axes = {choice.axis for choice in row}
            gains = {
                choice: sum(names_of((choice, other)) in missing for other in row)
                for choice in members
                if choice.axis not in axes and all(names_of((choice, other)) in begin for other in row)
            }
            best = max(gains, key=lambda choice: gains[choice], default=None)
            if best is None or not gains[best]:
                break
            row.append(best)
        for pair in itertools.combinations(row, 2):
            missing.pop(names_of(pair), None)
        rows.append(row)
    return rows


def verdict_of_row(case: tuple[str, Sequence[Choice]]) -> Verdict:
    """Return the verdict on a strategy and a row of choices."""
    host, row = case
    return verdict(training_of(row, host))


def play_pairs(cases: Sequence[Pair], known: Verdicts, player: Player) -> Verdicts:
    """Return the verdicts on these pairs; `known` are those on other pairs. Pairs with a strategy are played first."""
    of_strategies = [pair for pair in cases if pair[0].axis == "strategy"]
    answers = player.mapped("pairs with a strategy (1 of 4)", verdict_of, of_strategies)
    found = dict(zip(map(names_of, of_strategies), answers, strict=True))
    others = [pair for pair in cases if pair[0].axis != "strategy"]
    return found | _play_others(others, known | found, player)


def _play_others(cases: Sequence[Pair], known: Verdicts, player: Player) -> Verdicts:
    """Return the verdicts on pairs without a strategy, several of which are played at a time, alone if that fails."""
    begun = player.mapped(
        "beginnings of other pairs (2 of 4)", begins_under, [(hosts_of(pair, known), pair) for pair in cases]
    )
    answers = {names_of(pair): answer for pair, answer in zip(cases, begun, strict=True) if isinstance(answer, Verdict)}
    rows: list[tuple[str, Sequence[Choice]]] = []
    for host in dict.fromkeys(answer for answer in begun if isinstance(answer, str)):
        pending = [pair for pair, answer in zip(cases, begun, strict=True) if answer == host]
        rows += [(host, row) for row in rows_of(pending, known)]
    of_rows = player.mapped("rows of pairs that begin (3 of 4)", verdict_of_row, rows, is_final=False)
    for (host, row), answer in zip(rows, of_rows, strict=True):
        if answer.state == "works":
            answers |= {names_of(pair): Verdict("works", under=host) for pair in itertools.combinations(row, 2)}
    alone = [(hosts_of(pair, known), pair) for pair in cases if names_of(pair) not in answers]
    played = player.mapped("pairs of rows that failed (4 of 4)", verdict_of_hosts, alone)
    wanted = set(map(names_of, cases))
    answers |= {names_of(pair): answer for (_, pair), answer in zip(alone, played, strict=True)}
    return {names: answer for names, answer in answers.items() if names in wanted}


def verdict_of_hosts(case: tuple[Sequence[str], Sequence[Choice]]) -> Verdict:
    """Return the verdict on choices without a strategy, under the first of these that takes them."""
    return verdict_under(*case)


def play_triples(cases: Sequence[Triple], player: Player) -> dict[str, Any]:
    """Return how many of these triples work, and the sentences of the others."""
    answers = player.mapped("a strategy, a codec and a loop", verdict_of, cases)
    others = {
        " + ".join(choice.name for choice in triple): f"{answer.state}: {answer.words}"
        for triple, answer in zip(cases, answers, strict=True)
        if answer.state != "works"
    }
    return {"played": len(cases), "works": len(cases) - len(others), "others": others}


def triples(known: Verdicts) -> Iterator[Triple]:
    """Yield the triples of a strategy, a codec or rule, and a feature of the loop of which no pair is refused."""
    by_axis: dict[str, list[Choice]] = {}
    for choice in choices():
        by_axis.setdefault(choice.axis, []).append(choice)
    for triple in itertools.product(by_axis["strategy"], by_axis["codec"] + by_axis["reduce"], by_axis["loop"]):
        if all(known[names_of(pair)].state == "works" for pair in itertools.combinations(triple, 2)):
            yield triple


def half_of(cases: Iterable[Triple]) -> list[Triple]:
    """Return the half of these triples in which each pair of a strategy and a codec has every second feature."""
    chosen = []
    for (strategy, code), group in itertools.groupby(cases, key=lambda triple: triple[:2]):
        offset = zlib.crc32(f"{strategy.name} {code.name}".encode()) % 2
        chosen += [triple for place, triple in enumerate(group) if place % 2 == offset or place == 0]
    return chosen
