"""`quorate.keras.Callback`: what all workers do together around the steps of `fit`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras

from quorate.core.errors import ConfigurationError
from quorate.keras.data import forget_batches
from quorate.keras.training import TRAINING, KerasTraining
from quorate.launch.worker.checkpoints import load
from quorate.launch.worker.join import join
from quorate.launch.worker.recording import log


class Callback(keras.callbacks.Callback):  # type: ignore[misc]
    """The callback of Quorate: equal variables at first, means of metrics, saving, and the end.

    `fit` of a distributed model puts it before all other callbacks, so `EarlyStopping` and `ReduceLROnPlateau` see
    means over the examples of all workers, and decide the same everywhere. Validation in `fit` is a pause: all workers
    validate the mean of their replicas. Losses and metrics are recorded, for `quorate report` and `quorate compare`.
    """

    def __init__(
        self,
        *,
        save: str | Path | None = None,
        best: str | None = None,
        resume: bool = False,
    ) -> None:
        """Make the callback.

        Args:
            save: The file in which the first worker saves the model after each epoch (`model.keras`).
            best: The name of a metric, such as "val_loss": save only epochs in which it is the best. Names with
                "acc", "auc", "precision", "recall" or "f1" count as better when they are larger.
            resume: Whether `fit` continues after the newest checkpoint of the run (`quorate.save`), with its epoch.
        """
        super().__init__()
        self._save, self._best, self._resume = save, best, resume
        self._record: float | None = None
        self._pause = ExitStack()
        self._examples: float | None = None
        self._validated = 0.0

    @property
    def _training(self) -> KerasTraining:
        training: KerasTraining | None = vars(self.model).get(TRAINING)
        if training is None:
            raise ConfigurationError(
                "quorate.keras.Callback has no distributed optimizer; call quorate.keras.distribute(optimizer, model) "
                "before fit"
            )
        return training

    def on_train_begin(self, logs: Any = None) -> None:
        """Give all workers the same variables, or those of the checkpoint."""
        training = self._training
        training.begin()
        if self._resume and (updates := load()) is not None:
            training.show(rates=True)
            forget_batches()
            batches = updates * training.batches_per_update
            self.model._initial_epoch = batches // max((self.params or {}).get("steps") or batches, 1)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin the count of examples."""
        self._examples = None

    def on_test_begin(self, logs: Any = None) -> None:
        """Pause all workers, and show the mean of their replicas."""
        training = self._training
        if training.foreign is None:
            return
        if self._examples is None:
            self._examples = training.examples
        training.hide()
        self._pause.enter_context(join().evaluate())
        training.show()

    def on_test_end(self, logs: Any = None) -> None:
        """Continue."""
        training = self._training
        if training.foreign is not None:
            self._validated = training.examples
            self._pause.close()
            training.show()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Take the means of metrics, record them, and save the model."""
        training, world = self._training, join()
        logs = {} if logs is None else logs
        examples = training.examples if self._examples is None else self._examples
        training.hide()
        with world.evaluate():
            training.show()
            _take_means(logs, examples, validation=False)
            _take_means(logs, self._validated, validation=True)
            if self._save is not None and self._is_best(logs):
                if world.is_first:
                    self.model.save(self._save)
                world.barrier()
            log(epoch=epoch + 1, **{name.replace("/", "_"): float(x) for name, x in logs.items()})
        training.show()

    def on_train_end(self, logs: Any = None) -> None:
        """Wait for all workers; the model has equal variables then."""
        if self._resume:
            self.model._initial_epoch = None  # a later fit begins where its arguments say
        self._training.finish()

    def _is_best(self, logs: Any) -> bool:
        if self._best is None:
            return True
        if self._best not in logs:
            raise ConfigurationError(
                f"Callback(best={self._best!r}) names no metric of fit; its metrics are {', '.join(sorted(logs))}"
            )
        value = float(logs[self._best])
        is_larger = any(word in self._best.lower() for word in ("acc", "auc", "precision", "recall", "f1"))
        is_best = self._record is None or (value > self._record if is_larger else value < self._record)
        if is_best:
            self._record = value
        return is_best


def _take_means(logs: dict[str, Any], examples: float, *, validation: bool) -> None:
    """Replace metrics, those of the validation or the others, by their means over the examples of all workers."""
    numbers = {name: float(x) for name, x in logs.items() if name.startswith("val_") == validation}
    if numbers:
        logs.update(join().mean(numbers, weight=max(examples, 1e-9)))
