"""`quorate.launch` and `quorate.report`, with virtual workers; processes are in `tests/world`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import ConfigurationError, WorkerFailed
from quorate.notebook.function import file_of, put_raised, put_result, raised_in, receive, result_in, send
from quorate.notebook.launching import bytes_of


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(steps: int = 12, fails: int | None = None) -> tuple[int, torch.Tensor]:
    world = quorate.join()
    torch.manual_seed(world.rank)
    model = torch.nn.Linear(2, 1)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for _ in range(steps):
        model(torch.ones(2, 2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if world.rank == fails:
        raise KeyError("no such key")
    optimizer.finish()
    return world.rank, model.weight.detach().clone()


def test_each_workers_result_and_the_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORATE_IMBALANCE", "what another run was told")
    before = {name: value for name, value in os.environ.items() if name.startswith("QUORATE_")}
    results, folder = quorate.launch(train, virtual=3, args=(20,), strategy="local-sgd", sync_every=4, name="mine")
    assert [rank for rank, _ in results] == [0, 1, 2]
    assert all(torch.equal(weight, results[0][1]) for _, weight in results)
    assert folder == Path.cwd() / "runs" / "mine" and (folder / "rank-2.jsonl").is_file()
    told = json.loads((folder / "run.json").read_text())
    assert told["strategy"] == "local-sgd" and told["settings"] == {"sync_every": 4} and told["workers"] == 3
    assert json.loads((folder / "outcome.json").read_text())["status"] == 0
    assert "quorate: 20 steps in " in capsys.readouterr().err
    assert {name: value for name, value in os.environ.items() if name.startswith("QUORATE_")} == before


def test_an_error_comes_with_its_rank_and_traceback() -> None:
    with pytest.raises(WorkerFailed, match="^rank 1 raised KeyError: 'no such key'\n\nTraceback") as failed:
        quorate.launch(train, virtual=3, args=(4, 1), progress=False)
    assert failed.value.ranks == (1,) and isinstance(failed.value.__cause__, KeyError)
    assert 'raise KeyError("no such key")' in str(failed.value) and "notebook/launching" not in str(failed.value)


def test_a_wrong_setting_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="sync_evry"):
        quorate.launch(train, virtual=2, strategy="local-sgd", sync_evry=4, progress=False)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({}, "takes n=, .* or virtual=, and not both"),
        ({"n": 2, "virtual": 2}, "and not both"),
        ({"virtual": 0}, "a run needs at least one worker"),
        ({"n": 2, "latency": "1ms"}, "latency can be given with virtual= only"),
        ({"virtual": 2, "latency": "fast"}, "fast"),
        ({"virtual": 2, "min_step_time": "soon"}, '"soon" is not a minimum step time'),
        ({"virtual": 2, "data_share": "fair"}, 'unknown share "fair"'),
        ({"virtual": 2, "strategy": "all-redcue"}, 'did you mean "all-reduce"'),
        ({"virtual": 2, "strategy": "ddp"}, "needs processes"),
        ({"virtual": 2, "name": "a/b"}, "is not a name for a run"),
    ],
)
def test_wrong_arguments(given: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        quorate.launch(train, **given)
    with pytest.raises(ConfigurationError, match="takes a function, not a int"):
        quorate.launch(7, virtual=2)  # type: ignore[arg-type]
    assert not Path("runs").exists()


@pytest.mark.parametrize("latency", [0.0, 0, "0"])
def test_a_network_without_latency_may_be_given_as_a_number(latency: Any) -> None:
    def seconds() -> float:
        world = quorate.join()
        world.barrier()
        return world.wire.clock.now()

    with_latency = quorate.launch(seconds, virtual=2, latency="1s").results[0]
    assert quorate.launch(seconds, virtual=2, latency=latency).results[0] < 1.0 <= with_latency
    with pytest.raises(ConfigurationError, match="has no unit"):
        quorate.launch(seconds, virtual=2, latency=0.5)


def test_workers_start_no_workers() -> None:
    def nested() -> None:
        quorate.join()
        quorate.launch(train, virtual=2)

    with pytest.raises(ConfigurationError, match="already one of several workers"):
        quorate.launch(nested, virtual=2, progress=False)


def test_the_report_shows_itself() -> None:
    run = quorate.launch(train, virtual=2, args=(30,), progress=False)
    report = quorate.report(run)
    assert report.path == run.folder / "report.html" and report.path.is_file()
    shown = report._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;') and "<script" not in shown
    assert report.summary["workers"] == 2
    assert quorate.report(run.folder.name).path.samefile(report.path)
    with pytest.raises(ConfigurationError, match='there is no run "nothing"'):
        quorate.report("nothing")


def test_names_of_packages_go_on_to_lead_into_them() -> None:
    import quorate.launch.local.verdict
    import quorate.report.wording as wording

    assert callable(quorate.launch) and callable(quorate.report)
    assert quorate.launch.local.verdict.Ending is not None and wording.counted(1, "x") == "1 x"
    assert sys.modules["quorate.launch"] is quorate.launch


def test_a_function_and_its_source_arrive(tmp_path: Path) -> None:
    factor = torch.tensor(3.0)

    def times(x: float) -> torch.Tensor:
        return factor * x

    send(tmp_path / "f", times, (2.0,))
    function, args, file = receive(tmp_path / "f")
    assert function is not times and function(*args) == 6.0 and file == __file__ == file_of(times)


def test_what_cannot_be_sent_is_said(tmp_path: Path) -> None:
    with open(tmp_path / "x", "w") as file, pytest.raises(ConfigurationError, match="cannot be sent to other proc"):
        send(tmp_path / "f", train, (file,))


@pytest.mark.parametrize(
    "value",
    [None, 1, 2.5, "x", [1, (2, "y")], {"a": torch.arange(3), "b": {"c": torch.ones(2, 2, dtype=torch.bfloat16)}}],
)
def test_what_is_returned_comes_back(tmp_path: Path, value: object) -> None:
    put_result(tmp_path, 3, value)
    found = result_in(tmp_path, 3)
    assert type(found) is type(value) and str(found) == str(value)
    assert result_in(tmp_path, 4) is None


def test_what_cannot_come_back_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="quorate.launch cannot bring back result"):
        put_result(tmp_path, 0, object())


def test_the_first_error_is_the_first(tmp_path: Path) -> None:
    for rank in (2, 0, 1):
        try:
            raise ValueError(f"of rank {rank}")
        except ValueError as error:
            put_raised(tmp_path, rank, error, __file__)
    assert [one.rank for one in raised_in(tmp_path)] == [2, 0, 1]
    assert raised_in(tmp_path)[0].trace.count("File") == 1


def test_a_stream_without_bytes_takes_them() -> None:
    import io

    text = io.StringIO()
    stream = bytes_of(text)
    for piece in ("grüße €\n".encode()[i : i + 1] for i in range(len("grüße €\n".encode()))):
        stream.write(piece)
    assert text.getvalue() == "grüße €\n"
    with pytest.raises(OSError, match="fileno"):
        stream.fileno()
