"""Nine minutes on one GPU: what cannot be learnt without it, the dearest knowledge first.

    python benchmarks/gpu_day.py [FOLDER] [--stand-in] [--only STEP ...]

Each step is a program with a limit of its own, and writes FOLDER/STEP.json and FOLDER/STEP.log (FOLDER is by default
$OUT); a step that fails or is over its limit takes nothing from the others. A figure is in the file as soon as it is
measured. Every figure has five repeats or more, and the interval of its median.

- `env`: the machine, and `quorate doctor`.
- `waits`: how often five steps wait for the GPU, by strategy, and of a model in shards.
- `overhead`: one worker, a GPT of 124 million parameters in bfloat16 by autocast. The whole algorithm of
  `all-reduce` over torch DDP with a group of one, and both over a plain loop, in tokens a second.
- `deaths`: one of three workers is killed. How long the others need for the steps after it, and how they end.
- `axes`: the tests of axes of a mesh over NCCL; how many pass.
- `memory`: the rates of copies between the host and the GPU, by kind of memory: pinned, pageable, of `Wire.empty`.
- `rounds`: two workers through the memory of the host, 25.6 million parameters; milliseconds a step of `all-reduce`,
  `quorum` and `eager-solo`.

`--stand-in` runs all steps on a device of the CPU's memory, with small models. It shows that the steps run; the
figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT), str(ROOT / "src")]

REPEATS = 5
LIMITS = {"env": 25, "waits": 70, "overhead": 130, "deaths": 90, "axes": 90, "memory": 35, "rounds": 90}
"""Seconds of each step, in order; 530 in all."""
DEATH, LAST = 10, 40
"""The step at which a worker is killed, and the last one of the others."""


def is_stand_in() -> bool:
    return os.environ.get("TEST_GPU") == "sim"


def network(numbers: int, device: Any) -> Any:
    """Sixteen square layers with so many parameters in all."""
    import torch

    width = max(8, int((numbers / 16) ** 0.5))
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(16))).to(device)


Training = tuple[str, str, dict[str, Any], dict[str, int]]
"""A strategy, the way of its sums, its settings, and the mesh by which a model is divided."""


def trained(case: Training, numbers: int, steps: int, look: Callable[..., Any], dies: bool,
            board: Any, rank: int, size: int) -> list[Any]:  # fmt: skip
    """One worker: what `look(step, function)` returns for each step, which it makes."""
    import torch

    import quorate
    from tests.support.on_gpu import GPU, share_a_gpu
    from tests.support.second_device import process_group

    strategy, gpus, settings, mesh = case
    if is_stand_in() and gpus == "nccl":
        process_group.stand_in()
    share_a_gpu(gpus, rank)
    world = quorate.join()
    if is_stand_in():
        world.device = GPU
    model: Any = network(numbers, GPU)
    width = model[0].in_features
    model = quorate.parallelize(model, world.mesh(**mesh)) if mesh else model
    plain = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    optimizer: Any = quorate.distribute(
        plain, model, strategy, with_one_worker="algorithm", compare_every=0, **settings
    )
    x = torch.randn(64, width).to(GPU)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    seen = []
    for number in range(steps):
        if dies and (rank, number) == (1, DEATH):
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(look(number, step))
    if not dies:
        optimizer.finish()
    del world
    return seen


def seconds_of(number: int, step: Callable[[], None]) -> float:
    import torch

    from tests.support.on_gpu import GPU

    module: Any = torch.get_device_module(GPU.type)
    begin = time.perf_counter()
    step()
    module.synchronize()
    return time.perf_counter() - begin


def time_after(number: int, step: Callable[[], None]) -> float:
    step()
    return time.time()


def waits_of(number: int, step: Callable[[], None]) -> int:
    """How often a step waits for the GPU, as torch says, or the device that stands in."""
    import warnings

    import torch

    if is_stand_in():
        from tests.support.second_device import watching

        with watching() as events:
            step()
        return sum(event.kind == "wait" and bool(event.line) for event in events)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode(1)
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(0)
    return sum("synchroniz" in str(warning.message) for warning in told)


def env(report: Any) -> None:
    for command in (
        ["nvidia-smi", "-L"],
        ["nvidia-smi", "topo", "-m"],
        [sys.executable, "-m", "quorate.cli.main", "doctor"],
    ):
        try:
            subprocess.run(command, timeout=15, check=False)
        except (FileNotFoundError, subprocess.TimeoutExpired) as error:
            print(error, flush=True)


def waits(report: Any) -> None:
    from tests.support.processes import run_real_board

    cases: list[tuple[int, str, str, dict[str, Any], dict[str, int]]] = [
        (1, "all-reduce", "nccl", {}, {}),
        (2, "all-reduce", "nccl", {}, {}),
        (2, "all-reduce", "nccl", {}, {"shards": 2}),
        (2, "all-reduce", "nccl", {"on_death": "continue"}, {}),
        (2, "all-reduce", "nccl", {"compress": "power-sgd", "start": 0}, {}),
        (2, "all-reduce", "host", {}, {}),
        (2, "quorum", "host", {}, {}),
        (2, "local-sgd", "nccl", {"sync_every": 1}, {}),
    ]
    for size, strategy, gpus, settings, mesh in cases:
        task = partial(trained, (strategy, gpus, settings, mesh), 400_000, 5 + REPEATS, waits_of, False)
        for counts in run_real_board(size, task, 60.0)[:1]:
            words = [str(size), strategy, gpus, *map(str, settings.values()), *mesh]
            _keep(report, f"waits of a step: {' '.join(words)}", counts[5:])


def _keep(report: Any, name: str, values: list[Any]) -> None:
    """Write a figure into the file of this step at once: a step may be over its limit before the next one."""
    import record

    row = record.figure(name, [float(value) for value in values])
    print(row, flush=True)
    report.rows.append(row)
    _write(report)


def _write(report: Any) -> None:
    import record

    found = {"machine": record.machine(), "settings": report.settings, "bars": report.bars}
    found["rows"] = [vars(row) for row in report.rows]
    (Path(report.settings["folder"]) / f"{report.settings['step']}.json").write_text(json.dumps(found, indent=1))


def one_worker(side: str, steps: int, board: Any, rank: int, size: int) -> float:
    """Seconds of a step of a GPT, after three that do not count."""
    import sharded
    import torch

    import quorate
    from tests.support.on_gpu import GPU, share_a_gpu
    from tests.support.second_device import process_group

    if is_stand_in():
        process_group.stand_in()
    share_a_gpu("nccl", rank)
    quorate.join()
    is_small, tokens = is_stand_in(), 64 if is_stand_in() else 50304
    batch, length = (2, 16) if is_small else (8, 1024)
    model: Any = sharded.network(*((32, 2) if is_small else (768, 12)), heads=4 if is_small else 12, tokens=tokens)
    model = model.to(GPU)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not is_small)
    called: Any = model
    if side == "ddp" and not is_small:
        called = torch.nn.parallel.DistributedDataParallel(model)
    elif side == "all-reduce":
        optimizer = quorate.distribute(optimizer, model, with_one_worker="algorithm", compare_every=0)
    ids = torch.randint(0, tokens, (batch, length + 1)).to(GPU)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(GPU.type, torch.bfloat16, enabled=not is_small):
            loss = torch.nn.functional.cross_entropy(called(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    for _ in range(3):
        step()
    module: Any = torch.get_device_module(GPU.type)
    module.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    module.synchronize()
    return (time.perf_counter() - begin) / steps


def overhead(report: Any) -> None:
    from tests.support.processes import run_real_board

    sides = ["plain", "ddp", "all-reduce"]
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(REPEATS):
        for side in sides[turn % 3 :] + sides[: turn % 3]:
            seconds[side] += run_real_board(1, partial(one_worker, side, 2 if is_stand_in() else 15), 60.0)
            print(turn, side, seconds[side][-1], flush=True)

    def shares(of: str, over: str) -> list[float]:
        return [base / own for base, own in zip(seconds[over], seconds[of], strict=True)]

    _keep(report, "plain loop, ms", [1000 * x for x in seconds["plain"]])
    _keep(report, "DDP over a plain loop, tokens/s", shares("ddp", "plain"))
    _keep(report, "all-reduce over a plain loop, tokens/s", shares("all-reduce", "plain"))
    _keep(report, "all-reduce over DDP, tokens/s", shares("all-reduce", "ddp"))
    measured = None if is_stand_in() else statistics.median(shares("all-reduce", "ddp"))
    report.bar("all-reduce over DDP with a group of one", measured, at_least=0.97)


def deaths(report: Any) -> None:
    from tests.support.processes import outcomes_real_board

    for strategy in ("all-reduce", "quorum"):
        seconds = list[float]()
        for _ in range(REPEATS):
            settings: dict[str, Any] = {"on_death": "continue"} if strategy == "all-reduce" else {}
            case = strategy, "nccl", settings, {}
            task = partial(trained, case, 40_000, LAST, time_after, True)
            for outcome in outcomes_real_board(3, task, 20.0):
                steps = outcome.result or []
                print(strategy, outcome.rank, "status", outcome.exit_code, "steps", len(steps), flush=True)
                if outcome.rank == 0 and len(steps) == LAST:
                    seconds.append(steps[-1] - steps[DEATH - 1])
        if len(seconds) >= REPEATS:
            _keep(report, f"{strategy}: seconds of rank 0 from a death to step {LAST}", seconds)


def axes(report: Any) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--timeout", "80", "-m", "gpu"]
    tests = ["tests/gpu/test_axes.py::test_orders_that_end_are_found_from_those_that_do_not"]
    if not is_stand_in():
        command[command.index("2")] = "8"
        tests = ["tests/gpu/test_axes.py", "tests/gpu/test_start.py", "tests/gpu/test_pieces.py"]
    subprocess.run([*command, *tests], cwd=ROOT, check=False)


def memory(report: Any) -> None:
    import torch

    import quorate
    from tests.support.on_gpu import GPU

    nbytes = (1 << 20) if is_stand_in() else (1 << 28)
    there, module = torch.empty(nbytes, dtype=torch.uint8, device=GPU), torch.get_device_module(GPU.type)
    world = quorate.join()
    sources = {
        "pinned memory": torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True),
        "pageable memory": torch.zeros(nbytes, dtype=torch.uint8),
        "memory of Wire.empty": world.wire.empty(nbytes, torch.uint8).zero_(),
    }
    for name, here in sources.items():
        for way, to, of in (("to the GPU", there, here), ("to the host", here, there)):
            rates = list[float]()
            for _ in range(REPEATS + 1):
                module.synchronize()
                begin = time.perf_counter()
                to.copy_(of)
                module.synchronize()
                rates.append(nbytes / (time.perf_counter() - begin) / 1e9)
            _keep(report, f"{name}, {way}, GB/s", rates[1:])


def rounds(report: Any) -> None:
    from tests.support.processes import run_real_board

    numbers = 40_000 if is_stand_in() else 25_600_000
    for strategy, settings in (("all-reduce", {}), ("quorum", {"wait_for": "all", "grace": 5.0}), ("eager-solo", {})):
        task = partial(trained, (strategy, "host", settings, {}), numbers, 3 + 2 * REPEATS, seconds_of, False)
        for rank, seconds in enumerate(run_real_board(2, task, 60.0)):
            _keep(report, f"{strategy}, rank {rank}: ms a step", [1000 * x for x in seconds[3:]])


def run_step(name: str, folder: Path) -> None:
    import record

    settings = {"repeats": REPEATS, "stand_in": is_stand_in(), "folder": str(folder), "step": name}
    report = record.Report(f"gpu_day {name}", settings)
    try:
        globals()[name](report)
    finally:
        _write(report)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("OUT", "gpu-day"))
    parser.add_argument("folder", type=Path, nargs="?", default=default, help="where results are written")
    parser.add_argument("--stand-in", action="store_true", help="on a device of the CPU's memory, small models")
    parser.add_argument("--only", nargs="+", choices=LIMITS, default=list(LIMITS), help="steps to run")
    parser.add_argument("--step", choices=LIMITS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.step:
        run_step(options.step, options.folder)
        return 0
    surroundings = {**os.environ, "TEST_GPU": "sim" if options.stand_in else "cuda", "PYTHONUNBUFFERED": "1"}
    surroundings["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    ends: dict[str, Any] = {}
    for name in options.only:
        begin, command = time.monotonic(), [sys.executable, __file__, str(options.folder), "--step", name]
        with (options.folder / f"{name}.log").open("w") as log:
            program = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=surroundings
            )
            try:
                status: Any = program.wait(LIMITS[name] * (6 if options.stand_in else 1))
            except subprocess.TimeoutExpired:
                status = "over its limit"
            try:
                os.killpg(program.pid, signal.SIGKILL)  # the group that this step has begun
            except ProcessLookupError:
                pass
            program.wait()
        ends[name] = {"status": status, "seconds": round(time.monotonic() - begin, 1)}
        print(name, ends[name], flush=True)
        (options.folder / "steps.json").write_text(json.dumps(ends, indent=1))
    return int(any(end["status"] != 0 for end in ends.values()))


if __name__ == "__main__":
    sys.exit(main())
