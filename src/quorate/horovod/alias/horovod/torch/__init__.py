"""`horovod.torch`: the module `quorate.horovod` itself, and its parts under Horovod's names."""

import sys

import quorate.horovod
from quorate.horovod import compression, elastic, objects, optimizer

sys.modules[__name__] = quorate.horovod
sys.modules |= {
    f"{__name__}.compression": compression,
    f"{__name__}.elastic": elastic,
    f"{__name__}.functions": objects,
    f"{__name__}.mpi_ops": quorate.horovod,
    f"{__name__}.optimizer": optimizer,
}
