"""What hosts are reached by."""

from __future__ import annotations

import os


def ssh_here(given: str | None = None) -> str:
    """The command that stands in for ssh: as `given` by an option, else by `QUORATE_SSH`, else ssh itself."""
    return given or os.environ.get("QUORATE_SSH", "").strip() or "ssh"
