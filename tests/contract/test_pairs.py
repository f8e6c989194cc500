"""Pairs of choices have the state that `compatibility.json` gives them; `make compatibility` plays all of them."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
import torch

from quorate.cli.together import compatibility
from quorate.core.errors import ConfigurationError
from quorate.strategies import strategies
from quorate.train.compatibility import refused_features
from tests.compatibility.choices import Choice, choices
from tests.compatibility.laws import Ended, broken_laws, broken_laws_of_resume, of_error, training_of
from tests.compatibility.pairs import names_of, pairs, verdict_of, verdict_under
from tests.compatibility.table import table_of, verdicts_in
from tests.compatibility.training import End

VIRTUAL = [choice for choice in choices() if not choice.in_processes]
BY_NAME = {choice.name: choice for choice in choices()}
OF_THE_TABLE = {
    "compress": "half",
    "aggregation rule": "median",
    "reduce=ring": "ring",
    "reduce=adasum": "adasum",
    "attack": "attack",
    "on_anomaly": "on_anomaly",
    "reduce_dtype": "reduce_dtype",
    "weight": "weight",
    "AdaScale": "AdaScale",
    "LBFGS": "LBFGS",
    "outliving a death": "a worker dies",
    "keeping the batch": "the batch is kept",
    "joining": "a worker joins",
    "sparse gradients": "sparse gradients",
}
"""Features of the table of refused combinations, and the choices that stand for them."""
MOST_UNTESTED = 0.02


def state_of(first: str, second: str) -> str:
    answer = compatibility().of(first, second)
    return "" if answer is None else answer.state


def sample() -> list[tuple[str, str]]:
    """Return pairs in which each choice of the virtual world is at least once, the same in every run."""
    cases, covered = list[tuple[str, str]](), set[str]()
    for choice in VIRTUAL:
        if choice.name not in covered:
            others = [other.name for other in VIRTUAL if other.axis != choice.axis]
            taken = [name for name in others if state_of(choice.name, name) == "works"]
            taken = [name for name in taken if name not in covered] or taken
            if not taken:  # a reducer of codes, for one
                continue
            second = taken[zlib.crc32(choice.name.encode()) % len(taken)]
            covered |= {choice.name, second}
            cases.append((choice.name, second))
    return cases


def played(first: str, second: str) -> str:
    """Return the state of a pair, which is played now."""
    pair: tuple[Choice, Choice] = tuple(sorted((BY_NAME[first], BY_NAME[second]), key=choices().index))  # type: ignore[assignment]
    if pair[0].axis == "strategy":
        return verdict_of(pair).state
    answer = compatibility().of(first, second)
    assert answer is not None
    return verdict_under([answer.under], pair).state


@pytest.mark.parametrize(("first", "second"), sample())
def test_a_pair_has_the_state_of_the_table(first: str, second: str) -> None:
    assert played(first, second) == state_of(first, second)


REFUSED = [
    ("quorum", "dgc"),
    ("local-sgd", "adasum"),
    ("one-bit-adam", "GradScaler"),
    ("d-psgd", "a worker joins"),
    ("robust", "sparse gradients"),
]
MENDED = [
    ("a worker joins", "adaptive"),
    ("a worker joins", "easgd"),
    ("majority", "qsgd"),
    ("AdaScale", "a worker joins"),
    ("zero-one-adam", "a worker joins"),
    ("LBFGS", "frozen layers"),
    ("async-local-sgd", "prune"),
    ("fed-buff", "prune"),
    ("a worker joins", "low_rank"),
    ("a worker joins", "momentum=average"),
    ("a worker joins", "momentum=reset"),
    ("clients", "the batch is kept"),
]
"""Pairs that failed once, and work or are refused now."""


def test_some_pairs_of_all_axes_have_the_state_of_the_table() -> None:
    for pair in [*sorted(sample(), key=lambda pair: zlib.crc32(" ".join(pair).encode()))[:12], *REFUSED, *MENDED]:
        assert played(*pair) == state_of(*pair), pair


def test_every_pair_has_an_answer_and_none_fails() -> None:
    table = compatibility()
    assert [name for names in table.axes.values() for name in names] == [choice.name for choice in choices()]
    verdicts = verdicts_in(table)
    of_strategies = [pair for pair in pairs() if pair[0].axis == "strategy"]
    assert not [names_of(pair) for pair in of_strategies if names_of(pair) not in verdicts], "PART=changed"
    assert not [sorted(names) for names, verdict in verdicts.items() if verdict.state == "fails"]
    untested = [names for names, verdict in verdicts.items() if verdict.state == "untested"]
    assert len(untested) <= MOST_UNTESTED * len(verdicts)
    assert all(verdicts[names].words for names in untested)
    others = table.triples.get("others", {})
    assert not [names for names, words in others.items() if not words.startswith("refused")]


@pytest.mark.parametrize("name", compatibility().axes["strategy"])
def test_the_table_of_refusals_says_the_same(name: str) -> None:
    kind = strategies.get(name)
    refused = refused_features(kind, name)
    for feature, choice in OF_THE_TABLE.items():
        if feature == "reduce=ring" and "compress" in kind.reduction:
            continue  # the feature leaves the strategy's codec out
        if feature == "joining" and name == "streaming-diloco":
            continue  # it is played without overlap
        assert (state_of(name, choice) == "refused") == (feature in refused), feature


def test_what_is_written_is_what_is_read() -> None:
    table = compatibility()
    assert table_of(verdicts_in(table), table.triples) == replace(table, axes={k: [*v] for k, v in table.axes.items()})


def test_a_refusal_after_the_first_step_fails() -> None:
    training = training_of([BY_NAME["quorum"]])
    refusal = ConfigurationError("no")
    for end, state in (
        (End(), "refused"),
        (End(phase="first step"), "refused"),
        (End(steps=1, phase="later"), "fails"),
    ):
        assert of_error(Ended([], refusal, [end]), training).state == state
    assert of_error(Ended([], ValueError("no"), [End()]), training).state == "fails"


def ends(**changes: object) -> list[End]:
    x = [torch.ones(2)]
    return [End(paused=x, last=[torch.zeros(2)], start=[torch.full((2,), 3.0)], steps=4, began=1, **changes)] * 2  # type: ignore[arg-type]


def test_each_law_finds_what_breaks_it() -> None:
    training = training_of([BY_NAME["all-reduce"]])
    whole, other = ends(), [torch.ones(2) + 1]
    assert not [*broken_laws(training, whole), *broken_laws_of_resume(training, whole, whole)]
    broken = {
        "pause: the replicas differ by 1": [whole[0], replace(whole[1], paused=other)],
        "end: the replicas differ by 2": [whole[0], replace(whole[1], last=other)],
        "end: a number is not finite": [replace(end, last=[torch.full((2,), float("inf"))]) for end in whole],
        "end: nothing was learnt": [replace(end, last=end.start) for end in whole],
        "conservation: of a weight of 2 rounds account for 1": [replace(end, produced=2, accounted=1) for end in whole],
        "pause: no worker came to it": [replace(end, paused=[]) for end in whole],
    }
    for words, of_workers in broken.items():
        assert next(broken_laws(training, of_workers)) == words
    resumed = {
        "resume: it began in the epochs [0, 0]": [replace(end, began=0) for end in whole],
        "resume: the checkpoint differs by 1": [replace(end, paused=other) for end in whole],
        "resume: the end differs by 2": [replace(end, last=other) for end in whole],
    }
    for words, of_workers in resumed.items():
        assert next(broken_laws_of_resume(training, whole, of_workers)) == words
