"""`horovod.keras`: the module `quorate.horovod.tensorflow.keras`."""

import sys

import quorate.horovod.tensorflow.keras

sys.modules[__name__] = quorate.horovod.tensorflow.keras
sys.modules[f"{__name__}.callbacks"] = quorate.horovod.tensorflow.keras.callbacks
