"""A user's script, unchanged, in virtual workers."""

from __future__ import annotations

import itertools
import logging
import os
import re
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

from quorate.core.errors import ConfigurationError
from quorate.launch.run.overrides import Overrides
from quorate.launch.virtual.run import INTERRUPTED, run_script
from quorate.launch.warm.request import RunRequest, VirtualRun, run_request
from tests.support.programs import Program

PREAMBLE = "from quorate.wire import current\nwire = current.here().wire\n"

Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a script of this text; returns its status and what each rank wrote."""

    runs = itertools.count()

    def go(text: str, size: int = 3, *args: str, preamble: str = PREAMBLE, **settings: Any) -> tuple[int, list[str]]:
        script, folder = tmp_path / "script.py", tmp_path / f"run-{next(runs)}"
        script.write_text(preamble + textwrap.dedent(text))
        status = run_script(script, args, size, run_dir=folder, **settings)
        logs = [folder / f"rank-{rank}.log" for rank in range(size)]
        return status, [log.read_text() if log.exists() else "" for log in logs]

    return go


def test_a_script_finds_what_it_expects(run: Run, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    status, logs = run(
        """
        import os, pickle, sys
        from dataclasses import dataclass
        import beside

        @dataclass
        class Point:
            x: "int"

        wire.barrier().wait()
        assert __name__ == "__main__" and sys.modules["__main__"].Point is Point
        assert pickle.loads(pickle.dumps(Point(wire.rank))) == Point(wire.rank)
        assert "RANK" not in os.environ
        print(sys.argv[1:], os.path.basename(__file__), beside.VALUE, wire.rank, wire.size)
        """,
        3,
        "--lr",
        "0.1",
    )
    assert status == 0
    assert logs == [f"['--lr', '0.1'] script.py 7 {rank} 3\n" for rank in range(3)]


def test_spawned_tasks_run_in_their_workers_main_module(run: Run) -> None:
    status, logs = run(
        """
        import sys

        class Own:
            pass

        def beside(own):
            for _ in range(3):
                own.barrier().wait()
                assert sys.modules["__main__"].Own is Own
            print("beside", own.rank)

        wire.spawn(beside, "beside").wait()
        assert sys.modules["__main__"].Own is Own
        """
    )
    assert (status, logs) == (0, [f"beside {rank}\n" for rank in range(3)])


def test_the_process_is_as_it_was_afterwards(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")

    def state() -> list[Any]:
        loader = torch.utils.data.DataLoader.__init__
        return [
            sys.argv, list(sys.path), sys.modules["__main__"], sys.stdout, sys.stderr, time.time, time.sleep, loader,
            torch.compile, torch.distributed.all_reduce, logging.getLogRecordFactory(), logging.root.handlers[:],
            signal.signal, dict(os.environ),
        ]  # fmt: skip

    before = state()
    status, logs = run("import os, logging; print('RANK' in os.environ); logging.basicConfig(); x = 1 / wire.rank")
    assert status == 1
    assert logs[2].startswith("False\n")
    assert state() == before


def test_the_output_of_rank_0_is_shown_and_all_is_kept(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    text = "import sys; print('out', wire.rank); print('err', wire.rank, file=sys.stderr)"
    status, logs = run(text)
    shown = capsys.readouterr()
    assert (status, shown.out, shown.err) == (0, "out 0\n", "err 0\n")
    assert logs == [f"out {rank}\nerr {rank}\n" for rank in range(3)]
    pieces: list[tuple[int, str]] = []
    run(text, on_output=lambda rank, written: pieces.append((rank, written)))
    assert capsys.readouterr().out == ""
    assert sorted({rank for rank, _ in pieces}) == [0, 1, 2]
    assert "".join(written for rank, written in pieces if rank == 1) == "out 1\nerr 1\n"


def test_time_is_virtual_in_workers_and_real_elsewhere(run: Run) -> None:
    status, logs = run(
        """
        import threading, time
        a, b, c = time.time(), time.monotonic(), time.perf_counter_ns()
        time.sleep(1000.0 + wire.rank)
        print(round(time.time() - a), round(time.monotonic() - b), round((time.perf_counter_ns() - c) / 1e9))
        assert time.time() > a, "no interval is empty"
        end = time.process_time() + 0.01
        while time.process_time() < end:
            pass
        seen = []
        helper = threading.Thread(target=lambda: seen.append(time.time()))
        helper.start(); helper.join()
        assert seen[0] > 1.7e9 > a
        try:
            time.sleep(-1)
        except ValueError:
            print("as ever")
        wire.barrier().wait()
        print(round(time.time_ns() / 1e9 - a, 2))
        """
    )
    assert status == 0
    assert logs == [f"{1000 + r} {1000 + r} {1000 + r}\nas ever\n1002.01\n" for r in range(3)]


def test_data_loaders_and_compile_work(run: Run) -> None:
    status, logs = run(
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        data = TensorDataset(torch.arange(6.0).reshape(6, 1))
        loader = DataLoader(data, 2, False, num_workers=2, pin_memory=True, persistent_workers=True, timeout=5,
                            prefetch_factor=4, multiprocessing_context="spawn")
        model = torch.compile(torch.nn.Linear(1, 1), mode="max-autotune")
        assert type(model) is torch.nn.Linear

        @torch.compile(dynamic=True)
        def double(x):
            return 2 * x

        for (x,) in loader:
            double(model(x)).sum().backward()
            wire.all_reduce(model.weight.grad).wait()
        torch.set_num_threads(8)
        torch.set_num_interop_threads(2)
        assert torch.get_num_threads() == 1
        import multiprocessing, signal
        multiprocessing.set_start_method("spawn")
        signal.signal(signal.SIGTERM, lambda *_: None)
        print(loader.num_workers, len(loader), model.weight.grad.item())
        """
    )
    assert status == 0
    assert len(set(logs)) == 1
    assert logs[0].startswith("0 3 ")


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        ("dist.init_process_group('gloo')", "quorate.join()"),
        ("dist.get_rank()", "world.rank"),
        ("dist.get_world_size()", "world.size"),
        ("dist.all_reduce(x)", "world.mean(x)"),
        ("dist.broadcast(x, 0)", "world.broadcast(x)"),
        ("dist.barrier()", "world.barrier()"),
        ("dist.all_gather([x], x)", "world.gather(x)"),
        ("dist.new_group([0])", "world.wire.group(members)"),
        ("torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))", "quorate.distribute(optimizer, model)"),
        ("torch.utils.data.DistributedSampler(x)", "world.size"),
    ],
)
def test_torch_distributed_names_what_to_use_instead(run: Run, call: str, instead: str) -> None:
    status, logs = run(
        f"""
        import torch
        import torch.distributed as dist
        x = torch.ones(2)
        assert not dist.is_initialized() and dist.is_available()
        try:
            {call}
        except ValueError as error:
            print(error)
        """,
        2,
    )
    assert status == 0
    for log in logs:
        assert log.endswith(f"use {instead} instead\n")


def test_logging_knows_the_rank_and_writes_each_line_once(run: Run) -> None:
    status, logs = run(
        """
        import logging, sys
        logging.basicConfig(stream=sys.stdout, format="%(rank)s %(message)s", level=logging.INFO)
        logging.info("root")
        own = logging.getLogger("own of a script")
        own.propagate = False
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("own %(rank)s %(message)s"))
        own.addHandler(handler)
        wire.barrier().wait()
        own.warning("line")
        careful = logging.getLogger("careful script")
        careful.propagate = False
        if not careful.handlers:
            careful.addHandler(logging.StreamHandler(sys.stdout))
        wire.barrier().wait()
        careful.warning("careful %d", wire.rank)
        """
    )
    assert status == 0
    assert [log.replace(f"{rank} root\n", "") for rank, log in enumerate(logs)] == [
        f"own {rank} line\ncareful {rank}\n" for rank in range(3)
    ]


def test_an_exception_ends_the_run(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    status, logs = run(
        """
        if wire.rank == 1:
            raise KeyError("by hand")
        wire.barrier().wait()
        """
    )
    shown = capsys.readouterr().err
    assert status == 1
    assert "[rank 1] KeyError: 'by hand'" in shown
    assert "launch/virtual/run.py" not in shown, "the traceback begins in the script"
    assert shown.count("Traceback") == 1
    assert shown.endswith("quorate: ranks 0 and 2 stopped because rank 1 had failed\n")
    assert "KeyError: 'by hand'" in logs[1]
    assert logs[0] == logs[2] == "quorate: rank 1 (host virtual) raised KeyError: 'by hand'\n"


def test_what_all_workers_are_refused_is_told_once(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    refused = """
        from quorate.core.errors import ConfigurationError
        if wire.rank in {ranks}:
            raise ConfigurationError("so not")
        wire.barrier().wait()
        """
    status, logs = run(refused.format(ranks="(0, 1, 2)"))
    shown = capsys.readouterr().err
    assert status == 2
    assert re.fullmatch(r"quorate: so not \(.*, line \d+\)\n", shown)
    assert all(log.startswith("quorate: so not") for log in logs)
    assert run(refused.format(ranks="(1,)"))[0] == 2
    assert capsys.readouterr().err.startswith("[rank 1] quorate: so not (")


def test_a_sentence_that_a_library_has_put_words_around_is_shown_alone(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    status, logs = run(
        """
        from quorate.core.errors import ConfigurationError
        try:
            raise ConfigurationError("so not")
        except ConfigurationError as error:
            raise type(error)(f"Exception when calling Dense.call().\\n\\n{error}\\n\\nArguments:") from None
        """
    )
    assert status == 2
    assert re.fullmatch(r"quorate: so not \(.*, line \d+\)\n", capsys.readouterr().err)
    assert all(log.startswith("quorate: so not (") for log in logs)


def test_the_line_of_a_refusal_is_not_in_a_copy_of_the_script(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code = "from quorate.core.errors import ConfigurationError\nraise ConfigurationError('so not')"
    status, _ = run(f"exec(compile({code!r}, '/tmp/__autograph_generated_file0ab.py', 'exec'))")
    assert status == 2
    assert re.fullmatch(r"quorate: so not \(.*script.py, line \d+\)\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("import sys; sys.exit()", 0),
        ("import sys; wire.barrier().wait(); sys.exit(0)", 0),
        ("import sys\nif wire.rank == 2: sys.exit(5)\nwire.barrier().wait()", 5),
        ("import sys; sys.exit('in words')", 1),
        ("from quorate.core.errors import ConfigurationError\nraise ConfigurationError('so not')", 2),
        ("this is no python", 1),
    ],
)
def test_exit_statuses(run: Run, text: str, status: int) -> None:
    returned, logs = run(text, preamble=PREAMBLE + "\n")
    assert returned == status
    if "words" in text:
        assert logs[0] == "in words\n"


def test_what_was_to_be_done_before_leaving_is_done_after_a_good_end_only(run: Run) -> None:
    text = """
        current.here().leaving.append(lambda: (wire.barrier().wait(), print("left", wire.rank)))
        if wire.rank in {ranks}:
            raise ValueError
        """
    assert run(text.format(ranks="()")) == (0, [f"left {rank}\n" for rank in range(3)])
    status, logs = run(text.format(ranks="(0,)"))
    assert status == 1
    assert not any("left" in log for log in logs)


def test_workers_draw_alike_whatever_the_schedule(run: Run) -> None:
    text = """
        import random, time
        import numpy, torch
        for k in range(3):
            print(torch.rand(1).item(), numpy.random.rand(), random.random())
            time.sleep(WAIT)
        torch.manual_seed(1)
        wire.barrier().wait()
        print(torch.rand(1).item())
        """
    first = run(text.replace("WAIT", "0.0"))[1]
    second = run(text.replace("WAIT", "float(3 - wire.rank)"))[1]
    assert first == second
    assert len(set(first)) == 1
    assert run(text.replace("WAIT", "0.0"), seed=1)[1] != first


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        run_script(tmp_path / "missing.py", (), 2)


def test_ctrl_c_ends_every_wait(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        PREAMBLE + "import sys\nprint('ready', flush=True)\n"
        "try:\n    while True:\n        wire.barrier().wait()\n"
        "except KeyboardInterrupt:\n    print('told', flush=True)\n    raise\n"
    )
    start = (
        f"import sys; from quorate.launch.virtual.run import run_script; sys.exit(run_script({str(script)!r}, (), 3))"
    )
    (tmp_path / "start.py").write_text(start)
    process = Program(["start.py"], cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (INTERRUPTED, "told\n")
    assert err == "quorate: interrupted\n"


TRAINS = """
import sys
import torch
import quorate
world = quorate.join()
model = torch.nn.Linear(2, 1)
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, "quorum", on_error={on_error!r})
for step in range(10):
    if step == 4 and world.rank == 1:
        sys.exit(5)
    model(torch.randn(4, 2)).square().mean().backward()
    optimizer.step()
optimizer.finish()
print("finished")
"""


def test_an_error_under_rounds_ends_the_run_or_is_outlived_and_told(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    status, logs = run(TRAINS.format(on_error="stop"), preamble="")
    assert status == 5
    assert not any("finished" in log for log in logs)
    capsys.readouterr()
    status, logs = run(TRAINS.format(on_error="continue"), preamble="")
    assert status == 5
    assert [log for log in logs if "finished" in log] == ["finished\n"] * 2
    assert 'rank 1 had failed, and the others went on (on_error="continue")' in capsys.readouterr().err


def test_a_virtual_run_leaves_the_environment_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "print(*sorted(name for name in os.environ if name.startswith('QUORATE_')))\n"
        "os.environ['QUORATE_OF_SCRIPT'] = '1'\n"
    )
    monkeypatch.setenv("QUORATE_SEED", "7")
    before, overrides = dict(os.environ), Overrides(seconds=5.0)
    request = RunRequest(script=str(script), size=2, folder=tmp_path, overrides=overrides)
    assert run_request(request, VirtualRun()) == 0
    assert dict(os.environ) == before
    assert (tmp_path / "rank-0.log").read_text().split() == ["QUORATE_RUN", "QUORATE_SECONDS"]


def test_workers_that_fail_leave_no_hook_in_the_process(tmp_path: Path) -> None:
    before = list(_global_optimizer_pre_hooks)
    script = tmp_path / "script.py"
    script.write_text("import quorate\nquorate.join()\nraise ValueError('no')\n")
    overrides = Overrides(strategy="quorum")
    request = RunRequest(script=str(script), size=2, folder=tmp_path, overrides=overrides)
    assert run_request(request, VirtualRun()) == 1
    assert list(_global_optimizer_pre_hooks) == before
