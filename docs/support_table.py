"""The page of what was tested with which strategy, `reference/support.md`, from the cases of the tests.

`python docs/support_table.py` writes it. To add a column, add a `Feature`: what refuses it, and the cases that test it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "src")) if path not in sys.path]

from quorate.core.strategy import Strategy  # noqa: E402 - its folder was not in the path
from quorate.strategies import strategies  # noqa: E402
from quorate.train.compatibility import refused_features  # noqa: E402

PAGE = Path(__file__).parent / "reference" / "support.md"
MARKS = ("parametrize", "covering")
LOOKS = {"tested": "**tested**", "refused": "*refused*", "untested": "untested"}
ROBUST = "In pieces, with failures, and again"


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A column of the table."""

    head: str
    meaning: str
    part: str = "Where it trains"
    """The heading of the table that has this column."""
    cases: tuple[str, ...]
    """`module:name` in `tests`: a test, whose marks name strategies, or a collection of cases."""
    refused: str | Callable[[type[Strategy]], bool] | None = None
    """A feature of `compatibility.features`, or a rule on the class of the strategy."""


def _shares_memory(kind: type[Strategy]) -> bool:
    return kind.replicas == "shared"


def _has_no_rounds(kind: type[Strategy]) -> bool:
    return kind.meets != "rounds"


FEATURES = (
    Feature(
        head="virtual workers",
        meaning="several virtual workers end with equal replicas, and the same seed gives the same run",
        cases=(
            "contract.test_strategies:TestEveryStrategy.test_finish_leaves_equal_replicas",
            "unit.strategies.test_coded:test_finish_leaves_equal_replicas_at_every_size",
            "unit.strategies.test_gradient_coding:test_the_mean_is_exact_after_a_death",
        ),
    ),
    Feature(
        head="GPU",
        meaning="a training on a GPU: on one H100, or on a second device made of the CPU's memory "
        "([what was tested](../howto/gpus.md#what-has-been-tested))",
        cases=(
            "gpu.test_trainings:test_every_strategy_learns",
            "gpu.test_trainings:test_where_workers_compute_the_same_batches",
        ),
        refused=_shares_memory,
    ),
    Feature(
        head="AMP on a GPU",
        meaning="`torch.autocast` in bfloat16, and in float16 with a `GradScaler`",
        cases=("gpu.test_trainings:test_mixed_precision",),
        refused=_shares_memory,
    ),
    Feature(
        head="`torch.compile` on a GPU",
        meaning="a compiled model, whole on each worker",
        cases=("gpu.test_trainings:COMPILED",),
        refused=_shares_memory,
    ),
    Feature(
        head="both on CPUs",
        meaning="a compiled model, whole on each worker, under `torch.autocast` in bfloat16. In shards compiled models "
        "are tested under `all-reduce`; virtual workers do not compile",
        cases=("world.test_compiled:COMPILED",),
    ),
    Feature(
        head="several hosts",
        meaning="two hosts of two workers; the hosts are network namespaces of one machine",
        cases=("world.test_strategies_across_hosts:ACROSS",),
        refused=_shares_memory,
    ),
    Feature(
        head="shards",
        part=ROBUST,
        meaning="replicas in pieces: ZeRO, tensor parallelism, stages or experts",
        cases=(
            "world.test_sharding:STRATEGIES",
            "world.test_tensor_parallel:STRATEGIES",
            "world.test_experts:STRATEGIES",
            "world.test_offload:STRATEGIES",
            "world.test_sharded_rounds:test_a_late_replica_is_not_waited_for_and_ends_with_the_same",
        ),
        refused="shards/stages/tensor",
    ),
    Feature(
        head="a worker dies",
        part=ROBUST,
        meaning='the others go on, with `on_death="continue"` where that is not the default',
        cases=(
            "unit.train.test_layers_that_freeze:LATE",
            "unit.strategies.test_deaths_between_means:test_random_deaths",
            "unit.strategies.test_deaths_by_messages:test_random_deaths_in_sums_of_messages",
            "unit.strategies.test_gradient_coding:test_the_mean_is_exact_after_a_death",
            "unit.rounds.test_joining:ON_SERVERS",
            "contract.test_replay:test_who_died_dies_again",
            "world.test_failures_between_hosts:STRATEGIES",
            "support.gossip_deaths:NAMES",
            "world.test_federated:VARIANTS",
        ),
        refused="outliving a death",
    ),
    Feature(
        head="workers join",
        part=ROBUST,
        meaning="a new worker joins, in place of a dead one or in addition",
        cases=(
            "unit.train.test_layers_that_freeze:JOINED",
            "unit.rounds.test_joining:IN_SUMS",
            "unit.rounds.test_joining:ON_SERVERS",
            "world.test_newcomers:test_one_comes_in_place_of_the_dead_and_one_more_when_asked_for",
            "contract.test_replay:LET_JOIN",
        ),
        refused="joining",
    ),
    Feature(
        head="replay",
        part=ROBUST,
        meaning="`quorate replay` gives the same bits; strategies without rounds are refused",
        cases=("contract.test_replay:OF_ROUNDS",),
        refused=_has_no_rounds,
    ),
)


def tested(case: str) -> set[str]:
    """Return the strategies that are named in a test's marks, or in a collection of cases."""
    module, _, path = case.partition(":")
    value: Any = import_module(f"tests.{module}")
    for name in path.split("."):
        value = getattr(value, name)
    if callable(value):
        value = [mark.args for mark in getattr(value, "pytestmark", ()) if mark.name in MARKS]
    return {name for name in _texts(value) if name in strategies.places}


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in nested collections, in cases of pytest, and in the field `strategy` of other objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif hasattr(value, "values") and hasattr(value, "marks"):
        yield from _texts(value.values)
    elif hasattr(value, "strategy"):
        yield value.strategy
    elif hasattr(value, "__iter__"):
        for item in value:
            yield from _texts(item)


def cells(features: Sequence[Feature] = FEATURES) -> dict[str, list[str]]:
    """Return for each strategy "tested", "refused" or "untested", feature by feature."""
    names = [name for name, place in strategies.places.items() if place.startswith("quorate.")]
    table: dict[str, list[str]] = {name: [] for name in names}
    for feature in features:
        covered = set().union(*map(tested, feature.cases))
        for name in names:
            is_tested = "tested" if name in covered else "untested"
            table[name].append("refused" if _refuses(feature, name) else is_tested)
    return table


def _refuses(feature: Feature, name: str) -> bool:
    kind = strategies.get(name)
    if feature.refused is None or callable(feature.refused):
        return feature.refused is not None and feature.refused(kind)
    return feature.refused in refused_features(kind, name)


def page() -> str:
    """Return the text of the page."""
    lines = [
        "# What is tested with which strategy",
        "",
        "Made by `python docs/support_table.py` from the cases of the tests and from the table of refused",
        "combinations; a test fails if this page is out of date.",
        "",
        "- **tested**: a test trains this combination, with some settings of the strategy;",
        "- *refused*: the combination ends with one sentence before the training starts;",
        "- untested: nothing refuses it, and no test shows that it works. It may.",
        "",
    ]
    for part in dict.fromkeys(feature.part for feature in FEATURES):
        lines += [f"## {part}", "", *_part([feature for feature in FEATURES if feature.part == part]), ""]
    return "\n".join(
        [
            *lines,
            "## More combinations",
            "",
            "[What goes with what](compatibility.md) has all pairs of strategies, codecs, rules, optimizers and more,",
            "each played in a short training, with the reason for each refusal. `quorate explain A B` prints one of",
            "them, and `quorate explain NAME` the features that a strategy takes.",
            "",
        ]
    )


def _part(features: Sequence[Feature]) -> list[str]:
    return [
        "| column | meaning | cases in `tests/` |",
        "|---|---|---|",
        *(f"| {feature.head} | {feature.meaning} | {', '.join(map(_place, feature.cases))} |" for feature in features),
        "",
        f"| strategy | {' | '.join(feature.head for feature in features)} |",
        f"|{'---|' * (len(features) + 1)}",
        *(f"| `{name}` | {' | '.join(LOOKS[cell] for cell in row)} |" for name, row in cells(features).items()),
    ]


def _place(case: str) -> str:
    module, _, name = case.partition(":")
    return f"`{module.replace('.', '/')}.py` (`{name}`)"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
