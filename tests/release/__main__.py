"""`python -m tests.release [URL]`: check that this commit can be released, and write the public address into its files.

The address goes into `[project.urls]`, into the lines of README and of the page about installation that clone the
repository, and into the citation. Later releases need no URL; another URL replaces the address everywhere.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
PROJECT = "pyproject.toml"
HOMEPAGE = re.compile(r'^Homepage = "(.+)"$', re.MULTILINE)
ASK = "give the address of the public repository: make release URL=https://HOST/OWNER/quorate"
URLS = """
[project.urls]
Homepage = "URL"
Documentation = "URL/blob/HEAD/docs/index.md"
Source = "URL"
Issues = "URL/issues"
Changelog = "URL/blob/HEAD/CHANGELOG.md"

[project.scripts]
"""
CLONE = """```bash
git clone URL quorate
cd quorate
pip install .
```
"""


@dataclass(frozen=True)
class Passage:
    """A passage of a file as it stands without a public address, and with the address in place of each URL."""

    file: str
    before: str
    after: str


PASSAGES = (
    Passage(
        PROJECT,
        " There is no table `project.urls`: the\n# project has no public address yet.\n",
        "\n",
    ),
    Passage(PROJECT, "\n[project.scripts]\n", URLS),
    Passage("CITATION.cff", "\nlicense: ", "\nrepository-code: URL\nlicense: "),
    Passage("README.md", "In a clone of this repository:\n\n```bash\npip install .\n```\n", CLONE),
    Passage("README.md", "`pip install git+URL` with the URL of the repository.", "`pip install git+URL`."),
    Passage("docs/howto/install.md", "In a clone of the repository:\n\n```bash\npip install .\n```\n", CLONE),
    Passage(
        "docs/howto/install.md",
        "after `git+` comes the URL of the repository, and `@v0.2.0` after it chooses a version:",
        "`@v0.2.0` after the URL chooses a version:",
    ),
    Passage("docs/howto/install.md", "pip install git+file:///path/to/quorate\n", "pip install git+URL\n"),
    Passage(
        "docs/howto/install.md",
        "`'torch-quorate[digits] @ git+URL'`, which pip before 24.1 refuses for a URL that begins with `file:`.",
        "`'torch-quorate[digits] @ git+URL'`.",
    ),
    Passage("docs/explanation/versions.md", "A public address and a name on PyPI", "A name on PyPI"),
)
FILES = tuple(dict.fromkeys(passage.file for passage in PASSAGES))


class Refusal(Exception):
    """The reason why this commit cannot be released."""


def address_of(url: str) -> str:
    """Return a URL as it goes into the files; refuse what nobody could clone from."""
    parts = urlsplit(url)
    is_public = parts.scheme == "https" and "." in (parts.hostname or "") and "@" not in parts.netloc
    address = url.rstrip("/").removesuffix(".git")
    if not is_public or parts.query or parts.fragment or not re.fullmatch(r"https://[\w.:-]+(/[\w.~-]+)+", address):
        raise Refusal(f'"{url}" is no address of a public repository; {ASK}')
    return address


def check(root: Path) -> None:
    """Refuse a commit whose files disagree about the version, or that was released before."""
    version = tomllib.loads(_read(root, PROJECT))["project"]["version"]
    changelog = _read(root, "CHANGELOG.md")
    if _git(root, "status", "--porcelain"):
        raise Refusal("there are changes that are not committed")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        raise Refusal(f"CHANGELOG.md has no section of {version} with a date")
    if "\n- " in changelog.partition("\n## [Unreleased]")[2].partition(f"\n## [{version}]")[0]:
        raise Refusal(f"CHANGELOG.md has unreleased lines; move them to the section of {version}")
    if f"\nversion: {version}\n" not in _read(root, "CITATION.cff"):
        raise Refusal(f"CITATION.cff has another version than {version}")
    if _git(root, "tag", "--list", f"v{version}"):
        raise Refusal(f"there is a tag v{version} already")


def with_address(root: Path, url: str) -> dict[str, str]:
    """Return the text of each file that the address changes. An empty URL is that of the release before."""
    texts = {name: _read(root, name) for name in FILES}
    present = HOMEPAGE.search(texts[PROJECT])
    if not url and present is None:
        raise Refusal(f"no public address is known; {ASK}")
    if not url:
        return {}
    address = address_of(url)
    changed = dict(texts)
    if present is not None:
        changed = {name: text.replace(present[1], address) for name, text in texts.items()}
    else:
        for passage in PASSAGES:
            if changed[passage.file].count(passage.before) != 1:
                raise Refusal(
                    f'{passage.file} has not exactly one passage "{passage.before.strip()}"; '
                    "change it in tests/release/__main__.py too"
                )
            after = passage.after.replace("URL", address)
            changed[passage.file] = changed[passage.file].replace(passage.before, after)
    return {name: text for name, text in changed.items() if text != texts[name]}


def commit(root: Path, texts: dict[str, str]) -> None:
    """Write the files and commit them; without a commit they are as before."""
    for name, text in texts.items():
        (root / name).write_text(text, encoding="utf-8")
    try:
        _git(root, "commit", "--quiet", "--message", "Name the public address", "--", *texts)
    except Refusal:
        _git(root, "checkout", "HEAD", "--", *texts)
        raise


def main() -> int:
    """Check and write; 1 with one sentence if the commit cannot be released."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("url", nargs="?", default="", help="the address of the public repository")
    url = parser.parse_args().url.strip()
    try:
        check(ROOT)
        texts = with_address(ROOT, url)
        if texts:
            commit(ROOT, texts)
    except Refusal as refusal:
        print(f"make release: {refusal}", file=sys.stderr)
        return 1
    for name in texts:
        print(f"{name} names the public address")
    return 0


def _read(root: Path, name: str) -> str:
    return (root / name).read_text(encoding="utf-8")


def _git(root: Path, *words: str) -> str:
    ended = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        reason = ended.stderr.strip().splitlines() or ["no reason was printed"]
        raise Refusal(f"git {words[0]} failed: {reason[-1]}")
    return ended.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
