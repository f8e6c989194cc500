"""A small training to be killed: python training.py STRATEGY [FAULT RANK STEP]. Leaves word of its processes.

Once a worker has died and the others go on, it makes some more steps, and ends with an evaluation.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

RUN = Path(os.environ["QUORATE_RUN"])
(RUN / f"pid-{os.environ['RANK']}").write_text(f"{os.getpid()} {os.getppid()}")

import torch  # noqa: E402 - only now, so that there is somebody to kill while it is imported

import quorate  # noqa: E402


def main(strategy: str, fault: str = "", rank: int = -1, at: int = -1) -> None:
    world = quorate.join()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 10), torch.nn.Tanh(), torch.nn.Linear(10, 2))
    plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    settings: dict[str, Any] = {"on_death": "continue"} if strategy.endswith("+") else {}
    if strategy in ("local-sgd", "diloco", "group-averaging"):
        settings["sync_every"] = 3
    optimizer = quorate.distribute(plain, model, strategy.rstrip("+"), compare_every=20, **settings)
    (RUN / f"begun-{world.rank}").write_text("x")
    last = 100_000
    for step in range(last):
        if world.wire.dead and last == 100_000:
            last = step + 25
        if step >= last:
            break
        loss = model(torch.randn(8, 20)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if world.rank == rank and step == at:
            if fault == "raises":
                raise ValueError("by hand")
            if fault == "leaves":
                sys.exit(7)
            if fault == "parts":
                with torch.no_grad():
                    model[0].bias[0] += 1.0
        if step == 5:
            (RUN / f"going-{world.rank}").write_text("x")
        time.sleep(0.002 * (1 + world.rank))
    with world.evaluate():
        mean = world.mean(1.0)
    optimizer.finish()
    numbers = [float(p.detach().double().sum()) for p in model.parameters()]
    (RUN / f"end-{world.rank}").write_text(f"{numbers} {mean} {sorted(world.wire.dead)} {world.gather(1)}")


if __name__ == "__main__":
    name, *more = sys.argv[1:]
    main(name, *(int(word) if word.lstrip("-").isdigit() else word for word in more))  # type: ignore[arg-type]
