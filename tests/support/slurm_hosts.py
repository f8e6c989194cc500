"""Named hosts that are the nodes of a Slurm cluster: slurmctld on the first, slurmd on each, munged for all."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.hosts import hosts
from tests.support.named_hosts import NamedHosts

_LIMIT = 240.0
_CONFIG = """
ClusterName=quorate
SlurmctldHost=first
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1
ReturnToService=2
KillWait=5
OverTimeLimit=0
JobRequeue=1
NodeName={nodes} CPUs=4
PartitionName=all Nodes={nodes} Default=YES MaxTime=10:00 State=UP
"""


class SlurmHosts:
    """A cluster of several named hosts."""

    def __init__(self, named: NamedHosts) -> None:
        self.named = named
        self.config = named.folder / "slurm.conf"

    def command(
        self, *words: str, folder: Path, more: Mapping[str, str] | None = None, timeout: float = 100.0
    ) -> subprocess.CompletedProcess[str]:
        """What a command such as srun does, given on the first host."""
        env = {**os.environ, "SLURM_CONF": str(self.config), **(more or {})}
        return self.named.run(0, *words, folder=folder, env=env, timeout=timeout)

    def popen(self, *words: str, folder: Path, more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """It, begun."""
        env = {**os.environ, "SLURM_CONF": str(self.config), **(more or {})}
        return self.named.popen(0, *words, folder=folder, env=env)

    def state_of(self, job: str) -> str:
        """Of a job: `RUNNING`, `COMPLETED`."""
        shown = self.command("scontrol", "--oneliner", "show", "job", job, folder=self.named.folder).stdout
        return next((word.partition("=")[2] for word in shown.split() if word.startswith("JobState=")), "")


@contextmanager
def slurm_hosts(count: int, folder: Path) -> Iterator[SlurmHosts]:
    """So many, which go with the block."""
    with hosts(count) as found:
        named = NamedHosts(found, folder)
        cluster = SlurmHosts(named)
        cluster.config.write_text(_CONFIG.format(folder=folder, nodes=",".join(host.name for host in found)))
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        folder.chmod(0o755)
        munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={key}"]
        munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "seed", "log")]
        daemons = [_begun(munge, folder, "munged", {})]
        try:
            env = {"SLURM_CONF": str(cluster.config)}
            _until(lambda: (folder / "munge.socket").exists(), folder)
            daemons.append(_begun(named.words(0, "slurmctld", "-D", "-i", folder=folder), folder, "slurmctld", env))
            for number, host in enumerate(found):
                words = named.words(number, "slurmd", "-D", "-N", host.name, folder=folder)
                daemons.append(_begun(words, folder, f"slurmd-{host.name}", env))
            listed = ("sinfo", "--noheader", "--states=idle", "--format=%D")
            _until(lambda: cluster.command(*listed, folder=folder).stdout.strip() == str(count), folder)
            yield cluster
        finally:
            for daemon in reversed(daemons):
                daemon.terminate()
            for daemon in daemons:
                try:
                    daemon.wait(10)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()


def _begun(words: list[str], folder: Path, name: str, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with open(folder / f"{name}.out", "wb") as log:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **env}, start_new_session=True
        )


def _until(is_so: object, folder: Path) -> None:
    assert callable(is_so)
    until = time.monotonic() + _LIMIT
    while not is_so():
        assert time.monotonic() < until, "\n".join(one.read_text() for one in sorted(folder.glob("*.out")))
        time.sleep(0.1)
