"""One pass of a loader over an epoch, or its remainder: the batches fetched, returned and computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from torch import Tensor

from quorate.core.clients import ClientRound, Turn
from quorate.data.assignment import Share, epoch_order
from quorate.data.position import Begun, left_of, numbers_in, union


class Iteration:
    """The batches of one pass.

    The order is drawn when the pass is made, so that successive passes have the epochs in which they began. A returned
    batch is *in hand* until it is `settled`.
    """

    def __init__(self, share: Share, examples: int, batch_size: int, epoch: int, number: int, begun: Begun) -> None:
        self.epoch, self.number, self.began = epoch, number, begun
        self._share, self._batch_size = share.of_epoch(epoch), batch_size
        order = epoch_order(examples, seed=share.seed, epoch=epoch, shuffle=share.shuffle)
        self._order: Tensor | None = left_of(order, begun.past)
        self._fetched: deque[tuple[int, list[int]]] = deque()
        self._in_hand: list[int] = []
        self._done: list[tuple[int, int]] = []
        self._steps: int | None = None
        self.newest = 0
        """The number, among all workers' batches of the epoch, of the last returned batch."""

    def fetch(self) -> Iterator[list[int]]:
        """Yield the examples of every batch not consumed before; called once, or again before the first batch."""
        assert self._order is not None, "a pass is made once"
        order, self._order = self._order, None
        consumed = set(numbers_in(self.began.consumed))
        for number, indices in self._share.batches(order, self._batch_size, self.number):
            if number not in consumed:
                self._fetched.append((number, indices))
                yield indices

    def give(self, steps: int | None, indices: list[int] | None = None) -> int:
        """Return the next fetched batch to the worker, after so many `steps`; the result is its number of examples.
        With `indices` it is the batch of these, as batches may be fetched in any order."""
        self.settle(steps)
        place = 0 if indices is None else [fetched for _, fetched in self._fetched].index(indices)
        number, examples = self._fetched[place]
        del self._fetched[place]
        self._in_hand.append(number)
        self.newest = number
        self._steps = steps
        return len(examples)

    @property
    def is_round(self) -> bool:
        """Whether it is a round of clients."""
        return self._share.is_round

    @property
    def client_round(self) -> ClientRound | None:
        """The round of clients that this pass is; None where it is none."""
        return self._share.client_round

    @property
    def turn(self) -> Turn | None:
        """The turn of the client whose batch was returned last, where clients are simulated."""
        return self._share.turn(self.newest)

    def settle(self, steps: int | None) -> None:
        """Note that the worker has made `steps`; batches in hand before the last of them were computed in it. None: the
        number is unknown, and all batches in hand count."""
        if steps is not None and steps == self._steps:
            return
        for number in self._in_hand:
            self._share.computed(self.number, number)
            if self._done and self._done[-1][1] == number:
                self._done[-1] = self._done[-1][0], number + 1
            else:
                self._done.append((number, number + 1))
        self._in_hand.clear()

    @property
    def begun(self) -> Begun:
        """The progress of this pass, without batches in hand."""
        return Begun(past=self.began.past, consumed=union((*self.began.consumed, *self._done)))
