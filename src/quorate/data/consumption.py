"""The batches that a worker's training loop has taken from its loaders since the last call."""

from __future__ import annotations

from collections import deque
from typing import Any

from quorate.core.clients import ClientRound, Turn
from quorate.core.errors import ConfigurationError


class Consumed:
    """Batches taken for training; those of an evaluation do not count."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds spent waiting for a loader."""
        self.examples: int | None = None
        self.all_examples = 0
        """Examples since the beginning."""
        self.all_tokens = 0
        """Tokens since the beginning, of batches that know their number."""
        self.full_batch = 1
        """Examples of a full batch."""
        self.tokens: int | None = None
        self.steps: int | None = None
        """Steps of all optimizers together; None: unknown, as none is distributed."""
        self.optimizers = 0
        """Optimizers that were distributed."""
        self.client_round: ClientRound | None = None
        """The round of clients that has begun and whose sum has not been formed; None outside of rounds."""
        self._turns: list[Turn] = []
        """Turns whose batches were taken since the last step, where clients are simulated."""
        self._of_step: int | None = None
        self.dealt: float | None = None
        """Under a dynamic share: the synchronous steps that all batches up to the newest one would have made."""
        self._ahead: deque[tuple[int, Any, bool]] | None = None

    def count_when_used(self) -> None:
        """Count each batch in the step that calls `use`: another thread takes batches ahead of the training loop."""
        self._ahead = deque() if self._ahead is None else self._ahead

    def use(self) -> None:
        """Count the oldest batch that was taken ahead, if there is one."""
        if self._ahead:
            examples, batch, counts = self._ahead.popleft()
            self._count(0.0, examples, batch, counts=counts)

    def forget_ahead(self) -> None:
        """Drop batches that were taken ahead, and that no step will use."""
        if self._ahead is not None:
            self._ahead.clear()

    def note(self, seconds: float, examples: int, batch: Any, *, counts: bool = True) -> None:
        """Note that a batch was taken; its `tokens`, where it has some, is a whole number. With `counts` False another
        worker counts its examples."""
        if self._ahead is None:
            self._count(seconds, examples, batch, counts=counts)
        else:
            self._ahead.append((examples, batch, counts))

    def _count(self, seconds: float, examples: int, batch: Any, *, counts: bool) -> None:
        self.seconds += seconds
        if not counts:
            self.examples = self.examples or 0
            return
        self.examples = (self.examples or 0) + examples
        self.all_examples += examples
        tokens = getattr(batch, "tokens", None)
        if isinstance(tokens, int):
            self.tokens = (self.tokens or 0) + tokens
            self.all_tokens += tokens

    def took_turn(self, turn: Turn | None) -> None:
        """Note the client of the batch that was taken last."""
        if self._of_step != self.steps or turn is None:
            self._turns.clear()
        self._of_step = self.steps
        if turn is not None:
            self._turns.append(turn)

    @property
    def turn(self) -> Turn | None:
        """The turn whose batches are in the current step; None where no clients are simulated. Raises
        `ConfigurationError` for batches of several clients."""
        several = sorted({turn.client for turn in self._turns})
        if len(several) > 1:
            raise ConfigurationError(
                f"one step has batches of clients {several[0]} and {several[1]}; a step is of one client: step after "
                "every batch"
            )
        return self._turns[-1] if self._turns else None

    @property
    def of_step(self) -> int:
        """Examples of the current step. Raises `ConfigurationError` where no loader counts them."""
        if self.examples is None:
            raise ConfigurationError("only quorate.loader counts examples; count steps or seconds")
        return self.examples

    def follow_steps(self) -> None:
        """Let an optimizer call `stepped` from now on, so that batches are known to be computed."""
        self.steps, self.optimizers = self.steps or 0, self.optimizers + 1

    def stepped(self) -> None:
        """Note that an optimizer's step has ended."""
        self.steps = (self.steps or 0) + 1

    def take(self) -> tuple[float, int | None, int | None]:
        """Return seconds, examples and tokens since the last call, and restart the counts."""
        counts = self.seconds, self.examples, self.tokens
        self.seconds, self.examples, self.tokens = 0.0, None, None
        return counts
