"""Are sums in shared memory as fast as gloo's among processes of one host?

Two, then four processes sum tensors of several sizes three ways, in turn (A B C, B C A, ...): with torch's gloo over
the loopback (`torch.distributed.all_reduce`), with ours from ordinary memory, and with ours from memory that the wire
gave, as gradients lie in. Gloo adds in an order of its own, ours in order of rank. The figure is the ratio of the times
(gloo / ours), turn by turn; every sum is waited for before the next one is called.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from sums_in_turns import GLOO, in_turns, run

NUMELS = (1, 1_000, 16_000, 100_000, 1_000_000, 5_000_000)
"""Of float32."""
WAYS = (GLOO, "ordinary memory", "memory of the wire")
NUMBERS_A_TURN = 4_000_000
MOST_A_TURN = 200


def worker(turns: int, numels: list[int]) -> None:
    """One of the processes."""
    import torch
    import torch.distributed as dist

    import quorate

    torch.set_num_threads(1)
    world = quorate.join(timeout=120)
    wire = world.wire.channel("benchmark")
    for numel in numels:
        tensors = {way: torch.zeros(numel) for way in WAYS}
        tensors[WAYS[2]] = wire.empty(numel, torch.float32).zero_()

        def once(way: str, tensors: dict[str, torch.Tensor] = tensors) -> None:
            if way == GLOO:
                dist.all_reduce(tensors[way])
            else:
                wire.all_reduce(tensors[way]).wait()

        in_turns(world, WAYS, numel, (turns, NUMBERS_A_TURN, MOST_A_TURN), once)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.exit(run("sums", __doc__ or "", str(Path(__file__).resolve()), WAYS, NUMELS, 15, bar=1.0))
