"""What rounds need of the replica whose rounds they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor


class Replica(Protocol):
    """To copy one replica onto another, and to keep it in a checkpoint."""

    def capture(self, *, is_whole: bool) -> tuple[dict[str, Any], Sequence[Tensor]]:
        """Parameters and optimizer, as JSON and tensors; nothing of it changes afterwards. With `is_whole` all that one
        that joins needs: the rest of the model, and where it is in the data."""

    def adopt(self, header: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        """Become what was captured."""

    def reached(self, number: int, term: int, *, in_step: bool) -> bool:
        """Round `number`, which is to be kept, is applied. False: it is kept later (`Rounds.keep`), as this is inside
        a step, and no further round may be applied before."""

    def met(self, number: int, joined: Sequence[int]) -> None:
        """In round `number` all have settled, with those that have `joined` by then: what all workers call together
        from here on, these call as well."""

    def boundary(self) -> None:
        """What is to be kept is kept now."""
