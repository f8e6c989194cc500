"""What is known beforehand in a replay: when rounds come, and what they take in."""

from __future__ import annotations

import json
from dataclasses import dataclass

from quorate.core.errors import Diverged
from quorate.records.round_rows import RoundRow
from quorate.rounds.log import Round


@dataclass(frozen=True)
class Decided:
    """The work of a contribution: nothing is waited for, as it is known when each round comes."""

    number: int
    is_called_for: bool = True

    def done(self) -> bool:
        """Always."""
        return True

    def wait(self, timeout: float | None = None) -> int:
        """The number of the next round."""
        return self.number


def compare(one: Round, recorded: RoundRow) -> None:
    """Raise `Diverged` where a round takes in something else than the recorded run did."""
    found = json.loads(json.dumps({str(rank): given for rank, given in one.contributors.items()}))
    took = json.loads(json.dumps(recorded.contributors))
    if found != took:
        raise Diverged(
            f"round {one.number} takes in {found} in the replay, and took in {took} (by rank, pairs of staleness and "
            "number): the script does something else than the recorded run did",
            tuple(one.contributors),
        )
