"""The texts of `--shrink`: their steps, their moments, and wrong ones."""

from __future__ import annotations

import pytest

from quorate.core.errors import ConfigurationError
from quorate.shrink.choices import ClusterChoice, LowRankChoice, PruneChoice, choices_from, events_of


def test_steps_of_a_text() -> None:
    prune, cluster = choices_from("prune:amount=0.9,scope=global+cluster:groups=8,layers=a.*|b")
    assert prune == PruneChoice(amount=0.9, scope="global")
    assert cluster == ClusterChoice(groups=8, layers="a.*|b") and cluster.patterns == ["a.*", "b"]
    assert choices_from("low-rank:share=0.25,layers=2") == (LowRankChoice(share=0.25, layers=2),)
    assert choices_from("none") == () and choices_from("cluster") == (ClusterChoice(),)


def test_pruning_is_gradual_by_shares_and_at_once_by_steps() -> None:
    turns = list(PruneChoice(amount=0.9, count=3).turns())
    assert [at for at, _ in turns] == pytest.approx([0.2, 0.4, 0.6])
    assert [share for _, share in turns] == pytest.approx([1 - 8 / 27, 1 - 1 / 27, 1.0])
    assert list(PruneChoice(amount=0.9, at=100).turns()) == [(100, 1.0)]
    assert [at for at, _ in PruneChoice(amount=0.9, at=100, until=200, count=3).turns()] == [100, 150, 200]


def test_events_are_in_order_and_a_check_comes_before_the_next_turn() -> None:
    events = events_of(choices_from("prune:amount=0.9,count=2,guard=0.1+cluster:at=0.31"))
    assert [(event.choice.kind, event.at, event.checks) for event in events] == [
        ("prune", 0.2, False),
        ("prune", pytest.approx(0.3), True),
        ("cluster", 0.31, False),
        ("prune", 0.6, False),
        ("prune", pytest.approx(0.7), True),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prume:amount=0.9", 'unknown step of --shrink "prume"; did you mean "prune"?'),
        ("prune:0.9", '"0.9" in the step of --shrink "prune:0.9" is not a setting; write prune:key=value'),
        ("prune", '"prune" lacks the share of numbers to prune; write prune:amount=0.9'),
        ("prune:amount=1.5", "amount=1.5 of prune is a share of the numbers, above 0 and below 1"),
        ("prune:amount=0.5,count=0", "count=0 of prune is a number of turns, at least 1"),
        ("prune:amount=0.5,at=100,until=0.5", "until=0.5 of prune is in the unit of at=100, and not before it"),
        ("prune:amount=0.5,at=0.5,until=0.2", "until=0.2 of prune is in the unit of at=0.5, and not before it"),
        ("prune:amont=0.5", 'unknown setting of prune "amont"; did you mean "amount"?'),
        ("low-rank", "low-rank takes either rank or share, as in low-rank:share=0.25"),
        ("low-rank:rank=2,share=0.1", "low-rank takes either rank or share"),
        ("low-rank:rank=half", "the setting rank of low-rank is 'half'; it should be a whole number"),
        ("cluster:at=-1", "at=-1 of cluster is a share of the training, from 0 to below 1, or a number of steps"),
        ("cluster:at=1.5", "at=1.5 of cluster is a share of the training"),
        ("cluster:guard=-1", "guard=-1 of cluster is a relative rise of the loss, at least 0"),
        ("cluster:patience=0.1", "patience of cluster says when guard compares losses; set guard as well"),
        ("cluster:guard=1,patience=5", "patience=5 of cluster is in the unit of at=0.75"),
        ("prune:amount=0.5+cluster:at=100", "has both shares of the training and numbers of steps; give each its at"),
    ],
)
def test_wrong_texts(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        choices_from(text)
    assert words in str(refused.value)
