"""Trainings in Keras 3 under any strategy, on each of its backends: `quorate.keras.distribute(optimizer, model)`.

The backend of Keras computes gradients and updates, compiled as before. Workers agree between the two.
"""

from __future__ import annotations

import importlib.util

from quorate.core.installed import missing_extra

if importlib.util.find_spec("keras") is None:
    raise missing_extra("quorate.keras needs Keras 3", extra="keras", package="keras")

from quorate.keras.callback import Callback as Callback
from quorate.keras.data import data as data
from quorate.keras.distribute import distribute as distribute

__all__ = ["Callback", "data", "distribute"]
