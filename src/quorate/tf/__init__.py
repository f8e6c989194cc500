"""Training loops of your own in TensorFlow: `quorate.tf.gradients(tape)`, inside and outside of `tf.function`."""

from __future__ import annotations

import importlib.util

from quorate.core.installed import missing_extra

if importlib.util.find_spec("tensorflow") is None:
    raise missing_extra("quorate.tf needs TensorFlow", extra="tensorflow", package="tensorflow-cpu")

from quorate.tf.tape import Tape as Tape
from quorate.tf.tape import begin as begin
from quorate.tf.tape import gradients as gradients

__all__ = ["Tape", "begin", "gradients"]
