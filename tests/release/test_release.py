"""`make release` in a scratch copy: it demands the public address, writes it, and tags the commit that has it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture.test_distribution import README_WORDS
from tests.architecture.tree import ROOT
from tests.release.__main__ import FILES, PASSAGES, Refusal, address_of, with_address

URL = "https://example.org/somebody/quorate"
PYTHON = f"""#!/bin/sh
case "$*" in
  *"pip wheel"*) mkdir -p dist && touch dist/quorate.whl ;;
  *"pip "*) ;;
  *) exec {sys.executable} "$@" ;;
esac
"""
"""Installs nothing and builds an empty wheel; everything else is real."""
IS_RELEASED = "\n[project.urls]\n" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
before_the_first = pytest.mark.skipif(IS_RELEASED, reason="the passages have got their address")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A repository with the files that a release reads, committed, and with nothing unreleased."""
    root = tmp_path / "copy"
    for name in (*FILES, "CHANGELOG.md", "Makefile", "constraints.txt", "tests/release/__main__.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    changelog.write_text(re.sub(r"(## \[Unreleased\]\n).*?(?=\n## \[)", r"\1", text, count=1, flags=re.DOTALL))
    (root / ".gitignore").write_text("dist\n.programs\n__pycache__\n")
    python = root / ".programs" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    _git(root, "init", "--quiet", "--initial-branch", "main")
    _git(root, "config", "user.name", "somebody")
    _git(root, "config", "user.email", "somebody@example.org")
    _commit(root)
    return root


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def _commit(root: Path) -> None:
    _git(root, "add", "--all")
    _git(root, "commit", "--quiet", "--message", "Begin")


def _release(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTHON"))}
    return subprocess.run(
        ["make", "release", "VENV=.programs", *words], cwd=root, env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def _is_refused(root: Path, sentence: str, *words: str) -> bool:
    """Whether nothing was written and tagged, and the reason begins with this sentence."""
    commit = _git(root, "rev-parse", "HEAD")
    ended = _release(root, *words)
    line = ended.stderr.splitlines()[0]
    assert line.startswith(f"make release: {sentence}"), ended.stderr
    return ended.returncode != 0 and _git(root, "rev-parse", "HEAD") == commit and not _git(root, "tag")


@before_the_first
def test_the_address_is_demanded_written_and_tagged(copy: Path) -> None:
    assert _is_refused(copy, "no public address is known; give the address of the public repository: make release URL=")
    assert _is_refused(copy, '"http://example.org/a/b" is no address', "URL=http://example.org/a/b")
    ended = _release(copy, f"URL={URL}.git")
    assert ended.returncode == 0, ended.stderr
    version = tomllib.loads((copy / "pyproject.toml").read_text())["project"]["version"]
    assert _git(copy, "rev-parse", f"v{version}^{{commit}}") == _git(copy, "rev-parse", "HEAD")
    assert not _git(copy, "status", "--porcelain")
    urls = tomllib.loads((copy / "pyproject.toml").read_text())["project"]["urls"]
    assert list(urls) == ["Homepage", "Documentation", "Source", "Issues", "Changelog"]
    assert all(url.startswith(URL) for url in urls.values())
    for page in ("README.md", "docs/howto/install.md"):
        text = (copy / page).read_text()
        assert f"```bash\ngit clone {URL} quorate\ncd quorate\npip install .\n```" in text
        assert f"pip install git+{URL}" in text and "git+URL" not in text
    assert f"\nrepository-code: {URL}\n" in (copy / "CITATION.cff").read_text()
    assert len((copy / "README.md").read_text().split()) <= README_WORDS
    assert "public address" not in "".join((copy / name).read_text() for name in FILES)
    assert _is_tagged_already(copy)


def _is_tagged_already(root: Path) -> bool:
    ended = _release(root)
    return ended.returncode != 0 and "there is a tag v" in ended.stderr


@before_the_first
def test_later_releases_keep_the_address_or_move_all_of_it(copy: Path) -> None:
    for name, text in with_address(copy, URL).items():
        (copy / name).write_text(text, encoding="utf-8")
    _commit(copy)
    assert with_address(copy, "") == {} == with_address(copy, URL)
    texts = with_address(copy, "https://example.net/b/quorate")
    assert set(texts) == {passage.file for passage in PASSAGES if "URL" in passage.after}
    assert not [name for name, text in texts.items() if "example.org" in text]


@before_the_first
def test_a_passage_that_has_changed_is_named(copy: Path) -> None:
    page = copy / "README.md"
    page.write_text(page.read_text().replace("In a clone of this repository:", "In a clone:"))
    with pytest.raises(Refusal, match=r"README\.md has not exactly one passage"):
        with_address(copy, URL)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n- More.\n"), "CHANGELOG.md has unreleased lines"),
        (("CHANGELOG.md", r"(## \[\d.*\]) - .*", r"\1"), "CHANGELOG.md has no section of"),
        (("CITATION.cff", "(?m)^version: .*", "version: 9.9.9"), "CITATION.cff has another version than"),
    ],
)
def test_what_cannot_be_released_is_refused_before_anything_is_written(
    copy: Path, damage: tuple[str, str, str], sentence: str
) -> None:
    name, pattern, better = damage
    text = (copy / name).read_text()
    (copy / name).write_text(re.sub(pattern if "(" in pattern else re.escape(pattern), better, text, count=1))
    assert _is_refused(copy, "there are changes that are not committed", f"URL={URL}")
    _commit(copy)
    assert _is_refused(copy, sentence, f"URL={URL}")


@pytest.mark.parametrize(
    "url",
    [
        "", "quorate", "file:///srv/quorate", "http://example.org/a/b", "https://example.org", "https://localhost/a/b",
        "https://name:word@example.org/a/b", "https://example.org/a b", "https://example.org/a/b?c=d",
        'https://example.org/a/b"', "git@example.org:a/b.git",
    ],
)  # fmt: skip
def test_addresses_that_nobody_could_clone_from(url: str) -> None:
    with pytest.raises(Refusal, match="is no address of a public repository"):
        address_of(url)


@pytest.mark.parametrize("url", [URL, f"{URL}/", f"{URL}.git", f"{URL}.git/"])
def test_addresses_are_written_in_one_form(url: str) -> None:
    assert address_of(url) == URL
