"""Horovod's callbacks for Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy
from quorate.horovod.workers import size
from quorate.keras.callback import Callback
from quorate.keras.distribute import distribute

_MARK = "_quorate_horovod"


def mark(optimizer: Any, strategy: Strategy | str, settings: dict[str, Any]) -> None:
    """Let the optimizer be distributed when its model is known; until then it must not update."""

    def refuse(*_: Any) -> None:
        raise ConfigurationError(
            "the distributed optimizer has no model yet; pass hvd.callbacks.BroadcastGlobalVariablesCallback(0) to "
            "fit, before all other callbacks"
        )

    vars(optimizer).update({_MARK: (strategy, settings), "apply": refuse, "stateless_apply": refuse})


class BroadcastGlobalVariablesCallback(Callback):
    """Give all workers the variables of rank 0, and all that `quorate.keras.Callback` does, means of metrics included.

    Args:
        root_rank: 0.
        device: It has no effect.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        if root_rank != 0:
            raise ConfigurationError(f"BroadcastGlobalVariablesCallback supports rank 0 only, not {root_rank}")
        super().__init__()

    def set_model(self, model: Any) -> None:
        """Distribute the optimizer of the model."""
        super().set_model(model)
        outer = model.optimizer
        optimizer = getattr(outer, "inner_optimizer", outer)
        if (chosen := vars(optimizer).pop(_MARK, None)) is not None:
            del vars(optimizer)["apply"], vars(optimizer)["stateless_apply"]
            distribute(optimizer, model, chosen[0], **chosen[1])
            model.train_function = None


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Nothing more: `BroadcastGlobalVariablesCallback` takes means of metrics, before all other callbacks."""

    def __init__(self, device: str = "", *, output_prefix: str = "") -> None:
        super().__init__()


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Multiply `initial_lr` by a number, or by a function of the epoch, from `start_epoch` to `end_epoch`.

    With `staircase` the rate changes at the begin of epochs, otherwise with each batch; the epoch is then a fraction.
    `momentum_correction` has no effect.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self._rate, self._steps = initial_lr, steps_per_epoch
        self._factor = multiplier if callable(multiplier) else lambda _: multiplier
        self._start, self._end, self._staircase = start_epoch, end_epoch, staircase and callable(multiplier)
        self._staircase |= not callable(multiplier)
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set the rate of the epoch."""
        self._epoch = epoch
        if self._staircase:
            self._set(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate of the batch."""
        steps = self._steps or (self.params or {}).get("steps")
        if not self._staircase and steps:
            self._set(self._epoch + batch / steps)

    def _set(self, epoch: float) -> None:
        if epoch < self._start or (self._end is not None and epoch >= self._end):
            return
        if (synchronize := getattr(self.model, "jax_state_sync", None)) is not None:
            synchronize()
        self.model.optimizer.learning_rate = self._rate * self._factor(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the rate from `initial_lr / hvd.size()` to `initial_lr` within `warmup_epochs`, batch by batch.

    Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.2.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def factor(epoch: float) -> float:
            return (epoch * (size() - 1) / warmup_epochs + 1) / size()

        super().__init__(initial_lr, factor, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self._warmup = warmup_epochs

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set the full rate when the warm-up is over."""
        super().on_epoch_begin(epoch, logs)
        if epoch == self._warmup:
            self._end = None
            self._factor = lambda _: 1.0
            self._set(epoch)
            self._end = self._warmup


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """`ModelCheckpoint` of Keras, for the best epoch only."""

    def __init__(self, filepath: Any, monitor: str = "val_loss", **settings: Any) -> None:
        super().__init__(filepath, monitor=monitor, save_best_only=True, **settings)
