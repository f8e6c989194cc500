"""Five hundred wrong inputs: each ends in one sentence and status 2, or is none; nothing of ours is ever shown."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate.cli.compare import verb as compare_verb
from quorate.cli.main import main
from quorate.core.errors import ConfigurationError
from quorate.core.settings import settings_for
from quorate.launch.local import processes
from quorate.launch.local.processes import Conclusion
from quorate.launch.run.overrides import overrides_here
from quorate.launch.virtual import run as virtual
from quorate.strategies import strategies
from quorate.workloads import workloads
from tests.support.made_records import make_comparison, make_run
from tests.support.mutations import COMPARE, ENVIRONMENT, JUNK, OTHERS, RUN, alter_file, command_line

COMMAND_LINES, FOLDERS, ENVIRONMENTS, SETTINGS, CONFIGS = 65, 50, 60, 60, 60
"""`make soak` tries many times as many of the first two."""
LONGEST_LINE = 2000


@pytest.fixture(autouse=True)
def environment_as_it_was() -> Iterator[None]:
    """What commands leave in the environment of this process would reach every test after these."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and a comparison, as training would leave them."""
    folder = tmp_path_factory.mktemp("made")
    make_run(folder / "run", steps=6, ranks=3, evaluate_every=3)
    make_comparison(folder / "comparison", seeds=(0,), steps=4, ranks=4, evaluate_every=2)
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a script; no process starts and nobody trains."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(processes, "run_shown", lambda *given, **named: Conclusion(0))
    monkeypatch.setattr(virtual, "run_script", lambda *given, **named: 0)
    monkeypatch.setattr(compare_verb, "_run", lambda *given, **named: 0)
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "run.toml").write_text('strategy = "quorum"\nworkers = 2\n[set]\nwait_for = 1\n')
    (tmp_path / "compare.toml").write_text('seeds = [1, 2]\nvirtual = 2\nstrategy = ["all-reduce"]\n')
    return tmp_path


def check(words: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    """The status of a command; wrong input has told why in one line."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    status = ended.value.code
    said = capsys.readouterr().err
    assert status in (0, 2), (words, status, said)
    if status == 2:
        assert said.startswith("quorate: ") and said.count("\n") == 1 and len(said) < LONGEST_LINE, (words, said)
    assert "Traceback" not in said
    return int(status)


def test_command_lines(folder: Path, capsys: pytest.CaptureFixture[str], times: int) -> None:
    refused, count = 0, times * COMMAND_LINES
    make_run(folder / "done", steps=3, ranks=2)
    for seed in range(count):
        words = command_line(random.Random(seed), RUN + COMPARE + OTHERS)
        refused += check(words, capsys) == 2
        shutil.rmtree(folder / "runs", ignore_errors=True)
    assert refused > count / 2, "most of them are wrong"


def test_folders_of_records(folder: Path, made: Path, capsys: pytest.CaptureFixture[str], times: int) -> None:
    refused = 0
    for seed in range(times * FOLDERS):
        draw = random.Random(seed)
        is_comparison = draw.random() < 0.3
        place = folder / "w"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(made / ("comparison" if is_comparison else "run"), place)
        files = sorted(path for path in place.rglob("*.json*") if path.is_file())
        chosen = place / "compare.json" if is_comparison and draw.random() < 0.6 else draw.choice(files)
        alter_file(draw, chosen)
        verbs = [["report", "w"], ["trace", "w"]]
        if not is_comparison:
            verbs.append(["run", "--dry-run", "--resume", "w"])
        if is_comparison:
            verbs += [["compare", "--continue", "w", "--dry-run"], ["compare", "--continue", "w"]]
        refused += check(draw.choice(verbs), capsys) == 2
    assert 0 < refused < times * FOLDERS


def test_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0
    for seed in range(ENVIRONMENTS):
        draw = random.Random(seed)
        with monkeypatch.context() as own:
            for name in draw.sample(ENVIRONMENT, draw.randint(1, 3)):
                own.setenv(name, draw.choice(JUNK))
            try:
                overrides_here()
            except ConfigurationError:
                refused += 1
    assert refused > ENVIRONMENTS / 4


def test_settings_in_python() -> None:
    families = [strategies.get(name) for name in strategies] + [workloads.get(name) for name in workloads]
    values = (None, True, -1, 0, 2.5, float("nan"), 10**30, "", "a", "majority", [], [1], {}, {"a": 1}, b"x", object())
    refused = 0
    for seed in range(SETTINGS):
        draw = random.Random(seed)
        kind = draw.choice(families)
        known = [*getattr(kind, "__dataclass_fields__", {}), "unknown", ""]
        chosen = {draw.choice(known): draw.choice(values) for _ in range(draw.randint(1, 3))}
        try:
            kind(**settings_for(kind, chosen))
        except ConfigurationError:
            refused += 1
    assert refused > SETTINGS / 2


def test_config_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = 0
    for seed in range(CONFIGS):
        draw = random.Random(seed)
        verb, name = draw.choice((("run", "run.toml"), ("compare", "compare.toml")))
        text = (folder / name).read_text()
        at = draw.randint(0, len(text))
        altered = text[:at] + draw.choice((*JUNK, "= 1\n", "workers = -1\n", "[set]\n", "x = 1\n")) + text[at:]
        (folder / "altered.toml").write_bytes(altered.encode(errors="surrogateescape"))
        subject = "train.py" if verb == "run" else "least-squares"
        refused += check([verb, "--config", "altered.toml", "--print-config", subject], capsys) == 2
    assert refused > CONFIGS / 2
