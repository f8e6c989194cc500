"""The table of combinations that are refused: each rule can fire, and `distribute` does what the table says."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adafactor, AdamW, Muon

import quorate
from quorate.core.axes import Axes
from quorate.core.errors import ConfigurationError
from quorate.means.reduction import reduction_of
from quorate.optim import AdaScale
from quorate.strategies import strategies
from quorate.train.combination import Combination
from quorate.train.compatibility import RULES, Rule, check, features, refusals, refused_features
from quorate.wire.virtual.world import VirtualWorld
from tests.support.every_strategy import OWN, optimizer_of
from tests.support.joined import joined

PIECES = {"axes": Axes(replicas=2, shards=2)}
TENSORS = {**PIECES, "optimizer": Muon, "shard_by": "tensors"}
TIED = {**PIECES, "shared": [(("a.weight", "b.weight"), torch.zeros(100, 100))]}
Choices = dict[str, Any]
"""Fields of a combination: `strategy` by its name, or with settings; `reduction` by its settings."""


class Own(SGD):
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return super().step(closure)


def of(name: str, **settings: Any) -> Any:
    return strategies.get(name)(**settings)


KEPT: Choices = {"strategy": of("all-reduce", on_death="continue", batch="kept")}

EXAMPLES: list[tuple[str, Choices, Choices]] = [
    (
        "wait for the gradients",
        {"strategy": of("quorum", batch="kept")},
        {"strategy": of("quorum", batch="kept", wait_for="all")},
    ),
    (
        'shrunk_rate="scaled" cannot',
        {"strategy": of("quorum", shrunk_rate="scaled")},
        {"strategy": of("all-reduce", on_death="continue", shrunk_rate="scaled")},
    ),
    ("there is a single one", {**KEPT, "axes": Axes(replicas=1, shards=2)}, PIECES),
    ("divides a step among replicas", {**KEPT, "axes": Axes(replicas=2, shards=1, stages=2)}, PIECES),
    ("adds up plain gradients", {**KEPT, "reduction": {"compress": "half"}}, {"reduction": {"reduce": "ring"}}),
    ("leave on_anomaly out", {**KEPT, "reduction": {"on_anomaly": "warn"}}, {"reduction": {}}),
    ("all micro-batches alike", {**KEPT, "weight": "examples"}, {"weight": "equal"}),
    ("asks for the loss in its step", {**KEPT, "optimizer": LBFGS}, {"optimizer": SGD}),
    ("and AdaScale compares", {**KEPT, "optimizer": AdaScale}, {"optimizer": SGD}),
    ("adds up dense", {**KEPT, "sparse_table": "table.weight"}, {"sparse_table": None}),
    ("divides the batches", {**KEPT, "has_loaders": True}, {"has_loaders": False}),
    ("is for one distributed", {**KEPT, "optimizers_before": 1}, {"optimizers_before": 0}),
    ("sync_batch_norm brings", {**KEPT, "syncs_norms": True}, {"syncs_norms": False}),
    ("gathered brings", {"gathers_features": True, "others_keep": True}, {"others_keep": False}),
    ("attacks change gradients", {"strategy": "quorum", "reduction": {"attack": "noise"}}, {"strategy": "diloco"}),
    ("compares the gradients", {"strategy": "quorum", "reduction": {"on_anomaly": "skip"}}, {"strategy": "all-reduce"}),
    (
        "watches plain means",
        {"reduction": {"on_anomaly": "skip", "reduce": "median"}},
        {"reduction": {"on_anomaly": "skip", "reduce": "ring"}},
    ),
    (
        "is for means of the gradients of whole models",
        {"strategy": "local-sgd", "reduction": {"reduce_dtype": "bfloat16"}},
        {"strategy": "all-reduce"},
    ),
    (
        "is for plain sums",
        {"strategy": "all-reduce", "reduction": {"reduce_dtype": "bfloat16", "compress": "half"}},
        {"reduction": {"reduce_dtype": "bfloat16"}},
    ),
    (
        "it cuts the gradients of whole models",
        {"strategy": "quorum", "reduction": {"part_bytes": 4096}},
        {"strategy": "all-reduce"},
    ),
    (
        "attacks and on_anomaly",
        {"strategy": "all-reduce", "reduction": {"autotune": True, "reduce": "ring"}},
        {"reduction": {"autotune": True}},
    ),
    (
        "a death may interrupt them",
        {"strategy": of("all-reduce", on_death="continue"), "reduction": {"autotune": True}},
        {"reduction": {"part_bytes": 4096}},
    ),
    (
        "arranges the gradients of one optimizer",
        {"reduction": {"part_layout": "measured"}, "optimizers_before": 1},
        {"optimizers_before": 0},
    ),
    ("scalar products", {"reduction": {"compress": "half", "reduce": "adasum"}}, {"reduction": {"reduce": "adasum"}}),
    (
        "forms only their sum",
        {"reduction": {"compress": "power-sgd", "reduce": "krum"}},
        {"reduction": {"compress": "half", "reduce": "krum"}},
    ),
    (
        "on each coordinate",
        {"reduction": {"compress": "top-k", "reduce": "median"}},
        {"reduction": {"compress": "top-k", "reduce": "krum"}},
    ),
    (
        "compares the decoded vectors",
        {"strategy": "quorum", "reduction": {"compress": "top-k", "clip_codes": True}},
        {"strategy": "diloco"},
    ),
    (
        "sums in its own way",
        {"reduction": {"compress": "power-sgd", "reduce": "gather"}},
        {"reduction": {"compress": "power-sgd"}},
    ),
    (
        "owners of pieces",
        {"reduction": {"compress": "dgc", "reduce": "two-phase"}},
        {"reduction": {"compress": "dgc", "reduce": "gather"}},
    ),
    (
        "as they are; leave reduce out",
        {"strategy": "detox", "reduction": {"reduce": "ring"}},
        {"reduction": {"reduce": "median"}},
    ),
    (
        "codes of all workers in each step",
        {"strategy": "quorum", "reduction": {"compress": "half", "reduce": "krum"}},
        {"strategy": "all-reduce"},
    ),
    (
        "go to neighbours",
        {"strategy": "choco-sgd", "reduction": {"compress": "half", "reduce": "gather"}},
        {"reduction": {"compress": "half"}},
    ),
    (
        "its latest result",
        {"strategy": "quorum", "reduction": {"reduce": "centered-clipping"}},
        {"strategy": "all-reduce"},
    ),
    ("it forms none", {"strategy": "quorum", "reduction": {"reduce": "ring"}}, {"reduction": {"reduce": "median"}}),
    (
        "does not average gradients",
        {"strategy": "local-sgd", "reduction": {"reduce": "adasum"}},
        {"reduction": {"reduce": "ring"}},
    ),
    (
        "a cyclic code",
        {"strategy": of("draco", code="cyclic"), "workers": 3, "reduction": {"reduce": "median"}},
        {"reduction": {"reduce": "mean"}},
    ),
    (
        "as they are; leave it out",
        {"strategy": "detox", "reduction": {"compress": "half", "reduce": "median"}},
        {"reduction": {"reduce": "median"}},
    ),
    ("Codecs write small", {"strategy": "local-sgd", "reduction": {"compress": "half"}}, {"strategy": "diloco"}),
    (
        "for sums of all workers",
        {"strategy": "quorum", "reduction": {"compress": "power-sgd"}},
        {"reduction": {"compress": "half"}},
    ),
    (
        "do not support",
        {"strategy": "quorum", "reduction": {"compress": "dgc"}},
        {"reduction": {"compress": "top-k"}},
    ),
    (
        "use a codec with",
        {"strategy": "diloco", "reduction": {"compress": "power-sgd"}},
        {"reduction": {"compress": "half"}},
    ),
    (
        "synchronous steps",
        {"strategy": of("diloco", after=3), "reduction": {"compress": "half"}},
        {"strategy": "diloco"},
    ),
    (
        "remembers nothing",
        {"strategy": "choco-sgd", "reduction": {"compress": "dgc"}},
        {"reduction": {"compress": "half"}},
    ),
    (
        "without error feedback",
        {"reduction": {"compress": "power-sgd", "error_feedback": False}},
        {"reduction": {"compress": "top-k", "error_feedback": False}},
    ),
    (
        "the next difference",
        {"strategy": "choco-sgd", "reduction": {"compress": "top-k", "error_feedback": True}},
        {"reduction": {"compress": "top-k"}},
    ),
    (
        "keeps its errors undiminished",
        {"reduction": {"compress": "power-sgd", "error_decay": 0.5}},
        {"reduction": {"compress": "top-k", "error_decay": 0.5}},
    ),
    (
        "no errors that could decay",
        {"reduction": {"compress": "half", "error_decay": 0.5}},
        {"reduction": {"compress": "top-k", "error_decay": 0.5}},
    ),
    (
        "hands errors on",
        {"reduction": {"compress": "top-k", "error_decay": 0.5, "reduce": "two-phase"}},
        {"reduction": {"compress": "top-k", "error_decay": 0.5, "reduce": "gather"}},
    ),
    (
        "is kept as it is",
        {"strategy": "quorum", "reduction": {"compress": "top-k", "error_decay": 0.5}},
        {"strategy": "all-reduce"},
    ),
    ("in a closure", {"strategy": "quorum", "optimizer": Own}, {"strategy": "all-reduce"}),
    ("step was put", {"strategy": "parameter-server", "has_own_step": True}, {"strategy": "easgd"}),
    ("around another", {"strategy": "parameter-server", "inner_optimizers": ["SGD"]}, {"strategy": "easgd"}),
    ("no such mean", {"strategy": "quorum", "optimizer": AdaScale}, {"strategy": "all-reduce"}),
    ("whose momentum it encodes", {"strategy": "one-bit-adam", "optimizer": SGD}, {"optimizer": AdamW}),
    (
        "known of optimizers of torch",
        {"strategy": of("quorum", momentum="worker"), "is_foreign": True},
        {"strategy": "quorum", "is_foreign": True},
    ),
    ("exchanges momenta", {"strategy": "one-bit-adam", "has_grad_scaler": True}, {"strategy": "all-reduce"}),
    (
        "are summed in two phases",
        {"strategy": "one-bit-adam", "reduction": {"compress": "sign", "reduce": "gather"}},
        {"strategy": "all-reduce"},
    ),
    ("use LARS or LAMB", {**PIECES, "optimizer": AdaScale}, {"optimizer": SGD}),
    ("whose scale changes", {"has_grad_scaler": True, "optimizer": AdaScale}, {"optimizer": SGD}),
    ("{instead}", {"strategy": "hogwild", "weight": "examples"}, {"strategy": "local-sgd"}),
    (
        "every gradient counts",
        {"weight": "tokens", "reduction": {"reduce": "adasum"}},
        {"reduction": {"reduce": "ring"}},
    ),
    (
        "no unit that a worker knows",
        {"weight": "tokens", "reduction": {"compress": "threshold", "of": "absolute", "reduce": "two-phase"}},
        {"reduction": {"compress": "threshold"}},
    ),
    ("plain means over", {**PIECES, "weight": "tokens"}, {"weight": "counted"}),
    ("a mean of micro-batches", {"axes": Axes(1, 1, stages=2), "weight": "counted"}, {"axes": Axes(1, 2)}),
    (
        "gradients of one weight",
        {"strategy": "gradient-coding", "workers": 3, "weight": "counted"},
        {"weight": "equal"},
    ),
    ("noise and secure", {"strategy": of("fed-avg", secure=True), "buffer": "mean"}, {"strategy": "fed-avg"}),
    (
        "weighs whole vectors, and workers",
        {"reduction": {"reduce": "krum"}, "divides_layers": True},
        {"reduction": {"reduce": "median"}, "divides_layers": True},
    ),
    (
        "codes numbers of several tensors",
        {"reduction": {"compress": "demo"}, "divides_layers": True},
        {"reduction": {"compress": "top-k"}, "divides_layers": True},
    ),
    ("quorate.parallelize", {"strategy": "draco", "workers": 3, **PIECES}, {"axes": None}),
    ("between replicas of shards", {"strategy": "adaptive", **PIECES}, {"strategy": "quorum"}),
    ("fragments of each stage", {"strategy": "streaming-diloco", **TIED}, {"strategy": "diloco"}),
    ("weighs them by", {"reduction": {"reduce": "adasum"}, **TIED}, {"reduction": {}}),
    (
        "its own code of it",
        {"reduction": {"compress": "half"}, **TIED},
        {"reduction": {"compress": "half", "dense": ("a.weight", "b.*")}},
    ),
    ("agrees in rounds", {"strategy": "quorum", **TENSORS}, {"strategy": "local-sgd"}),
    (
        "whose frozen variances and scales are of",
        {"shrinks": "quorate.shrink.prune", "strategy": "one-bit-adam"},
        {"shrinks": ""},
    ),
    (
        "which steps on matrices, as shared values are vectors",
        {"shrinks": "quorate.shrink.cluster()", "optimizer": torch.optim.Muon},
        {"optimizer": torch.optim.AdamW},
    ),
    (
        "which remembers gradients of the layers as they were",
        {"shrinks": "quorate.shrink.low_rank()", "optimizer": torch.optim.LBFGS},
        {"optimizer": torch.optim.AdamW},
    ),
    (
        "one that joins has no gradient yet",
        {"joins": True, "optimizer": AdaScale},
        {"joins": False},
    ),
    ("is for whole models on each worker", {"prunes": True, **PIECES}, {"axes": None}),
    ("whose library sends the gradients", {"prunes": True, "is_baseline": True}, {"is_baseline": False}),
    ("offload or the tensor axis", {**TENSORS, "offloads": True}, {"offloads": False}),
    (
        'momentum="average"',
        {"strategy": of("local-sgd", momentum="average"), **TENSORS},
        {"strategy": "local-sgd"},
    ),
    ("go on without one", {**PIECES, "asks_to_outlive": True}, {"strategy": "quorum"}),
    ("quorate.loader was called", {"strategy": "draco", "workers": 3, "has_loaders": True}, {"strategy": "robust"}),
    ("script for torch DDP", {"strategy": "draco", "workers": 3, "has_own_batches": True}, {"strategy": "robust"}),
    ("another optimizer's", {"strategy": "draco", "workers": 3, "others_repeat": True}, {"strategy": "robust"}),
    ("makes its own steps", {"is_baseline": True, "offloads": True}, {"is_baseline": False}),
    ("there is no model", {"offloads": True, "optimizer": LBFGS}, {"optimizer": SGD}),
    ("capturable=True", {"offloads": True, "is_capturable": True}, {"is_capturable": False}),
    ("between steps while", {"strategy": "local-sgd", "delays_update": True}, {"strategy": "all-reduce"}),
    ("in a thread", {**PIECES, "delays_update": True, "optimizer": Adafactor}, {"optimizer": SGD}),
    (
        "gives gradients of the batch before",
        {"strategy": "quorum", "delays_gradients": True},
        {"strategy": "all-reduce"},
    ),
    ("when workers may join", {"syncs_norms": True, "joins": True}, {"joins": False}),
    (
        "sync_batch_norm cannot be combined with tensor",
        {"syncs_norms": True, "shares_batches": True},
        {"shares_batches": False},
    ),
    (
        "along which workers have the same batch",
        {"gathers_features": True, "shares_batches": True},
        {"shares_batches": False},
    ),
    ("each forward pass", {"syncs_norms": True, "strategy": "quorum"}, {"strategy": "local-sgd"}),
    (
        "which have no sparse numbers",
        {"sparse_table": "table.weight", "strategy": "robust"},
        {"strategy": "all-reduce"},
    ),
    (
        "its rows are averaged as they are",
        {"sparse_table": "table.weight", "strategy": "all-reduce", "reduction": {"reduce": "median"}},
        {"reduction": {"reduce": "ring"}},
    ),
    (
        "corrects late gradients by the change of all numbers",
        {"sparse_table": "table.weight", "strategy": of("parameter-server", staleness_scaling="gap", mode="async")},
        {"strategy": of("parameter-server", mode="async")},
    ),
    (
        "would not receive the rows",
        {"sparse_table": "table.weight", "strategy": "quorum", "joins": True},
        {"strategy": "all-reduce"},
    ),
    (
        "It grows to all rows that any step has touched",
        {"sparse_table": "table.weight", "has_sparse_momentum": True, "strategy": of("local-sgd", momentum="average")},
        {"strategy": "local-sgd"},
    ),
    ("stepped where they lie", {"sparse_table": "table.weight", "offloads": True, **PIECES}, {"offloads": False}),
    (
        "without the optimizer's state",
        {"sparse_table": "table.weight", "strategy": of("post-local-sgd", momentum="average")},
        {"strategy": "post-local-sgd"},
    ),
    ("AdaScale measures dense", {"sparse_table": "table.weight", "optimizer": AdaScale}, {"optimizer": SGD}),
    ("under others all begin", {"joins": True, "strategy": "d-psgd"}, {"strategy": "quorum"}),
    ("has no servers", {"has_own_servers": True, "strategy": "quorum"}, {"strategy": "downpour"}),
    ("servers on workers", {"has_own_servers": True, "strategy": "easgd"}, {"strategy": "downpour"}),
    (
        "serve one distributed optimizer",
        {"has_own_servers": True, "strategy": "downpour", "optimizers_before": 1},
        {"optimizers_before": 0},
    ),
    ("a virtual worker holds", {"asks_for_pieces": True, "is_virtual": True}, {"is_virtual": False}),
    ("holds whole models", {"asks_for_pieces": True, "is_baseline": True}, {"is_baseline": False}),
    ("compare with all-reduce", {"is_virtual": True, "is_baseline": True}, {"is_virtual": False}),
]


def combined(choices: Choices) -> Combination:
    fields = {"label": "of-a-test", **choices}
    if isinstance(fields.get("strategy"), str):
        fields["strategy"] = of(fields["strategy"])
    if "reduction" in fields:
        fields["reduction"] = reduction_of(fields["reduction"])
    return Combination(**fields)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.sentence[:30])
def test_every_rule_refuses_a_combination_and_lets_one_like_it_pass(rule: Rule) -> None:
    ((_, choices, changes),) = [example for example in EXAMPLES if example[0] in " ".join(rule.sentence.split())]
    refused, allowed = combined(choices), combined({**choices, **changes})
    assert rule in refusals(refused)
    assert rule not in refusals(allowed)
    with pytest.raises(ConfigurationError) as error:
        check(refused, rule.feature)
    assert "{" not in str(error.value)
    assert rule.words(refused).count("None") == rule.sentence.count("None")


def test_each_example_is_of_one_rule() -> None:
    for words, _, _ in EXAMPLES:
        assert sum(words in " ".join(rule.sentence.split()) for rule in RULES) == 1, words


def test_nothing_is_refused_where_nothing_is_chosen() -> None:
    assert not list(refusals(Combination()))
    assert not list(refusals(replace(Combination(), strategy=of("all-reduce"), reduction=reduction_of({}))))


ASKED = ("compress", "aggregation rule", "attack", "on_anomaly", "weight")


def message_of(name: str, settings: Choices, world: quorate.World) -> str:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    try:
        quorate.distribute(optimizer_of(name, model.parameters(), lr=0.1), model, name, **settings)
    except ConfigurationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", sorted(set(strategies.names()) - set(OWN)))
def test_distribute_raises_where_the_table_says_no(name: str) -> None:
    refused = refused_features(strategies.get(name), name)
    for feature in ASKED:
        (message,) = set(VirtualWorld(3).run(joined(partial(message_of, name, features()[feature]))))
        assert message == (refused[feature][1] if feature in refused else ""), feature
