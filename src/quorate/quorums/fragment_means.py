"""The means of rounds of fragments: see `rounds.fragments`."""

from __future__ import annotations

from collections.abc import Sequence

from quorate.core.means import Mean
from quorate.core.vectors import Layout, in_layout, layout_on_cpu
from quorate.quorums.round_watch import RoundWatch
from quorate.rounds.fragments import Fragments
from quorate.rounds.log import Round


def mean_of_fragments(
    round: Round, fragments: Fragments, rank: int, watch: RoundWatch, learners: Sequence[int] = ()
) -> Mean | None:
    """Return the sums of `round` by fragment, not divided; None if some sum is not finite and is left out.

    `learners` says which learner each worker is of, if learners are of several workers.
    """
    assert round.sum is not None
    parts = fragments.split(round.sum) if round.is_pause else [round.sum]
    are_left_out = [watch.leaves_out(round, part, is_scaled=False) for part in parts]
    if any(are_left_out):
        return None
    first = 0 if round.is_pause else fragments.number(round.number)
    living = {learner for rank, learner in enumerate(learners) if rank not in round.missing}
    return Mean(
        mean=round.sum,
        contributions=sum(count for _, count in round.contributors.get(rank, ())),
        payloads=round.measures,
        learners=round.alive if not learners else len(living),
        ages={rank: pairs[0][0] // len(fragments.layouts) for rank, pairs in round.contributors.items() if pairs},
        fragments={number: in_layout(x, fragments.layouts[number]) for number, x in enumerate(parts, first)},
    )


def on_cpu(fragments: Sequence[Layout]) -> Fragments:
    """Return `fragments` laid out on the CPU, where rounds are formed."""
    return Fragments(tuple(layout_on_cpu(layout) for layout in fragments))
