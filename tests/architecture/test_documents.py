"""What the documents tell a reader to type exists, and so does what they link to."""

from __future__ import annotations

import inspect
import re
import shlex
import textwrap
from pathlib import Path

import pytest
import typer

import quorate
from quorate.cli.main import main
from quorate.cli.verbs import app
from tests.architecture.tree import PACKAGE, ROOT

GENERATED = ROOT / "docs" / "generated"
WRITTEN = sorted(path for path in (ROOT / "docs").rglob("*.md") if not path.is_relative_to(GENERATED))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
COMMUNITY = [ROOT / f"{name}.md" for name in ("CHANGELOG", "CODE_OF_CONDUCT", "CONTRIBUTING", "SECURITY")]
DOCUMENTS = [ROOT / "README.md", *COMMUNITY, *WRITTEN]
STANDS_FOR_SOMETHING = re.compile(r"\b(NAME|RUN|FILE|VERB|FOLDER)\b|\bruns/")
"""In a command: that it is to be completed by the reader, so that it can be parsed, but not done."""
THE_READERS_OWN = {"train.py"}
CODE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
DECISIONS = ROOT / "docs" / "decisions"
ANCHOR = re.compile(r'^<a id="(\d{4})"></a>$', re.MULTILINE)
LINK_TO_DECISION = re.compile(r"([\w-]+)\.md#(\d{4})\b")
HOMES = [str(path) for path in (ROOT, Path.home()) if len(path.parts) > 1]
MACHINE = re.compile(rf"(?<![\w.])(?:/(?:work|root)|{'|'.join(map(re.escape, HOMES))})/\w+")

FROM_AN_INDEX = re.compile(
    r"\binstall (?:-\S+ )*['\"]?(?:torch-)?quorate\b(?!(?:\[\w+\])? @ )|\bquorate\\?\[(?!\d)\w+\\?\](?! @ )"
)

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())


def blocks(document: Path, *languages: str) -> list[str]:
    return [text for language, text in CODE.findall(document.read_text(encoding="utf-8")) if language in languages]


def commands(document: Path) -> list[list[str]]:
    """Every command line of the document's shell blocks, cut into words, comments and settings before it left out."""
    lines = [line for block in blocks(document, "bash", "sh") for line in block.replace("\\\n", " ").splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    cut = [[word for i, word in enumerate(line) if i or not re.match(r"\w+=", word)] for line in words]
    return [line for line in cut if line]


def verbs() -> set[str]:
    return set(getattr(typer.main.get_command(app), "commands", {}))


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.MULTILINE))


def test_the_test_files_that_make_names_exist() -> None:
    names = re.search(r"^WITH_MODELS := \$\(addprefix (\S+?),((?:[^)\\]|\\\n)*)\)", MAKEFILE, re.MULTILINE)
    assert names, "WITH_MODELS of the Makefile is written in another way"
    prefix, files = names[1], names[2].replace("\\\n", " ").split()
    assert [name for name in files if not (ROOT / f"{prefix}{name}").exists()] == []


@each_document
def test_commands_exist(document: Path) -> None:
    for words in commands(document):
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets(), words
        if words[0] == "quorate" and words[1:] and not words[1].startswith("-"):
            assert words[1] in verbs(), words


@each_document
def test_commands_are_understood(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is done where that starts nothing, or would start if it were not for `--dry-run`; else it is parsed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name in THE_READERS_OWN:
        (tmp_path / name).write_text("")
    for words in commands(document):
        if words[0] != "quorate" or "VERB" in words:
            continue
        verb = words[1] if len(words) > 1 else ""
        is_complete = not any(STANDS_FOR_SOMETHING.search(word) for word in words if not word.startswith("-"))
        if verb in {"run", "compare"} and is_complete:
            assert status_of(verb, "--dry-run", *words[2:]) == 0, (words, capsys.readouterr().err)
        elif verb in {"list", "explain"}:
            assert status_of(*words[1:]) == 0, (words, capsys.readouterr().err)
        elif verb in verbs():
            command = getattr(typer.main.get_command(app), "commands", {})[verb]
            command.make_context(verb, [word for word in words[2:] if word != "--help"])
    assert not (tmp_path / "runs").exists()


def status_of(*words: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


@each_document
def test_commands_can_be_pasted(document: Path) -> None:
    """A prompt would be pasted with them."""
    lines = [line for _, text in CODE.findall(document.read_text(encoding="utf-8")) for line in text.splitlines()]
    assert [line for line in lines if re.match(r"\s*[$>%] ?(quorate|python|pip|make|srun|torchrun)\b", line)] == []


@each_document
def test_files_in_commands_exist(document: Path) -> None:
    named = [word for words in commands(document) for word in words if re.search(r"\w\.(py|txt|toml|sh)$", word)]
    assert not [name for name in named if name not in THE_READERS_OWN and not (ROOT / name).exists()]


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    links = [link for link in LINK.findall(document.read_text(encoding="utf-8")) if "://" not in link]
    assert not [link for link in links if not (document.parent / link).exists()]


def pages_by_decision() -> list[tuple[str, str]]:
    """Return each number of a decision with its page, once for every anchor, in order of number."""
    pages = [(page.stem, page.read_text(encoding="utf-8")) for page in DECISIONS.glob("*.md")]
    return sorted((number, page) for page, text in pages for number in ANCHOR.findall(text))


def test_each_decision_is_an_anchor_once_and_in_the_index() -> None:
    pages = pages_by_decision()
    assert [number for number, _ in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\d{4})\]\(([\w-]+)\.md#\1\) \| .+ \| \[.+\]\(\2\.md\) \|$", index, re.MULTILINE)
    assert rows == pages


def test_links_to_decisions_name_their_page() -> None:
    sources = [path for name in ("src", "tests", "benchmarks", "examples") for path in (ROOT / name).rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in [*DOCUMENTS, *sources]}
    links = {(number, page, path) for path, text in texts.items() for page, number in LINK_TO_DECISION.findall(text)}
    pages = set(pages_by_decision())
    assert len(links) > len(pages)
    assert not {link for link in links if link[:2] not in pages}


@each_document
def test_python_blocks_are_python(document: Path) -> None:
    for block in blocks(document, "python"):
        compile(textwrap.dedent(block), str(document), "exec")


def test_the_readme_shows_how_to_begin() -> None:
    typed = {" ".join(words) for words in commands(ROOT / "README.md")}
    assert {"pip install .", "quorate run -n 4 train.py", "make demo"} <= typed


def test_what_the_readme_claims_was_printed_by_a_script() -> None:
    """Every figure of the table is among the last results, in a section that names its script."""
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## What is measured")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .* \| (.*) \| `(benchmarks/(\w+)\.py)` \|$", table, re.MULTILINE)
    assert len(rows) > 3
    pages = (ROOT / "docs" / "benchmarks").glob("*.md")
    results = [section for page in pages for section in page.read_text(encoding="utf-8").split("\n## ")]
    for claimed, script, name in rows:
        assert (ROOT / script).is_file()
        sections = [section for section in results if f"benchmarks/{name}.py" in section]
        for figure in re.findall(r"\d+(?:\.\d+)?", claimed):
            assert any(re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.])", section) for section in sections), claimed


@pytest.mark.parametrize("name", ["join", "distribute", "loader", "files", "save", "load"])
def test_the_reference_names_every_argument(name: str) -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    section = text.partition(f"## `quorate.{name}()`")[2].partition("\n## ")[0]
    explained = {
        word for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for word in re.findall(r"\w+", row)
    }
    assert set(inspect.signature(getattr(quorate, name)).parameters) <= explained


def test_no_file_names_a_machine() -> None:
    folders = ("src", "tests", "examples", "benchmarks", "docs", ".ci")
    inside = [path for folder in folders for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    files = [path for path in [*ROOT.iterdir(), *inside] if path.is_file() and path.name != ".git"]  # a work tree's
    texts = {path: path.read_bytes().decode("utf-8", errors="replace") for path in files}
    assert not {path: found.group() for path, text in texts.items() if (found := MACHINE.search(text))}


def test_nobody_is_told_to_install_quorate_from_an_index() -> None:
    """There `quorate` is another program, and `torch-quorate` is nobody's: texts name a path, a URL or a file."""
    folders = ("src", "tests", "examples", "benchmarks", "docs", ".github")
    inside = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    written = [
        path
        for path in [*ROOT.iterdir(), *inside]
        if path.suffix in {"", ".cff", ".ipynb", ".md", ".py", ".toml", ".yml"}
    ]
    files = [path for path in written if path.is_file() and path != Path(__file__)]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    assert not {path: found.group() for path, text in texts.items() if (found := FROM_AN_INDEX.search(text))}


@pytest.mark.parametrize(
    ("text", "is_from_an_index"),
    [
        ("pip install quorate", True),
        ("pip install -U 'quorate[tls]'", True),
        ("needs `quorate[images]`", True),
        (r"quorate\[tls\]", True),
        ("pip install '.[tls]' in a checkout of quorate", False),
        ("pip install ./quorate", False),
        ("pip install torch-quorate", True),
        ("pip install -U 'torch-quorate[tls]'", True),
        ("pip install 'torch-quorate @ git+file:///path/to/quorate'", False),
        ("pip install 'torch-quorate[tls] @ git+file:///path/to/quorate'", False),
        ("pip install dist/torch_quorate-0.2.0-py3-none-any.whl", False),
        ("quorate run", False),
    ],
)
def test_what_is_installed_from_an_index(text: str, is_from_an_index: bool) -> None:
    assert bool(FROM_AN_INDEX.search(text)) == is_from_an_index


def test_every_package_has_a_row_among_the_layers() -> None:
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("\n## Layers\n")[2].partition("\n## ")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
    named = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}
    assert named == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
