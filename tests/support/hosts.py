"""Two hosts on one machine: network namespaces with names of their own, joined by a cable. For root on Linux only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

ADDRESSES = ("10.231.77.1", "10.231.77.2")


def are_possible() -> bool:
    """Whether this user may make network namespaces."""
    has_tools = all(shutil.which(tool) for tool in ("ip", "unshare", "nsenter"))
    if not (sys.platform.startswith("linux") and has_tools and os.geteuid() == 0):
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0


@contextmanager
def two_hosts() -> Iterator[tuple[int, int]]:
    """For each of them a process that is on it; the hosts go with the block."""
    holders = [
        subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", f"hostname {name} && echo up && exec cat"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name in ("first", "second")
    ]  # fmt: skip
    try:
        for holder in holders:
            assert holder.stdout is not None and holder.stdout.readline() == b"up\n"
        first, second = (words_on(holder.pid) for holder in holders)
        _run(
            *first, "ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(holders[1].pid)
        )
        for enter, address in zip((first, second), ADDRESSES, strict=True):
            _run(*enter, "ip", "address", "add", f"{address}/24", "dev", "cable")
            for device in ("cable", "lo"):
                _run(*enter, "ip", "link", "set", device, "up")
        yield holders[0].pid, holders[1].pid
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()


def words_on(host: int) -> list[str]:
    """What to put before a command so that it runs on the host of this process."""
    return ["nsenter", "--net", "--uts", "--target", str(host), "--"]


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=20)
