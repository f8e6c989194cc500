"""`quorate.keras.distribute`: the optimizer of a Keras model under a strategy."""

from __future__ import annotations

from typing import Any

import keras

from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy
from quorate.keras.fitting import hook_fit
from quorate.keras.training import TRAINING, KerasTraining


def distribute(optimizer: Any, model: Any, strategy: Strategy | str = "all-reduce", **settings: Any) -> Any:
    """Let the optimizer of a Keras model agree with those of the other workers; return it, the same object.

    `fit`, `train_on_batch` and steps of your own by `optimizer.apply` work as before. Call it before or after
    `model.compile`, which gets this optimizer. The first copy, means of metrics and the end are made by
    `quorate.keras.Callback`, which `fit` adds where it is missing.

    Args:
        optimizer: An optimizer object of Keras.
        model: The `keras.Model` that it trains.
        strategy: A strategy or its name, as in `quorate.distribute`.
        settings: The settings of `quorate.distribute`, and those of the strategy.

    Returns:
        The optimizer, which now has `finish()`.

    Raises:
        ConfigurationError: The arguments are no optimizer and no model of Keras, the optimizer is distributed already,
            or as `quorate.distribute`.

    Example:
        >>> optimizer = quorate.keras.distribute(keras.optimizers.Adam(1e-3), model, "quorum", wait_for=1)
        >>> model.compile(optimizer, loss="mse")
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        kind = type(optimizer).__name__
        raise ConfigurationError(f"quorate.keras.distribute takes an optimizer object of Keras, not {kind}")
    if not isinstance(model, keras.Model):
        raise ConfigurationError(f"quorate.keras.distribute takes the keras.Model, not {type(model).__name__}")
    if TRAINING in vars(optimizer):
        raise ConfigurationError("this optimizer is already distributed; call distribute once per optimizer")
    hook_fit(KerasTraining(optimizer, model, strategy, settings))
    return optimizer
