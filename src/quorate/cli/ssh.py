"""The command that reaches hosts."""

from __future__ import annotations

import os


def ssh_here(command: str | None = None) -> str:
    """Return the command in place of ssh: `command`, else `QUORATE_SSH`, else ssh."""
    return command or os.environ.get("QUORATE_SSH", "").strip() or "ssh"
