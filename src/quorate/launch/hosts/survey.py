"""Whether several hosts are ready for the runs of one comparison: asked of their agents before anything is started."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from quorate.core.errors import ConfigurationError
from quorate.launch.hosts.link import Link
from quorate.launch.hosts.reach import Hosts

_LOOKS_FOR, _LOOK_EVERY = 2.0, 0.1
"""Seconds in which a file that was made here is seen on another host, where they have a file system in common."""


def check_hosts(hosts: Hosts, script: str, folder: Path) -> None:
    """Raise `ConfigurationError`, which names the host, if a run of `script` into `folder` would fail.

    It would fail if a host cannot be reached, has another version of quorate, or lacks the same script at the
    same path. It would also fail if rank 0's host, which receives all records, has another folder than this machine.
    """
    with ExitStack() as stack:
        links = []
        for place in hosts.layout.places:
            link = Link(place, hosts.ssh, lambda kind, rank, data: None)
            stack.callback(link.close)
            links.append(link)
        for link in links:
            link.connect()
        for link in links:
            _check_script(link, script)
        _check_records(links[0], folder)


def _check_script(link: Link, script: str) -> None:
    here, host = os.getcwd(), link.place.host
    seen = link.look(here, [script]).get(script)
    if seen is None:
        where = "" if os.path.isabs(script) else f" in {here}"
        raise ConfigurationError(f"host {host} has no {script}{where}, where this machine has it; put it there, too")
    if seen != hashlib.sha256(Path(script).read_bytes()).hexdigest():
        raise ConfigurationError(f"host {host} has another {script} than this machine; put the same one there")


def _check_records(first: Link, folder: Path) -> None:
    kept_in = next(path for path in (folder, *folder.parents) if path.is_dir())
    with _mark(kept_in.resolve()) as mark:
        until = time.monotonic() + _LOOKS_FOR
        while mark.name not in first.look(str(mark.parent), [mark.name]):
            if time.monotonic() > until:
                raise ConfigurationError(
                    f"the records would be in {folder} on host {first.place.host}, which is not the folder of that "
                    f"name on {socket.gethostname()}. Start the comparison on {first.place.host}, or in a folder that "
                    "both have"
                )
            time.sleep(_LOOK_EVERY)


@contextmanager
def _mark(folder: Path) -> Iterator[Path]:
    """A file there that no other machine has."""
    path = folder / f".quorate-{secrets.token_hex(16)}"
    try:
        path.touch()
    except OSError as error:
        raise ConfigurationError(f"nothing can be written to {folder}: {error.strerror or error}") from None
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
