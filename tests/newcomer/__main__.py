"""`python -m tests.newcomer`: a newcomer's first hour in an empty home, with a line for each check.

Installs the newest commit in each documented way, types the commands of README and of the tutorial, completes a
word in bash, looks at tables in a terminal of 80 columns, builds the site and follows its links.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.newcomer.home import Ended, Home, too_wide
from tests.newcomer.pages import broken_links, commands_of, script_of

ROOT = Path(__file__).parents[2]
README, INSTALL, TUTORIAL = "README.md", "docs/howto/install.md", "docs/tutorial/first-training.md"
EDITABLE = "pip install -e ."
"""Shown within a sentence."""
COMPLETED = """
eval "$(_QUORATE_COMPLETE=source_bash quorate)"
function=$(complete -p quorate | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=(quorate run --strategy eag) COMP_CWORD=3
"$function" quorate eag --strategy
printf '%s\\n' "${COMPREPLY[@]}"
"""
EXTRA = "from quorate.core.installed import missing_extra as m; print(m('', extra='tls', package='cryptography'))"
TABLES = (
    "quorate list",
    "quorate doctor",
    "quorate doctor --memory train.py",
    "quorate simulate --strategy all-reduce --strategy eager-solo -n 8,64,512 --imbalance one-of:20ms",
    "quorate simulate --failures mtbf=1y,repair=30min,restart=5min -n 1000,1000000 --learners 1,8",
    "quorate plan -n 8 --memory 24GB --bandwidth 10Gbit --flops 30T --batch 64 "
    "gpt:hidden=512,layers=8,heads=8,sequence=512,vocabulary=10000",
    "quorate compare least-squares --virtual 4 --strategy all-reduce --strategy eager-majority --epochs 1 --target 1",
    "quorate bench -n 2 --to 4KiB all-reduce",
    "quorate doctor --data train.py",
    "quorate doctor --cost train.py",
    "quorate tune -n 2 train.py",
    "quorate run -n 2 --name seen train.py > /dev/null && quorate watch --text seen",
    "python -c 'import torch; from safetensors.torch import save_file; "
    """save_file({"w": torch.ones(64)}, "m.safetensors")' """
    "&& quorate pack m.safetensors",
)


class Newcomer:
    """The checks, and how many of them have passed and failed."""

    def __init__(self, home: Home) -> None:
        self.home, self.passed, self.failed = home, 0, 0
        self.clone = home.folder / "quorate"
        self.work = home.folder / "work"
        self.work.mkdir()

    def check(self, name: str, function: Callable[[], str]) -> bool:
        """Print a line for a check; `function` returns what is wrong, or nothing."""
        begin = time.monotonic()
        wrong = function().strip()
        print(f"{'failed' if wrong else 'ok':8}{name} ({time.monotonic() - begin:.0f} s)", flush=True)
        if wrong:
            print("        " + "\n        ".join(wrong.splitlines()[-12:]), flush=True)
        self.passed, self.failed = self.passed + (not wrong), self.failed + bool(wrong)
        return not wrong

    def types(self, page: str, command: str, programs: Path, cwd: Path, *, seconds: float = 600.0) -> bool:
        """Check that a command of a page ends with status 0."""
        return self.check(f"{page}: {command}", lambda: _wrong(self._run(command, programs, cwd, seconds)))

    def _run(self, command: str, programs: Path, cwd: Path, seconds: float) -> Ended:
        command = re.sub(r"file:///path/to/quorate|(?<=git\+)https://\S+", self.clone.as_uri(), command)
        if command.startswith("make ") and command != "make venv":
            command += f" VENV={shlex.quote(str(programs.parent))}"
        if not self.home.is_full:
            command = re.sub(r"^pip install ", "pip install --no-deps ", command)
        return self.home.run(re.sub(r"^pip ", "python -m pip ", command), programs, cwd, seconds=seconds)

    def installs(self) -> Path:
        """Install Quorate in each documented way, and return the programs of the first one."""
        shown = [command for command in commands_of(self.clone / INSTALL) if command.startswith("pip install ")]
        ways = [command for command in shown if "--index-url" not in command]  # that one installs torch
        environments = []
        for number, command in enumerate([EDITABLE, *ways]):
            programs = self.home.environment(f"way-{number}")
            environments.append(programs)
            if ".whl" in command:
                self._pretend_installed(programs)
                self.types(INSTALL, "make wheel", programs, self.clone)
            if self.types(INSTALL, command, programs, self.clone, seconds=1800.0):
                self.check("        quorate --version", lambda programs=programs: self._version(programs))
                self.check("        the command for an extra", lambda programs=programs: self._extra(programs))
        for command in commands_of(self.clone / INSTALL):
            if command.startswith(("python -c", "pip show")):
                self.types(INSTALL, command, environments[0], self.work)
        return environments[0]

    def _pretend_installed(self, programs: Path) -> None:
        """Let `make` take this environment for the one that it makes."""
        for name in (".installed", ".docs-installed"):
            (programs.parent / name).touch()

    def _version(self, programs: Path) -> str:
        version = re.search(r'^version = "(.+)"$', (self.clone / "pyproject.toml").read_text(), re.MULTILINE)
        ended = self.home.run("quorate --version", programs, self.work)
        return "" if version and ended.output.split() == ["quorate", version[1]] else ended.output or "no output"

    def _extra(self, programs: Path) -> str:
        said = self.home.run(f"python -c {shlex.quote(EXTRA)}", programs, self.work).output
        _, _, command = said.strip().partition("install it with: ")
        if "cryptography" not in command and "[tls]" not in command:
            return said
        return _wrong(self._run(command, programs, self.work, 600.0))

    def follows_the_pages(self, programs: Path) -> None:
        """Type the commands of README and of the tutorial, beside the script that the tutorial shows."""
        (self.work / "train.py").write_text(script_of(self.clone / TUTORIAL), encoding="utf-8")
        self._pretend_installed(programs)
        done: set[str] = set()
        for page in (TUTORIAL, README):
            for command in commands_of(self.clone / page):
                is_installed = command.startswith(("pip ", ". ", "git clone ", "cd ")) or command == "make venv"
                if command not in done and not is_installed:
                    self.types(page, command, programs, self.clone if command.startswith("make ") else self.work)
                done.add(command)

    def looks_at_tables(self, programs: Path) -> None:
        """Check that tables fit into 80 columns; the cards of one family are one check."""
        for command in TABLES:
            self.check(f"80 columns: {command}", lambda command=command: self._wide([command], programs))
        families = json.loads(self.home.run("quorate list --json", programs, self.work).output)
        for family, names in families.items():
            cards = [f"quorate explain {name}" for name in names]
            self.check(f"80 columns: explain, {family}", lambda cards=cards: self._wide(cards, programs))

    def _wide(self, commands: list[str], programs: Path) -> str:
        lines = []
        for command in commands:
            ended = self.home.show(command, programs, self.work)
            wide = too_wide(ended.output)
            if ended.status != 0:
                lines.append(f"{command}: status {ended.status}: {ended.output[-200:]}")
            elif wide:
                lines.append(f"{command}: {len(wide)} lines, such as: {wide[0]}")
        return "\n".join(lines)

    def completes(self, programs: Path) -> str:
        """Return what is wrong with the completion of a strategy's name in bash."""
        ended = self.home.run(COMPLETED, programs, self.work)
        names = {line.strip() for line in ended.output.splitlines()}
        return "" if {"eager-solo", "eager-majority"} <= names else f"completed to: {ended.output!r}"

    def reads_the_site(self, programs: Path) -> None:
        """Build the site with warnings as errors, and follow its links."""
        site = self.home.folder / "site"
        build = f"python -m sphinx --fail-on-warning --keep-going --quiet -b html docs {shlex.quote(str(site))}"
        self.check("site: builds", lambda: _wrong(self.home.run(build, programs, self.clone, seconds=600.0)))
        self.check("site: links", lambda: "\n".join(broken_links(site)) if site.is_dir() else "there is no site")


def _wrong(ended: Ended) -> str:
    return "" if ended.status == 0 else f"{ended.output}\nstatus {ended.status}"


def main() -> int:
    """Go through all checks; 1 if any failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.newcomer", description=__doc__)
    parser.add_argument("--full", action="store_true", help="download all dependencies, PyTorch included")
    parser.add_argument("--only", choices=("install", "pages", "completion", "tables", "site"), action="append")
    options = parser.parse_args()
    parts = options.only or ("install", "pages", "completion", "tables", "site")
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        newcomer = Newcomer(Home(Path(folder), is_full=options.full))
        subprocess.run(["git", "clone", "--quiet", ROOT, newcomer.clone], check=True)
        if "install" in parts:
            programs = newcomer.installs()
        else:
            programs = newcomer.home.environment("way-0")
            newcomer.types(INSTALL, EDITABLE, programs, newcomer.clone, seconds=1800.0)
        if options.full:
            newcomer.types(TUTORIAL, "make venv", programs, newcomer.clone, seconds=1800.0)
            programs = newcomer.clone / ".venv" / "bin"
            newcomer.types(INSTALL, "pip install -e '.[docs]'", programs, newcomer.clone, seconds=1800.0)
        if "completion" in parts:
            newcomer.check("completion: quorate run --strategy eag<TAB>", lambda: newcomer.completes(programs))
        if "tables" in parts:
            (newcomer.work / "train.py").write_text(script_of(newcomer.clone / TUTORIAL), encoding="utf-8")
            newcomer.looks_at_tables(programs)
        if "pages" in parts:
            newcomer.follows_the_pages(programs)
        if "site" in parts:
            newcomer.reads_the_site(programs)
    print(f"newcomer: {newcomer.passed} passed, {newcomer.failed} failed")
    return 1 if newcomer.failed else 0


if __name__ == "__main__":
    sys.exit(main())
