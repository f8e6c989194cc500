"""`--gpu`: the trainings of these tests with their models on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--gpu"):  # parameters in memory that processes share are the CPU's
        items[:] = [one for one in items if "hogwild" not in one.name]


@pytest.fixture(autouse=True, scope="session")
def _on_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    if not request.config.getoption("--gpu"):
        yield
        return
    from tests.support.on_gpu import LACKING, models_on_gpu

    if LACKING is not None:
        pytest.skip(LACKING)
    with models_on_gpu():
        yield
