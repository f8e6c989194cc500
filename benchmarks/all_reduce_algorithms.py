"""How fast are the algorithms of all-reduce over messages, beside the wire's own sums and torch's gloo?

Two, then four processes of one host sum tensors of several sizes in six ways, in turn (A B C, B C A, ...): with torch's
gloo over the loopback (`torch.distributed.all_reduce`), with the wire's own sums (`dense`, in shared memory), and with
each algorithm over messages from worker to worker, large ones of which lie in shared memory. The figures are
milliseconds and the ratio of times (gloo / ours), turn by turn; every sum is waited for before the next one is called.

Nothing is promised of these ratios: on one host sums in shared memory are what is used, and the algorithms are there
for networks. On fewer cores than processes they also take turns.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from sums_in_turns import GLOO, in_turns, run

NUMELS = (1, 1_000, 100_000, 1_000_000, 5_000_000)
"""Of float32."""
WAYS = (GLOO, "dense", "ring", "recursive-doubling", "halving-doubling", "tree")
NUMBERS_A_TURN = 2_000_000
MOST_A_TURN = 50


def worker(turns: int, numels: list[int]) -> None:
    """One of the processes."""
    import torch
    import torch.distributed as dist

    import quorate
    from quorate.core.vectors import Layout, Part
    from quorate.means import reducers

    torch.set_num_threads(1)
    world = quorate.join(timeout=120)
    wire = world.wire.channel("benchmark")
    for numel in numels:
        layout = Layout((), (Part(numel, torch.float32, torch.device("cpu")),), 0)
        sums = {way: reducers.get(way)(layout, wire.channel(f"{way} {numel}")) for way in WAYS if way != GLOO}
        x = wire.empty(numel, torch.float32).zero_()

        def once(way: str, x: torch.Tensor = x, sums: dict = sums) -> None:  # type: ignore[type-arg]
            if way == GLOO:
                dist.all_reduce(x)
            else:
                sums[way].again(0, x).wait()

        in_turns(world, WAYS, numel, (turns, NUMBERS_A_TURN, MOST_A_TURN), once)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.exit(run("all_reduce_algorithms", __doc__ or "", str(Path(__file__).resolve()), WAYS, NUMELS, 12))
