"""One run as it is asked for, also from another process, as a line of JSON.

`python -m quorate.launch.warm.request REQUEST` carries out one in a virtual world, as a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.launch.hosts.reach import Hosts
from quorate.launch.local.children import Command
from quorate.launch.local.process_group import GRACE
from quorate.launch.run.overrides import Overrides
from quorate.launch.run.requests import asked_in_one_process, status_after
from quorate.launch.warm.script import flush_files

if TYPE_CHECKING:
    from quorate.wire.virtual import ComputeModel, Network


@dataclass(frozen=True, kw_only=True)
class VirtualRun:
    """That a run is in a virtual world, and which."""

    seed: int = 0
    compute: str | None = None
    """The value of `quorate run --compute`."""
    latency: float | None = None
    """Seconds."""
    bandwidth: float | None = None
    """Bytes per second."""
    joiners: int = 0
    """Workers that join it: in a replay."""

    def network(self) -> Network:
        """Return the default network with these changes. Raises `ConfigurationError` for an invalid one."""
        from quorate.wire.virtual import Network

        usual = Network()
        return Network(
            latency=usual.latency if self.latency is None else self.latency,
            bandwidth=usual.bandwidth if self.bandwidth is None else self.bandwidth,
        )

    def compute_model(self) -> ComputeModel | None:
        """Return the model of compute times. Raises `ConfigurationError` for an invalid one."""
        from quorate.wire.virtual import parse_compute

        return None if self.compute is None else parse_compute(self.compute, seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The request of a run: its command, the number of workers, and an existing folder for its output."""

    script: str
    arguments: Sequence[str] = ()
    is_module: bool = False
    overrides: Overrides = field(default_factory=Overrides)
    size: int
    folder: Path
    virtual: VirtualRun | None = None
    """None: `size` processes."""
    hosts: Hosts | None = None
    """None: all of them on this machine."""
    grace: float = GRACE
    servers: int = 0
    """That are no workers."""

    @property
    def command(self) -> Command:
        """The command of each worker."""
        return Command(script=self.script, arguments=self.arguments, is_module=self.is_module, overrides=self.overrides)

    def as_json(self, omp_threads: str) -> dict[str, Any]:
        """Return the entry of `run.json`; each process has `omp_threads` threads."""
        world: dict[str, Any] = {"omp_threads": omp_threads}
        if self.virtual is not None:
            world = {key: value for key, value in asdict(self.virtual).items() if key != "seed"}
        return {
            "script": self.script,
            "arguments": list(self.arguments),
            "is_module": self.is_module,
            "workers": self.size,
            **({"servers": self.servers} if self.servers else {}),
            "world": "real" if self.virtual is None else "virtual",
            **self.overrides.as_json(),
            "records": str(self.folder),
            **world,
            **({} if self.hosts is None else self.hosts.as_json()),
        }

    def line(self) -> bytes:
        """This as one line."""
        return json.dumps({**asdict(self), "folder": str(self.folder)}).encode() + b"\n"

    @staticmethod
    def from_line(line: bytes) -> RunRequest:
        """Return the request from its `line()`."""
        fields = json.loads(line)
        virtual, hosts = fields["virtual"], fields["hosts"]
        return RunRequest(
            **{
                **fields,
                "folder": Path(fields["folder"]),
                "overrides": Overrides(**fields["overrides"]),
                "virtual": None if virtual is None else VirtualRun(**virtual),
                "hosts": None if hosts is None else Hosts(**hosts),
            }
        )


def run_request(request: RunRequest, virtual: VirtualRun) -> int:
    """Return the exit status, as `run_script`. During the run the shared environment has only the variables asked for,
    and afterwards those of before."""
    from quorate.launch.virtual.run import run_script

    variables = {"QUORATE_RUN": str(request.folder.resolve()), **request.overrides.environment()}
    if request.servers:
        variables["QUORATE_SERVERS"] = str(request.servers)
    with _only(variables):
        return run_script(
            request.script,
            request.arguments,
            request.size,
            joiners=virtual.joiners + request.servers,
            seed=virtual.seed,
            compute=virtual.compute_model(),
            network=virtual.network(),
            run_dir=request.folder,
        )


@contextmanager
def _only(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these `variables` inside, and no others of Quorate's; afterwards those of before."""
    before = _taken_from_environment()
    os.environ.update(variables)
    try:
        yield
    finally:
        _taken_from_environment()
        os.environ.update(before)


def _taken_from_environment() -> dict[str, str]:
    names = [name for name in os.environ if name.startswith("QUORATE_")]
    return {name: os.environ.pop(name) for name in names}


def main() -> None:
    """Carry out the run; python's own end, which takes longer than a short run, is left out."""
    from quorate.launch.virtual.run import INTERRUPTED

    del sys.path[0]  # the present folder; the script's takes its place
    request = RunRequest.from_line(sys.argv[1].encode())
    assert request.virtual is not None
    with asked_in_one_process() as asked:
        try:
            status = run_request(request, request.virtual)
        except KeyboardInterrupt:
            status = INTERRUPTED
    flush_files()
    os._exit(status_after(asked[0]) if asked and status else status)


if __name__ == "__main__":
    main()
