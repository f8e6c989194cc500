"""`quorate doctor` in this process."""

from __future__ import annotations

import pytest

from quorate.cli.main import main


def doctor(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """Return its exit status, and what it has printed on stdout and stderr."""
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    said = capfd.readouterr()
    return ended.value.code, said.out, said.err
