"""What every test runs under: this checkout's sources, no launcher's environment, one thread, fixed examples."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main
from hypothesis import settings

from quorate.launch.warm.forks import CAN_FORK, keeping
from quorate.launch.warm.run_server import RunServer
from tests.support import zygote
from tests.support.budgets import SHARES, Budgets, Short, in_order
from tests.support.sampled import STEPS, Few, covering, sampled, two_of, without_repetition

SOURCES = Path(__file__).parents[1] / "src"
LAUNCHER_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
LAUNCHER_PREFIXES = ("TORCHELASTIC_", "SLURM_", "OMPI_", "PMI", "QUORATE_")

# Before torch is imported: here, and in every process that a test starts.
for name in list(os.environ):
    if name in LAUNCHER_NAMES or name.startswith(LAUNCHER_PREFIXES):
        del os.environ[name]
# As in the background of a shell, or after nohup; processes inherit it.
for ignored, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, usual)
os.environ["OMP_NUM_THREADS"] = "1"
# Bytecode is kept: more than a hundred processes import the product, and pytest rewrites every test file.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
own_path = (str(SOURCES), str(SOURCES.parent), os.environ.get("PYTHONPATH", ""))  # the second for `tests`
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, own_path))

# The same examples on every run, and no limit on how long a first one takes (it may import torch).
settings.register_profile("quorate", deadline=None, derandomize=True, database=None, max_examples=40)
settings.register_profile("search", settings.get_profile("quorate"), max_examples=1000)
settings.load_profile("quorate")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seconds", type=float, help="run the test files nearest to what changed, as far as so many reach"
    )
    parser.addoption(
        "--cases",
        choices=("all", *STEPS),
        default="all",
        help="of laws with several cases all, every third or fifth one, or one",
    )
    parser.addoption("--gpu", action="store_true", help="tests/contract with models on a GPU, as `make test-gpu` does")
    parser.addoption(
        "--times", type=int, default=1, help="make random searches so many times as long, as `make soak` does"
    )


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # what is imported and collected stays
    seconds = config.getoption("--seconds")
    if seconds is not None:
        config.pluginmanager.register(Short(config, seconds))
    if config.getoption("--times") > 1:
        settings.load_profile("search")
    if hasattr(config, "workerinput") and CAN_FORK:  # one of several processes that run all the tests
        zygote.start()
    if not hasattr(config, "workerinput"):  # the process that others report to
        config.pluginmanager.register(Budgets(SHARES.get(config.getoption("--cases"), 1.0)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    step = STEPS.get(config.getoption("--cases"))
    few, others = without_repetition(items)
    if config.getoption("--times") == 1:
        items[:] = few
        config.hook.pytest_deselected(items=others)
    for item in others:
        item.add_marker("search")
    if step is not None:
        items[:], others = sampled(items, step)
        config.hook.pytest_deselected(items=others)
    in_order(items)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # later collections need not look at torch and six thousand tests
    gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the cases of the markers `seeds` and `covering`, more of them in `make soak`."""
    is_soak = metafunc.config.getoption("--times") > 1
    for mark in metafunc.definition.iter_markers("covering"):
        names, cases = mark.args
        metafunc.parametrize(names, list(cases) if is_soak else covering(list(cases)))
    for one in metafunc.definition.iter_markers("seeds"):
        few, many = one.args
        count = many if is_soak else few
        metafunc.parametrize("seed", [*range(count), *one.kwargs.get("also", ())])


def pytest_itemcollected(item: pytest.Item) -> None:
    is_hypothesis = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    is_drawn = item.get_closest_marker("seeds") or item.get_closest_marker("covering")
    if is_hypothesis or is_drawn or "times" in getattr(item, "fixturenames", ()):
        item.add_marker("search")


@pytest.fixture(scope="session", autouse=True)
def one_command_line() -> Iterator[None]:
    """Typer makes the command line anew whenever it is used, which takes longer than most tests of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def few(request: pytest.FixtureRequest) -> Few:
    """Take, of many cases that a test with real processes goes through, all where `--cases` is `all`, or two."""
    law = request.node.nodeid.split("[")[0]
    return list if request.config.getoption("--cases") == "all" else lambda cases: two_of(cases, law)


@pytest.fixture
def times(pytestconfig: pytest.Config) -> int:
    """How many times as long a random search is to be as in `make test`."""
    found: int = pytestconfig.getoption("--times")
    return found


@pytest.fixture
def warm() -> Iterator[None]:
    """Workers that this process starts are forked from the zygote of the tests."""
    with keeping(zygote.forks()):
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[RunServer]:
    """Starts runs of workers that have imported torch; it has done so too."""
    with keeping(zygote.forks()), RunServer() as run_server:
        yield run_server
