"""`horovod.tensorflow`: the module `quorate.horovod.tensorflow`, and its part for Keras."""

import sys

import quorate.horovod.tensorflow

sys.modules[__name__] = quorate.horovod.tensorflow
