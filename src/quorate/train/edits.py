"""What a script writes into parameters between two steps, where that would let replicas part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.train.worker import StrategyWorker

_TENSORS, _NUMBERS = 32, 64
"""How many tensors are looked at, and how many numbers of each."""


class Edits:
    """Notices that the parameters of a worker that agrees in rounds were written to between two of its steps.

    Workers come to their steps at different rounds, so what each writes there would make replicas differ. Not looked
    at where every round waits for all, after a pause of all workers, in strategies whose replicas differ anyhow, and
    with `compare_every=0`.
    Cost: a sample of at most 2,048 numbers, copied and compared in every step.
    """

    def __init__(self, worker: StrategyWorker) -> None:
        self._worker = worker
        self._seen: tuple[int, Sequence[Tensor], Tensor] | None = None

    def step_ended(self) -> None:
        """Keep a sample of the parameters as this step has left them."""
        if self._looks():
            trained = self._worker.replica.trained
            self._seen = self._worker.rounds.version, trained, _sample(trained)

    def step_begins(self) -> None:
        """Raises `ConfigurationError` where the parameters are not what the step before has left."""
        seen, self._seen = self._seen, None
        worker = self._worker
        if seen is None or seen[0] != worker.rounds.version or seen[1] is not worker.replica.trained:
            return
        if not torch.equal(seen[2].nan_to_num(), _sample(worker.replica.trained).nan_to_num()):
            raise ConfigurationError(
                "the script has written into the parameters between two steps, and under this strategy workers come to "
                "their steps at different rounds, so that their replicas would part; write into them in a hook of "
                "optimizer.register_step_post_hook(), which runs after every round on all workers, or on all workers "
                "inside `with world.evaluate():`"
            )

    def _looks(self) -> bool:
        worker = self._worker
        if not worker.has_rounds or worker.differs or not worker.digests.compares:
            return False
        return not worker.rounds.waits_for_all


def _sample(parameters: Sequence[Tensor]) -> Tensor:
    chosen = parameters[:: -(-len(parameters) // _TENSORS)] if parameters else ()
    found = []
    for p in map(local, chosen):
        if p.is_contiguous() and p.numel():
            numbers = p.detach().view(-1)[:: -(-p.numel() // _NUMBERS)]
            found.append(torch.view_as_real(numbers).reshape(-1) if numbers.is_complex() else numbers)
    device = found[0].device if found else torch.device("cpu")
    return torch.cat([x.to(device, torch.float64) for x in found]) if found else torch.empty(0)
