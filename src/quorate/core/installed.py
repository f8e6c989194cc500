"""Installed packages: versions, what Quorate requires, and the command that installs one of its extras."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from quorate.core.errors import MissingExtra

DISTRIBUTION = "torch-quorate"
"""On PyPI `quorate` is another program, and this name is nobody's: no command names either without a path or URL."""


def version_of(package: str) -> str | None:
    """Return the version of a package, `quorate` among them; None if it is not installed."""
    try:
        return metadata.version(DISTRIBUTION if package == "quorate" else package)
    except metadata.PackageNotFoundError:
        return None


def requirements() -> Iterator[tuple[str, str, str]]:
    """Yield the package, the admitted versions and the extra of each requirement of Quorate; no extra is ""."""
    try:
        declared = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # it is used from its source
        declared = []
    for requirement in declared:
        needed, _, marker = requirement.partition(";")
        package = re.match(r"[\w.-]+", needed)
        assert package is not None
        extra = re.search(r"extra == ['\"]([\w-]+)", marker)
        yield package[0], needed[package.end() :].strip(), extra[1] if extra else ""


def missing_extra(need: str, *, extra: str, package: str) -> MissingExtra:
    """Return the error that begins with `need`, and ends with the command that installs the extra, or its package."""
    return MissingExtra(f"{need}; install it with: pip install {_origin(extra) or package}")


def _origin(extra: str) -> str | None:
    """Return the argument of pip for the clone, repository or file that Quorate was installed from (PEP 610)."""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    if text is None:
        return None
    origin: dict[str, Any] = json.loads(text)
    url: str = origin["url"]
    repository = origin.get("vcs_info")
    if not url.startswith("file:"):
        source = f"{repository['vcs']}+{url}@{repository['commit_id']}" if repository else url
        return f"'{DISTRIBUTION}[{extra}] @ {source}'"
    path = Path(unquote(urlsplit(url).path))
    if repository or not path.exists():  # pip before 24.1 refuses a name with git+file
        return None
    return f"-e '{path}[{extra}]'" if origin.get("dir_info", {}).get("editable") else f"'{path}[{extra}]'"
