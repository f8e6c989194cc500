"""Named hosts that let this user in over ssh, with keys of the test."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.hosts import hosts
from tests.support.named_hosts import NamedHosts

_SSHD = "/usr/sbin/sshd"
_LIMIT = 240.0


@contextmanager
def ssh_hosts(count: int, folder: Path) -> Iterator[NamedHosts]:
    """So many, which go with the block; the configuration for `ssh -F` is `config_in(folder)`."""
    with hosts(count) as found:
        several = NamedHosts(found, folder)
        servers: list[subprocess.Popen[bytes]] = []
        try:
            _configure(several)
            for number in range(count):
                words = several.words(number, _SSHD, "-D", "-e", "-f", str(folder / "sshd_config"), folder=folder)
                with open(folder / f"sshd-{number}.log", "wb") as log:
                    servers.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log))
            until = time.monotonic() + _LIMIT
            for number, server in enumerate(servers):
                log_file = folder / f"sshd-{number}.log"
                while "listening on" not in log_file.read_text():
                    assert time.monotonic() < until and server.poll() is None, log_file.read_text()
                    time.sleep(0.02)
            yield several
        finally:
            for server in servers:
                server.kill()
                server.wait()


def config_in(folder: Path) -> Path:
    """What ssh is to read."""
    return folder / "ssh_config"


def left_on(several: NamedHosts) -> list[str]:
    """The commands of what is on the hosts besides what makes them hosts."""
    found = []
    for host in several.all:
        for pid in host.processes():
            try:
                command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            if command and not command.startswith(("cat", "sshd:", "/usr/sbin/sshd")):
                found.append(command)
    return found


def _configure(several: NamedHosts) -> None:
    folder = several.folder
    for name in ("host_key", "user_key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True, capture_output=True)
    names = ",".join(x for host in several.all for x in (host.name, host.address))
    (folder / "known_hosts").write_text(f"{names} {(folder / 'host_key.pub').read_text()}")
    config_in(folder).write_text(
        f"Host *\n  User root\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  LogLevel ERROR\n"
    )
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/user_key.pub\nPidFile none\nStrictModes no\n"
        "UsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\nMaxStartups 100\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
