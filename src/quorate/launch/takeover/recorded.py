"""The baseline of a comparison: the script's own DistributedDataParallel, whose steps are recorded."""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
from torch.nn.parallel import DistributedDataParallel as OfTorch

from quorate.data.consumption import consumed
from quorate.launch.takeover.examples import count_examples
from quorate.launch.takeover.optimizers import FoundOptimizers
from quorate.launch.worker.join import join
from quorate.train.chosen import chosen_in
from quorate.wire import current


class RecordedDistributedDataParallel(OfTorch):
    """torch's class; optimizers of its parameters are recorded from the first forward pass with gradients on."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        join()
        super().__init__(*arguments, **named)
        place = current.here()
        chosen, self._optimizers = chosen_in(place), place.context(FoundOptimizers)
        for name in chosen.baselines:
            chosen.baselines[name] = lambda model: self.no_sync
        self._optimizers.modules.append(ref(self.module))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call torch's."""
        if torch.is_grad_enabled():
            self._look((*inputs, *kwargs.values()))
        return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _look(self, arguments: tuple[Any, ...]) -> None:
        self._optimizers.distribute()
        if self._optimizers.modules[0]() is self.module:
            count_examples(consumed(current.here()), arguments)


RecordedDistributedDataParallel.__name__ = OfTorch.__name__
