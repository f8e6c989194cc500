"""The backend of torch's default process group: chosen by a variable, and refused where it is not there."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from quorate.core.errors import ConfigurationError
from quorate.launch.worker.join import backend_here, gpu_backend_here


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    monkeypatch.delenv("PMI_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("QUORATE_BACKEND", "mpi")
    return monkeypatch


def test_gloo_unless_told(asked: pytest.MonkeyPatch) -> None:
    asked.delenv("QUORATE_BACKEND")
    assert backend_here() == "gloo"
    asked.setattr(torch.cuda, "is_available", lambda: True)
    assert backend_here() == "cpu:gloo,cuda:nccl"


def test_gpus_by_the_host_where_they_are_shared(asked: pytest.MonkeyPatch) -> None:
    asked.delenv("QUORATE_BACKEND")
    asked.setattr(torch.cuda, "is_available", lambda: True)
    assert backend_here("host") == "cpu:gloo,cuda:gloo"
    assert gpu_backend_here() == ""
    asked.setenv("QUORATE_GPU_BACKEND", "host")
    assert gpu_backend_here() == "host"
    asked.setenv("QUORATE_GPU_BACKEND", "rccl")
    with pytest.raises(ConfigurationError, match="QUORATE_GPU_BACKEND.*rccl.*host, nccl"):
        gpu_backend_here()


def test_mpi_where_torch_has_it(asked: pytest.MonkeyPatch) -> None:
    asked.setattr(dist, "is_mpi_available", lambda: True)
    with pytest.raises(ConfigurationError, match="works under mpirun only"):
        backend_here()
    asked.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert backend_here() == "mpi"


def test_mpi_where_torch_has_it_not(asked: pytest.MonkeyPatch) -> None:
    asked.setattr(dist, "is_mpi_available", lambda: False)
    with pytest.raises(ConfigurationError, match="has been built without MPI"):
        backend_here()


def test_others_are_unknown(asked: pytest.MonkeyPatch) -> None:
    asked.setenv("QUORATE_BACKEND", "ucc")
    with pytest.raises(ConfigurationError, match="ucc"):
        backend_here()
