"""A few numbers of all workers, beside the means of vectors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quorate.core.contracts import Wire
from quorate.wire.exchange import sum_in_order
from quorate.wire.survivors import Survivors


def mean_of_number(value: Tensor, wire: Wire, survivors: Survivors | None) -> Tensor:
    """Return the mean of the `value` of every worker, or of the `survivors` of deaths."""
    if survivors is None:
        return wire.all_reduce(value / wire.size).wait()
    values = survivors.all_gather(value).wait()
    return sum_in_order(values) / len(values)


def gather_numbers(numbers: Sequence[float], wire: Wire, survivors: Survivors | None) -> list[list[float]]:
    """Return the `numbers` of each worker that takes part, in the order of their ranks."""
    rows = torch.zeros(wire.max_size, len(numbers) + 1, dtype=torch.float64)
    rows[wire.rank] = torch.tensor([1.0, *numbers])
    means = mean_of_number(rows, wire, survivors)
    return [(row[1:] / row[0]).tolist() for row in means if row[0] > 0]
