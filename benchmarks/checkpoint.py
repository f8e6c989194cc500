"""What saving 100 MB costs the training thread, against a bare copy of the same tensors and against `torch.save`.

    python benchmarks/checkpoint.py [--quick]

One worker with a model and an Adam of 100 MB in all. In turn (A B C, after a warm-up): `quorate.save()`; the same
tensors copied into memory that is there already; `torch.save` in the foreground, synced to the disk as ours is. What is
written beside the training is waited for between two repeats, and its time is shown. The bar: `save` takes at most
1.5 times the copy and 10 ms.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

MEGABYTES = 100


def measure(repeats: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of each way, by name."""
    import torch

    import quorate
    from quorate.checkpoint.participants import CheckpointContext
    from quorate.checkpoint.saving import saving
    from quorate.wire import current

    torch.set_num_threads(1)
    quorate.join(records=False)
    place = current.here()
    place.context(CheckpointContext).root = folder / "checkpoints"
    side = 512
    layers = round(MEGABYTES * 1e6 / 4 / 3 / side**2)  # parameters, and Adam's two moments
    model = torch.nn.Sequential(*(torch.nn.Linear(side, side, bias=False) for _ in range(layers)))
    optimizer: Any = quorate.distribute(torch.optim.Adam(model.parameters()), model)

    def step() -> None:
        model(torch.randn(1, side)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    tensors = [p.detach() for p in model.parameters()]
    tensors += [x for state in optimizer.state.values() for x in state.values()]
    memory = [torch.empty_like(x) for x in tensors]
    took: dict[str, list[float]] = {"save": [], "written": [], "copy": [], "torch.save": []}
    for repeat in range(repeats + 1):
        step()
        begin = time.perf_counter()
        quorate.save()
        saved = time.perf_counter()
        saving(place).flush()
        written = time.perf_counter()
        for there, x in zip(memory, tensors, strict=True):
            there.copy_(x)
        copied = time.perf_counter()
        with open(folder / "plain.pt", "wb") as file:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())
        plain = time.perf_counter()
        spans = (saved - begin, written - saved, copied - written, plain - copied)
        for name, seconds in zip(took, spans, strict=True):
            if repeat:  # the first is the warm-up
                took[name].append(seconds)
        print(f"repeat {repeat}: " + ", ".join(f"{seconds * 1e3:.1f} ms" for seconds in spans), flush=True)
    return took


def main() -> int:
    """Measure, report."""
    from record import Report, arguments, figure, median_of

    chosen = arguments(__doc__ or "").parse_args()
    repeats = 5 if chosen.quick else 20
    with tempfile.TemporaryDirectory() as folder:
        took = measure(repeats, Path(folder))
    report = Report("checkpoint", {"megabytes": MEGABYTES, "repeats": repeats})
    names = {
        "save": "quorate.save(), of the training thread, ms",
        "written": "written and synced beside it, after that, ms",
        "copy": "a bare copy of the same tensors, ms",
        "torch.save": "torch.save in the foreground, synced, ms",
    }
    for key, name in names.items():
        report.rows.append(figure(name, [1e3 * seconds for seconds in took[key]]))
    save, copy, plain = (median_of(took[key]) for key in ("save", "copy", "torch.save"))
    assert save is not None
    assert copy is not None
    assert plain is not None
    report.bar("save() less 10 ms, as a multiple of a bare copy", max(0.0, save - 0.010) / copy, at_most=1.5)
    report.bar("torch.save in the foreground, as a multiple of save()", plain / save, at_least=2.0)
    return report.show(chosen)


if __name__ == "__main__":
    raise SystemExit(main())
