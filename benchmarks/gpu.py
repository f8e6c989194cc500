"""On one GPU: what does Quorate cost beside a plain loop and beside torch DDP, and how large a model fits with offload?

    python benchmarks/gpu.py [--quick] [--turns 5] [alone] [pairs] [late] [offload]

- `alone`: one worker, a GPT-like model of 124 million parameters in bfloat16 by autocast, AdamW. A plain loop,
  `all-reduce` bypassed (the default with one worker), and its whole algorithm. Tokens a second, over the plain loop's.
- `pairs`: two workers on the one GPU, 26 million parameters, over NCCL (each taken for a host of its own) and through
  the memory of the host: torch DDP and `all-reduce`, with its parts and with parts as small as on a CPU. Steps a
  second, over DDP's.
- `late`: the same two workers through the memory of the host, the second late by 200 ms in every step: `all-reduce`,
  `quorum` of half and `eager-solo`. Steps a second of both, over the ideal in which the first waits for nobody.
- `offload`: of the GPU's memory so much as a card of 10 GiB has. The greatest GPT-like model that trains in float32
  under AdamW, activations calculated again, without offload and with `offload="all"` (as far as the host's memory
  reaches), and tokens a second of both.

Sides take turns in processes of their own.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import record  # noqa: E402
import sharded  # noqa: E402

from tests.support.on_gpu import share_a_gpu  # noqa: E402
from tests.support.processes import run_real_board  # noqa: E402

PARTS = ("alone", "pairs", "late", "offload")
SMALL = "all-reduce in small parts"
CARD_GIB, DELAY, TOKENS = 10, 0.2, 512


def network(
    width: int, layers: int, heads: int, tokens: int = TOKENS, device: str = "cuda", *, recomputes: bool = False
) -> Any:
    """A decoder of `sharded`, on `device`."""
    import torch

    with torch.device(device):
        return sharded.network(width, layers, heads=heads, tokens=tokens, recomputes=recomputes)


def joined(gpus: str, rank: int) -> Any:
    import quorate

    share_a_gpu(gpus, rank)
    return quorate.join()


def step(model: Any, optimizer: Any, ids: Any, amp: bool) -> None:
    import torch

    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=amp):
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()


def timed(side: str, gpus: str, shape: tuple[int, int, int], batch: tuple[int, int], steps: int, late: float,
          board: Any, rank: int, size: int) -> float:  # fmt: skip
    """Seconds a step of one worker, after three that do not count."""
    import torch

    import quorate
    from quorate.buckets import flat

    world = joined(gpus, rank)
    model = network(*shape, tokens=50304 if shape[0] == 768 else TOKENS)
    called, optimizer = model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if side == "ddp":
        called = torch.nn.parallel.DistributedDataParallel(model)
    elif side == "bypassed":
        optimizer = quorate.distribute(optimizer, model)
    elif side != "plain":
        if side == SMALL:
            flat.PART_BYTES_ON_GPU, side = flat.PART_BYTES, "all-reduce"
        optimizer = quorate.distribute(optimizer, model, side, with_one_worker="algorithm", compare_every=0)  # type: ignore[arg-type]
    ids = torch.randint(0, TOKENS, (batch[0], batch[1] + 1), device="cuda")
    for number in range(steps + 3):
        if number == 3:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        if late and rank == size - 1:
            torch.cuda.synchronize()
            time.sleep(late)
        step(called, optimizer, ids, amp=True)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / steps
    if hasattr(optimizer, "finish"):
        optimizer.finish()
    world.barrier()
    return seconds


def in_turn(
    sides: list[Any], turns: int, size: int, shape: Any, batch: Any, steps: int
) -> dict[Any, list[list[float]]]:
    found: dict[Any, list[list[float]]] = {}
    for turn in range(turns):
        for side, gpus, late in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
            said = run_real_board(size, partial(timed, side, gpus, shape, batch, steps, late), 200.0)
            found.setdefault((side, gpus, late), []).append(said)
            print(f"turn {turn + 1}: {side} {gpus} {late}: {[round(1000 * one, 2) for one in said]} ms", flush=True)
    return found


def alone(report: record.Report, turns: int, steps: int) -> None:
    sides = [("plain", "nccl", 0.0), ("bypassed", "nccl", 0.0), ("all-reduce", "nccl", 0.0)]
    found = in_turn(sides, turns, 1, (768, 12, 12), (8, 1024), steps)
    plain = [said[0] for said in found[sides[0]]]
    report.rows.append(record.figure("alone: plain, tokens/s", [8 * 1024 / one for one in plain]))
    for side in sides[1:]:
        shares = [base / said[0] for base, said in zip(plain, found[side], strict=True)]
        report.rows.append(record.figure(f"alone: {side[0]} / plain, tokens/s", shares))


def pairs(report: record.Report, turns: int, steps: int) -> None:
    sides = [(side, gpus, 0.0) for gpus in ("nccl", "host") for side in ("ddp", "all-reduce", SMALL)]
    found = in_turn(sides, turns, 2, (512, 8, 8), (8, 256), steps)
    for gpus in ("nccl", "host"):
        ddp, ours = found["ddp", gpus, 0.0], found["all-reduce", gpus, 0.0]
        report.rows.append(record.figure(f"two workers, {gpus}: ddp, ms", [1000 * max(one) for one in ddp]))
        for name, said in (("all-reduce", ours), (SMALL, found[SMALL, gpus, 0.0])):
            shares = [max(base) / max(one) for base, one in zip(ddp, said, strict=True)]
            report.rows.append(record.figure(f"two workers, {gpus}: {name} / ddp, steps/s", shares))


def late(report: record.Report, turns: int, steps: int) -> None:
    sides = [("quorum", "host", 0.0), *((side, "host", DELAY) for side in ("all-reduce", "quorum", "eager-solo"))]
    found = in_turn(sides, turns, 2, (512, 8, 8), (8, 256), steps)
    ideal = [1 / one[0] + 1 / (one[1] + DELAY) for one in found[sides[0]]]
    for side in sides[1:]:
        shares = [sum(1 / one for one in said) / best for best, said in zip(ideal, found[side], strict=True)]
        report.rows.append(record.figure(f"a worker late: {side[0]}, of the ideal", shares))


def repeated(module: Any) -> None:
    """Small random numbers, the same ones over and over: to draw billions of them takes minutes."""
    import torch

    drawn = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1)) / 50
    with torch.no_grad():
        for p in module.parameters(recurse=False):
            for piece in p.view(-1).split(len(drawn)):
                piece.copy_(drawn[: len(piece)])


def trains(offload: str | None, width: int, layers: int, board: Any, rank: int, size: int) -> dict[str, float] | None:
    """Numbers, tokens a second and the most bytes on the GPU of a model that trains; None: it does not fit."""
    import torch

    import quorate

    world = joined("nccl", rank)
    torch.cuda.set_per_process_memory_fraction(CARD_GIB * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    batch, length = 4, 512
    try:
        begin = time.perf_counter()
        model = network(width, layers, width // 128, device="meta" if offload else "cuda", recomputes=True)
        numbers = sum(p.numel() for p in model.parameters())
        if offload:
            mesh = world.mesh(replicas=1)
            kind: Any = offload
            model = quorate.parallelize(
                model, mesh, zero=3, offload=kind, initialize=repeated, precision="bfloat16"
            )  # autocast would keep its copies of all parameters until the forward pass has ended
        fused = True
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
        if offload:
            optimizer = quorate.distribute(optimizer, model, compare_every=0)
        made = time.perf_counter() - begin
        ids = torch.randint(0, TOKENS, (batch, length + 1), device="cuda")
        step(model, optimizer, ids, amp=offload is None)
        torch.cuda.synchronize()
        begin, count = time.perf_counter(), 2 if offload else 5
        for _ in range(count):
            step(model, optimizer, ids, amp=offload is None)
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - begin) / count
    except torch.cuda.OutOfMemoryError as error:
        print(f"{offload}, {layers} blocks of {width}: {str(error)[:120]}", flush=True)
        gc.collect()
        return None
    return {
        "numbers": float(numbers),
        "tokens": batch * length / seconds,
        "seconds": seconds,
        "made": made,
        "gpu": float(torch.cuda.max_memory_allocated()),
    }


def offload(report: record.Report, turns: int, steps: int) -> None:
    """Sizes downwards until one trains."""
    width = 2048
    ends = {}
    for how, sizes in ((None, (12, 11, 10, 9, 8)), ("all", (132, 121, 110, 100, 80, 40))):
        for layers in sizes:
            try:
                (found,) = run_real_board(1, partial(trains, how, width, layers), 200.0)
            except AssertionError as error:
                print(f"{how}, {layers} blocks of {width}: {str(error)[-1500:]}", flush=True)
                continue
            print(f"{how}, {layers} blocks of {width}: {found}", flush=True)
            if found is not None:
                ends[how] = found
                report.rows.append(record.figure(f"offload={how}: parameters, millions", [found["numbers"] / 1e6]))
                report.rows.append(record.figure(f"offload={how}: tokens/s", [found["tokens"]]))
                report.rows.append(record.figure(f"offload={how}: GiB on the GPU at most", [found["gpu"] / 2**30]))
                break
    if len(ends) == 2:
        gain = ends["all"]["numbers"] / ends[None]["numbers"]
        report.rows.append(record.figure("with offload / without, parameters", [gain]))


def main() -> int:
    parser = record.arguments(str(__doc__))
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(PARTS)} (all)")
    parser.add_argument("--turns", type=int, default=5, help="of all sides (5)")
    parser.add_argument("--steps", type=int, default=20, help="of each (20)")
    told = parser.parse_args()
    turns, steps = (1, 3) if told.quick else (told.turns, told.steps)
    report = record.Report("gpu", {"turns": turns, "steps": steps, "card": CARD_GIB, "delay": DELAY})
    for part in told.parts or PARTS:
        {"alone": alone, "pairs": pairs, "late": late, "offload": offload}[part](report, turns, steps)
    return report.show(told)


if __name__ == "__main__":
    sys.exit(main())
