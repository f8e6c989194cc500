"""What hosts are reached by."""

from __future__ import annotations

import os


def ssh_here(command: str | None = None) -> str:
    """The command that stands in for ssh: as `command` by an option, else by `QUORATE_SSH`, else ssh itself."""
    return command or os.environ.get("QUORATE_SSH", "").strip() or "ssh"
