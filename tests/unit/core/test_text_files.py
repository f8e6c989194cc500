"""Files that a user names are plain ones; nobody waits for a pipe, or reads a device for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quorate.core import text_files
from quorate.core.durations import parse_trace
from quorate.core.errors import ConfigurationError
from quorate.core.text_files import text_of
from quorate.gossip.topology import topology_of


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "some").write_text("0.5\n")
    assert text_of(tmp_path / "some", "the trace") == "0.5\n"
    with pytest.raises(FileNotFoundError):
        text_of(tmp_path / "none", "the trace")


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "no text").write_bytes(b"\xff\xfe")
    for path, why in {
        Path("/dev/zero"): "is not a regular file, but a device",
        tmp_path / "pipe": "is not a regular file, but a pipe",
        tmp_path: "is a folder, not a file",
        tmp_path / "no text": "cannot be read: it is not text",
    }.items():
        with pytest.raises(ConfigurationError, match=f"^the trace {path} {why}$"):
            parse_trace(f"trace:{path}", seed=0)
        with pytest.raises(ConfigurationError, match=f"^the topology file {path} {why}$"):
            topology_of(f"file:path={path}", 2)


def test_what_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MOST_BYTES", 1 << 20)
    (tmp_path / "long").write_bytes(b"1\n" * (1 << 20))
    with pytest.raises(ConfigurationError, match="is longer than 1 MiB"):
        text_of(tmp_path / "long", "the trace")
