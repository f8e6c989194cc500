"""Hosts of `tests.support.hosts` that know each other's names, which launchers go by."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.hosts import Host, are_possible, words_on

_INSIDE = 'mount --bind "$1" /etc/hosts && mount --bind /dev/null /etc/resolv.conf && cd "$2" && shift 2 && exec "$@"'
"""Without servers for names: none of them could be reached, and each look-up would take half a minute."""


def missing(*programs: str) -> str | None:
    """Why tests of these programs are skipped; None where all is there."""
    if not are_possible():
        return "needs root on Linux, to make network namespaces"
    lacking = [name for name in programs if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    return f"needs {', '.join(lacking)}: make test-launchers installs it" if lacking else None


class NamedHosts:
    """Several, with a table of their names in `folder`."""

    def __init__(self, found: Sequence[Host], folder: Path) -> None:
        self.all, self.folder = list(found), folder
        self._names = folder / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in found)]
        self._names.write_text("".join(f"{line}\n" for line in lines))

    def words(self, number: int, *words: str, folder: Path) -> list[str]:
        """The command so that it runs in `folder` on that host, with the names of all."""
        inside = ["unshare", "--mount", "sh", "-c", _INSIDE, "sh", str(self._names), str(folder)]
        return [*words_on(self.all[number].pid), *inside, *words]

    def popen(
        self, number: int, *words: str, folder: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """It, begun, in a session of its own."""
        return subprocess.Popen(
            self.words(number, *words, folder=folder),
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self, number: int, *words: str, folder: Path, env: Mapping[str, str] | None = None, timeout: float = 100.0
    ) -> subprocess.CompletedProcess[str]:
        """It, ended."""
        with self.popen(number, *words, folder=folder, env=env) as child:
            try:
                out, err = child.communicate(timeout=timeout)
            finally:
                child.kill()
        return subprocess.CompletedProcess(words, child.returncode, out, err)
