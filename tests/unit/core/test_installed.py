"""How an extra is installed from where Quorate came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorate.core.installed import DISTRIBUTION, missing_extra, requirements, version_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The metadata of an installed Quorate, before those of the one that is tested."""
    about = tmp_path / "torch_quorate-7.8.9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {DISTRIBUTION}\nVersion: 7.8.9\n"
        "Requires-Dist: numpy>=2\nRequires-Dist: cryptography>=43; extra == 'tls'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return about


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file://PLACE", "dir_info": {"editable": True}}, "-e 'PLACE[tls]'"),
        ({"url": "file://PLACE", "dir_info": {}}, "'PLACE[tls]'"),
        ({"url": "file://PLACE/a%20wheel.whl", "archive_info": {}}, "'PLACE/a wheel.whl[tls]'"),
        ({"url": "file://PLACE/deleted", "dir_info": {}}, "cryptography"),
        (
            {"url": "https://example.org/quorate", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            "'torch-quorate[tls] @ git+https://example.org/quorate@c0ffee'",
        ),
        ({"url": "file://PLACE", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}, "cryptography"),
        (
            {"url": "https://example.org/a.whl", "archive_info": {}},
            "'torch-quorate[tls] @ https://example.org/a.whl'",
        ),
        (None, "cryptography"),
    ],
)
def test_an_extra_is_installed_from_where_quorate_came_from(
    origin: dict[str, object] | None, command: str, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "a wheel.whl").touch()
    if origin is not None:
        (folder / "direct_url.json").write_text(json.dumps(origin).replace("PLACE", str(tmp_path)))
    error = missing_extra("encryption needs cryptography", extra="tls", package="cryptography")
    expected = command.replace("PLACE", str(tmp_path))
    assert str(error) == f"encryption needs cryptography; install it with: pip install {expected}"


def test_versions_and_requirements_are_those_of_the_distribution(folder: Path) -> None:
    assert version_of("quorate") == "7.8.9" and version_of("no-such-package") is None
    assert list(requirements()) == [("numpy", ">=2", ""), ("cryptography", ">=43", "tls")]
