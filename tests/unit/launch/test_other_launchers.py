"""The places that srun and mpirun give, read from their variables; and workers that find each other by them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from quorate.core.errors import ConfigurationError, WireTimeout
from quorate.launch.worker.between_hosts import token_here
from quorate.launch.worker.other_launchers import LaunchedRank, first_host, launched_rank, meet_on_this_host
from quorate.wire.socket_folder import find_socket_folder, make_socket_folder
from tests.support.programs import Program

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "PMIX_NAMESPACE": "12@1",
}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "node[07-08]",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
ALLOCATED = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_NODELIST": "node07", "SLURM_NNODES": "1"}
MPIEXEC = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_PORT": "h:4"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in os.environ:
        if name.startswith(("OMPI_", "PMI", "SLURM_", "MASTER_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    return monkeypatch


def launched_with(environment: pytest.MonkeyPatch, *several: dict[str, str]) -> LaunchedRank | None:
    for variables in several:
        for name, value in variables.items():
            environment.setenv(name, value)
    return launched_rank()


def test_open_mpi(environment: pytest.MonkeyPatch) -> None:
    launched = launched_with(environment, OPEN_MPI)
    assert launched == LaunchedRank(
        launcher="mpirun", rank=2, size=3, local_rank=2, local_size=3, is_one_host=True, job="12@1", first_host=None
    )
    assert launched.environment({}, 5.0) == {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3"}
    for_torch = launched.environment_for_torch({"MASTER_PORT": "7"}, 5.0)
    assert for_torch == {**launched.environment({}, 5.0), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "7"}
    assert 20_000 <= int(launched.environment_for_torch({}, 5.0)["MASTER_PORT"]) < 30_000


def test_srun_over_two_hosts(environment: pytest.MonkeyPatch) -> None:
    launched = launched_with(environment, SRUN)
    assert launched is not None
    variables = launched.environment({}, 5.0)
    port = variables.pop("MASTER_PORT")
    assert 20_000 <= int(port) < 30_000
    assert variables == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "node07"}
    variables = launched.environment({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}, 5.0)
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("10.0.0.1", "29500")
    beside = launched_with(environment, {"SLURM_STEP_ID": "2"})
    assert beside is not None
    assert beside.environment({}, 5.0)["MASTER_PORT"] != port, "two steps on the same host are not to meet"


def test_srun_on_one_host(environment: pytest.MonkeyPatch) -> None:
    launched = launched_with(environment, SRUN, {"SLURM_STEP_NUM_NODES": "1"})
    assert launched is not None
    assert launched.is_one_host
    assert launched.job == "77 1"
    assert "MASTER_ADDR" not in launched.environment({}, 5.0)


def test_mpiexec(environment: pytest.MonkeyPatch) -> None:
    launched = launched_with(environment, MPIEXEC)
    assert launched is not None
    assert (launched.rank, launched.size, launched.local_rank, launched.is_one_host, launched.job) == (
        1,
        2,
        1,
        True,
        "h:4",
    )


def test_between_hosts_mpiexec_has_the_usual_port(environment: pytest.MonkeyPatch) -> None:
    """Each host has another PMI_PORT, or none."""
    launched = launched_with(environment, MPIEXEC, {"MPI_LOCALNRANKS": "1"})
    assert launched is not None
    variables = launched.environment({"MASTER_ADDR": "h"}, 5.0)
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("h", "29500")


def test_mpirun_within_srun_goes_first(environment: pytest.MonkeyPatch) -> None:
    launched = launched_with(environment, SRUN, OPEN_MPI)
    assert launched is not None
    assert launched.launcher == "mpirun"


ALONE = {
    "nothing at all": {},
    "the shell of salloc": ALLOCATED,
    "the script of sbatch": {**ALLOCATED, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
    "the script of sbatch, as a step": {**ALLOCATED, "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"},
    "a shell in a step of its own": {**ALLOCATED, "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"},
    "srun with one task": {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    "mpirun with one process": {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
    "mpiexec with one process": {"PMI_RANK": "0", "PMI_SIZE": "1"},
    "torchrun or quorate run within srun": {**SRUN, "RANK": "0", "WORLD_SIZE": "2"},
}


@pytest.mark.parametrize("where", ALONE)
def test_what_is_no_seat_among_several(environment: pytest.MonkeyPatch, where: str) -> None:
    assert launched_with(environment, ALONE[where]) is None


def without(variables: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in names}


REFUSED = {
    "OMPI_COMM_WORLD_SIZE is not set": without(OPEN_MPI, "OMPI_COMM_WORLD_SIZE"),
    "OMPI_COMM_WORLD_LOCAL_RANK is not set": without(OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK"),
    "OMPI_COMM_WORLD_RANK=x is not a rank": {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "x"},
    "this is rank 3 of 3": {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "3"},
    "SLURM_PROCID is not set": without(SRUN, "SLURM_PROCID"),
    "SLURM_NTASKS is not set": without(SRUN, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    "PMI_RANK is not set": without(MPIEXEC, "PMI_RANK"),
    "MPI_LOCALNRANKS is not set": without(MPIEXEC, "MPI_LOCALNRANKS"),
    "PMIX_RANK says": {"PMIX_RANK": "0"},
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_missing_is_named(environment: pytest.MonkeyPatch, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        launched_with(environment, REFUSED[said])


def test_between_hosts_mpirun_needs_an_address(environment: pytest.MonkeyPatch) -> None:
    launched = launched_with(environment, OPEN_MPI, {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    assert launched is not None
    with pytest.raises(ConfigurationError, match="set MASTER_ADDR to the address"):
        launched.environment({}, 5.0)
    assert launched.environment({"MASTER_ADDR": "h"}, 5.0)["MASTER_ADDR"] == "h"


SPREAD = {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
HOST_OF_MPIRUN = [
    ({"OMPI_MCA_orte_hnp_uri": "12.0;tcp://10.0.0.1,10.9.0.1:4711;tcp6://[fd00::1]:4712"}, ("10.0.0.1", "10.9.0.1")),
    ({"PMIX_NAMESPACE": "prterun-node-07-4711@1"}, ("node-07",)),
    ({"PMIX_NAMESPACE": "12"}, ()),
]


@pytest.mark.parametrize(("variables", "host"), HOST_OF_MPIRUN)
def test_mpirun_says_where_it_runs(
    environment: pytest.MonkeyPatch, variables: dict[str, str], host: tuple[str, ...]
) -> None:
    launched = launched_with(environment, OPEN_MPI, SPREAD, variables)
    assert launched is not None
    assert launched.launched_from == host


def test_rank_0_of_mpirun_is_met_where_mpirun_runs(environment: pytest.MonkeyPatch) -> None:
    """The address at which a server listens is chosen out of two."""
    with socket.create_server(("127.0.0.2", 0)) as rank_0:
        port = str(rank_0.getsockname()[1])
        uri = {"OMPI_MCA_orte_hnp_uri": "12.0;tcp://127.0.0.3,127.0.0.2:1"}
        launched = launched_with(environment, OPEN_MPI, SPREAD, uri)
        assert launched is not None
        variables = launched.environment({"MASTER_PORT": port}, 5.0)
        assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("127.0.0.2", port)
        first = launched_with(environment, {"OMPI_COMM_WORLD_RANK": "0"})
        assert first is not None
        assert first.environment({}, 5.0)["MASTER_ADDR"] == "127.0.0.3"


def test_rank_0_of_mpirun_may_be_elsewhere(environment: pytest.MonkeyPatch) -> None:
    uri = {"OMPI_MCA_orte_hnp_uri": "12.0;tcp://192.0.2.77:1", "OMPI_COMM_WORLD_RANK": "0"}
    first = launched_with(environment, OPEN_MPI, SPREAD, uri)
    assert first is not None
    with pytest.raises(ConfigurationError, match="mpirun runs on another host \\(192.0.2.77\\); set MASTER_ADDR"):
        first.environment({}, 5.0)
    two = {"OMPI_MCA_orte_hnp_uri": "12.0;tcp://127.0.0.3,127.0.0.2:1", "OMPI_COMM_WORLD_RANK": "1"}
    other = launched_with(environment, two)
    assert other is not None
    with pytest.raises(WireTimeout, match="rank 0 was not met at port 1 of 127.0.0.3, 127.0.0.2 within 0.1 s"):
        other.environment({"MASTER_PORT": "1"}, 0.1)


def test_the_key_of_a_job_of_mpirun_is_its_token(environment: pytest.MonkeyPatch) -> None:
    environment.delenv("QUORATE_TOKEN", raising=False)
    assert token_here() == ""
    environment.setenv("OMPI_MCA_orte_precondition_transports", "0123456789abcdef-0123456789abcdef")
    assert token_here() == "0123456789abcdef-0123456789abcdef"
    environment.setenv("QUORATE_TOKEN", "a secret that is long enough")
    assert token_here() == "a secret that is long enough"


@pytest.mark.parametrize(
    ("listed", "first"),
    [
        ("node07", "node07"),
        ("node[01-03,07],login", "node01"),
        ("a,b[1-2]", "a"),
        ("rack[2-3]node[10-12]", "rack2node10"),
    ],
)
def test_the_first_of_a_list_of_hosts(listed: str, first: str) -> None:
    assert first_host(listed) == first


def test_a_folder_is_found_by_its_label() -> None:
    label = f"of a test {os.getpid()}"
    assert find_socket_folder(label) is None
    folder = make_socket_folder(label)
    try:
        assert find_socket_folder(label) == folder
        assert find_socket_folder("another") is None
        folder.chmod(0o755)
        assert find_socket_folder(label) is None, "others could have put something there"
    finally:
        folder.rmdir()


def test_without_rank_0_there_is_a_sentence() -> None:
    launched = LaunchedRank(
        launcher="srun", rank=1, size=2, local_rank=1, local_size=2, is_one_host=True, job=f"alone {os.getpid()}"
    )
    with pytest.raises(WireTimeout, match="rank 0 of the 2 workers that srun has started did not answer on this host"):
        meet_on_this_host(launched, 0.1)


SCRIPT = """
import torch, quorate
world = quorate.join(timeout=200.0, records=False)
torch.manual_seed(world.rank)
model = torch.nn.Linear(4, 2)
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
model(torch.randn(3, 4)).square().mean().backward()
optimizer.step()
optimizer.finish()
print(world.rank, world.size, world.wire.endpoint.is_local, model.weight.sum().item())
"""


def test_two_processes_of_mpirun_train_together(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    processes = []
    for rank in ("0", "1"):
        own = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank, "PMIX_NAMESPACE": str(tmp_path)}
        counts = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMP_NUM_THREADS": "1"}
        processes.append(Program(["script.py"], cwd=tmp_path, env={**os.environ, **own, **counts}))
    said = [process.communicate()[0].split() for process in processes]
    assert [words[:3] for words in said] == [["0", "2", "True"], ["1", "2", "True"]]
    assert said[0][3] == said[1][3]
    assert find_socket_folder(str(tmp_path)) is None
