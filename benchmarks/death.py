"""How long until the survivors' next update when a worker of four is killed, and what is being able to survive worth?

Four workers with steps of 20 ms; one after the other is killed (SIGKILL) at a random moment until one is left. The
figure is the time from a kill until every survivor has applied an update whose exchange began after the kill, a whole
step included. Held against torchft, where it is installed, by the same measure: four replica groups of one process, its
lighthouse, its `Manager` and gloo; an update is a step that it commits. And against torchrun, which stops everyone and
starts them again (`--max-restarts`, torch DDP): from the kill until every worker has made a step anew; what was learnt
since the last checkpoint is lost there besides.

Then, in two processes that nobody kills: the throughput of `all-reduce` and of `quorum` that can survive, over that of
the same strategy that cannot, turn by turn, on a perceptron of five million parameters.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

WORKERS = 4
PACE = 0.02
BEGUN = 20
"""Steps after which the first worker may be killed."""
SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "quorum of a majority": ("quorum", {}),
    "quorum of all": ("quorum", {"wait_for": "all"}),
    "all-reduce": ("all-reduce", {"on_death": "continue"}),
}
README = {"join_timeout_ms": 10_000, "quorum_tick_ms": 100, "heartbeat_timeout_ms": 5_000}
LOW = {"join_timeout_ms": 50, "quorum_tick_ms": 10, "heartbeat_timeout_ms": 100}
TORCHFT: dict[str, tuple[dict[str, int], dict[str, float]]] = {
    "torchft, its defaults": (README, {"heartbeat": 0.1, "manager": 60, "gloo": 60}),
    "torchft, its example": (README, {"heartbeat": 0.1, "manager": 30, "gloo": 5}),
    "torchft, low timeouts": (LOW, {"heartbeat": 0.02, "manager": 60, "gloo": 60}),
}
"""Of each side, what its lighthouse is told (its README says the first two, the third is the default), and in seconds
how often workers send a heartbeat and what timeouts they have. The example is its `train_ddp.py`."""
PARTS = ("quorate", "torchft", "torchrun", "cost")
COSTS = {"all-reduce": {}, "quorum of all": {"wait_for": "all"}}
TIMEOUT = 120.0


def note(folder: Path, rank: int, words: object) -> None:
    """A line of this rank's, at once."""
    with open(folder / f"times-{rank}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", "a") as file:
        file.write(f"{words}\n")


def net(width: int):  # type: ignore[no-untyped-def]
    from torch import nn

    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def dying(side: str, folder: Path) -> None:
    """One worker of the first part: leaves word of its process, and of when each step's exchange began and ended."""
    import torch
    from torch import nn

    updates: Callable[[], int] = itertools.count().__next__  # every step is one
    if side == "torchrun":
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("gloo")
        rank = dist.get_rank()
        model: nn.Module = DistributedDataParallel(net(64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    elif side in TORCHFT:
        rank = int(os.environ["REPLICA_GROUP_ID"])
        model, optimizer, updates = tolerant(side)
    else:
        import quorate

        strategy, settings = SIDES[side]
        rank = quorate.join(timeout=TIMEOUT).rank
        model = net(64)
        plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        optimizer = quorate.distribute(plain, model, strategy, **settings)
    note(folder, rank, os.getpid())
    x, y = torch.randn(16, 64), torch.randint(10, (16,))
    while not (folder / "over").exists():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        time.sleep(PACE)
        arrive = time.monotonic()
        loss.backward()
        before = updates()
        optimizer.step()
        if updates() > before:
            note(folder, rank, f"{arrive} {time.monotonic()}")
    os._exit(0)


def tolerant(side: str) -> tuple[Any, Any, Callable[[], int]]:
    """A model, torchft's optimizer around a plain one, and how many updates the latter has made.

    Gradients are averaged by `Manager.allreduce`, as one tensor: in torchft 0.2.0 its `DistributedDataParallel` raises
    an `AssertionError` in `backward` once gloo has found a peer gone, which ends the survivors.
    """
    import torch
    import torchft

    seconds = {name: timedelta(seconds=told) for name, told in TORCHFT[side][1].items()}

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    class Averaged(torchft.Optimizer):
        def step(self, closure: object = None) -> None:
            gradients = [parameter.grad for parameter in model.parameters()]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            manager.allreduce(flat).wait()
            for gradient, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))
            super().step()

    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=seconds["gloo"]),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        use_async_quorum=True,
        replica_id=f"worker-{os.environ['REPLICA_GROUP_ID']}",
        timeout=seconds["manager"],
        heartbeat_interval=seconds["heartbeat"],
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
    )
    model, updates = net(64), []
    plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    plain.register_step_post_hook(lambda *_: updates.append(store))  # only a step that is committed gets there
    optimizer = Averaged(manager, plain)
    return model, optimizer, updates.__len__


def costing(turns: int) -> None:
    """One of the two processes of the second part; rank 0 prints one JSON line per turn."""
    import torch
    from balanced import mlp
    from torch import nn

    import quorate

    torch.set_num_threads(1)
    world = quorate.join(timeout=TIMEOUT)
    x, y = torch.randn(256, 512), torch.randint(10, (256,))
    sides = {}
    for name, settings in COSTS.items():
        for on_death in ("stop", "continue"):
            torch.manual_seed(0)
            model = mlp(1024, 4)
            plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            kind = "all-reduce" if name == "all-reduce" else "quorum"
            sides[name, on_death] = model, quorate.distribute(plain, model, kind, on_death=on_death, **settings)

    def block(model: nn.Module, optimizer: Any, count: int) -> float:
        world.barrier()
        begin = time.perf_counter()
        for _ in range(count):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        world.barrier()
        return (time.perf_counter() - begin) / count

    for side in sides.values():
        block(*side, 2)
    for turn in range(turns):
        names = list(sides)
        names = [*names[turn % len(names) :], *names[: turn % len(names)]]
        seconds = {side: block(*sides[side], 8) for side in names}
        if world.is_first:
            print(json.dumps([[*side, taken] for side, taken in seconds.items()]), flush=True)


def words_of(folder: Path, restart: int = 0) -> dict[int, list[str]]:
    """By rank, its whole lines."""
    found = {}
    for path in folder.glob(f"times-*-{restart}"):
        text = path.read_text()
        found[int(path.name.split("-")[1])] = text[: text.rfind("\n") + 1].splitlines()
    return found


def steps_of(lines: list[str]) -> list[tuple[float, float]]:
    """(when its exchange began, when it was over) of each step."""
    return [(float(one.split()[0]), float(one.split()[1])) for one in lines[1:]]


def wait_for(is_so, what: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + TIMEOUT
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {TIMEOUT:g} s until {what}")
        time.sleep(0.01)


def one_by_one(folder: Path, draw: random.Random) -> list[float]:
    """The seconds after each kill of a training under way, until one worker is left, which is told to leave."""
    left, found = list(range(WORKERS)), []
    while len(left) > 1:
        wait_for(lambda: all(len(words_of(folder).get(rank, [])) > BEGUN for rank in left), "all step")
        time.sleep(draw.uniform(0.1, 0.3))
        victim = left.pop(draw.randrange(len(left)))
        os.kill(int(words_of(folder)[victim][0]), signal.SIGKILL)
        killed = time.monotonic()

        def after() -> list[float | None]:
            told = words_of(folder)
            ends = [[end for arrive, end in steps_of(told[rank]) if arrive > killed] for rank in left]  # noqa: B023
            return [min(some, default=None) for some in ends]

        wait_for(lambda: None not in after(), "the survivors step")
        found.append(max(end for end in after() if end is not None) - killed)
    (folder / "over").touch()
    return found


def kills(server: Any, side: str, draw: random.Random) -> list[float]:
    """The seconds after each kill of one training of ours."""
    from quorate.launch.warm.request import RunRequest

    with tempfile.TemporaryDirectory() as place:
        script = str(Path(__file__).resolve())
        request = RunRequest(script=script, arguments=["--dying", side, place], size=WORKERS, folder=Path(place))
        run = server.start(request)
        found = one_by_one(Path(place), draw)
        run.wait(TIMEOUT)
    return found


def kills_of_torchft(side: str, draw: random.Random) -> list[float]:
    """The seconds after each kill of one training with torchft, whose lighthouse is in this process."""
    from torchft.coordination import LighthouseServer

    with tempfile.TemporaryDirectory() as place, ExitStack() as ending:
        lighthouse = LighthouseServer(bind="0.0.0.0:0", min_replicas=1, **TORCHFT[side][0])
        ending.callback(lighthouse.shutdown)
        command = [sys.executable, str(Path(__file__).resolve()), "--dying", side, place]
        for rank in range(WORKERS):
            own = {"REPLICA_GROUP_ID": str(rank), "TORCHFT_LIGHTHOUSE": lighthouse.address(), "OMP_NUM_THREADS": "1"}
            quiet = subprocess.DEVNULL
            worker = subprocess.Popen(command, cwd=place, env={**os.environ, **own}, stdout=quiet, stderr=quiet)
            ending.callback(worker.wait)
            ending.callback(worker.kill)
        return one_by_one(Path(place), draw)


def restart() -> float:
    """Seconds from a kill until all workers of torchrun have made a step anew."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS)]
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        command += ["--max-restarts", "1", str(Path(__file__).resolve()), "--dying", "torchrun", place]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, cwd=place, env=environment, stdout=quiet, stderr=quiet) as run:

            def stepped(restarts: int) -> list[int]:
                return [len(lines) for lines in words_of(folder, restarts).values()]

            wait_for(lambda: len(stepped(0)) == WORKERS and min(stepped(0)) > BEGUN, "torchrun's workers step")
            os.kill(int(words_of(folder)[1][0]), signal.SIGKILL)
            killed = time.monotonic()
            wait_for(lambda: len(stepped(1)) == WORKERS and min(stepped(1)) > 1, "torchrun's workers step again")
            ends = [steps_of(lines)[0][1] for lines in words_of(folder, 1).values()]
            (folder / "over").touch()
            run.wait(TIMEOUT)
    return max(ends) - killed


def cost(report: Any, turns: int, shows: Callable[[], None]) -> None:
    """The second part."""
    import record
    import workers

    ratios: dict[str, list[float]] = {name: [] for name in COSTS}
    for line in workers.json_lines(str(Path(__file__).resolve()), 2, "--costing", str(turns)) if turns else ():
        seconds = {(name, on_death): taken for name, on_death, taken in json.loads(line)}
        for name in COSTS:
            ratios[name].append(seconds[name, "stop"] / seconds[name, "continue"])
        shows()
    for name, found in ratios.items():
        if found:
            report.rows.append(record.figure(f"{name}: throughput, can survive / cannot", found))
        report.bar(f"{name}: median of that ratio", record.median_of(found), at_least=0.98)


def main() -> int:
    import numpy as np
    import record

    parser = record.arguments(__doc__ or "")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this; may be given several times")
    options = parser.parse_args()
    parts = options.part or PARTS
    is_there = importlib.util.find_spec("torchft") is not None
    trainings, peers, turns = (1, 0, 3) if options.quick else (10, 3, 21)
    counts = {
        **dict.fromkeys(SIDES, trainings * ("quorate" in parts)),
        **dict.fromkeys(TORCHFT, peers * ("torchft" in parts and is_there)),
        "torchrun": peers * ("torchrun" in parts),
        "cost": turns * ("cost" in parts),
    }

    from rich.progress import Progress

    from quorate.launch.warm.run_server import RunServer

    settings: dict[str, Any] = {"workers": WORKERS, "pace": PACE, "trainings": trainings, "turns": turns}
    if "torchft" in parts and not is_there:
        settings["torchft"] = "not installed, not measured"
        print("torchft: not installed, not measured")
    elif any(counts[side] for side in TORCHFT):
        settings["torchft"] = {"version": importlib.metadata.version("torchft"), "trainings": peers, **TORCHFT}
    report = record.Report("death", settings)
    draw = random.Random(0)
    with Progress(disable=not sys.stderr.isatty()) as progress, RunServer() as server:
        task = progress.add_task("trainings", total=sum(counts.values()))

        def measure(side: str, training: Callable[[], list[float]]) -> float | None:
            """The 95th percentile; None where nothing is measured."""
            found = []
            for _ in range(counts[side]):
                found += training()
                progress.update(task, advance=1, description=side)
            if not found:
                return None
            report.rows.append(record.figure(f"{side}: seconds from a kill to the survivors' next update", found))
            p50, p95 = (float(np.percentile(found, share)) for share in (50, 95))
            report.settings[f"{side}: p50, p95, greatest of {len(found)}"] = [p50, p95, max(found)]
            return p95

        for side in SIDES:
            p95 = measure(side, partial(kills, server, side, draw))
            report.bar(f"{side}: p95 of seconds to the next update", p95, at_most=1.0)
        for side in TORCHFT:
            measure(side, partial(kills_of_torchft, side, draw))
        again = []
        for _ in range(counts["torchrun"]):
            again.append(restart())
            progress.update(task, advance=1, description="torchrun")
        if again:
            report.rows.append(record.figure("torchrun: seconds from a kill to the next step", again))
        cost(report, counts["cost"], partial(progress.update, task, advance=1, description="cost"))
    return report.show(options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--dying"]:
        dying(sys.argv[2], Path(sys.argv[3]))
    elif sys.argv[1:2] == ["--costing"]:
        costing(int(sys.argv[2]))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("RUST_LOG", "error")  # torchft's lighthouse tells of every step
        sys.exit(main())
