"""Sentences in English and in another language: from aligned text files, or from what is installed on the machine."""

from __future__ import annotations

import contextlib
import hashlib
import html
import os
import re
import struct
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from quorate.core.errors import ConfigurationError
from quorate.core.resources import cache_folder

FORMAT = 1
"""Counted up when the same files would give other pairs, or another cache file."""

FOLDERS = (
    "/usr/share/locale",
    "/usr/lib/libreoffice/program/resource",
    "/opt/libreoffice/program/resource",
    "/usr/share/libreoffice/help",
    "/usr/lib/libreoffice/help",
)
"""Folders with translations, beside the packages of Python."""

DEPTHS = ("", "*/", "*/*/", "*/*/*/")
"""Depths of the folders `locale` of Python's packages; `django/contrib/admin/locale` has the last."""

_MAGIC = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}
_CHARSET = re.compile(rb"charset=([\w.-]+)", re.IGNORECASE)
_PARAGRAPH = re.compile(r"<(p|h[1-6])\b[^>]*?\bid=\"((?:par_|hd_)[^\"]+)\"[^>]*>(.*?)</\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


class Pair(NamedTuple):
    """A sentence and its translation, without line breaks and tabs."""

    source: str
    target: str


@dataclass(frozen=True)
class ParallelText:
    """Different pairs, in the order of their files."""

    pairs: tuple[Pair, ...]
    origin: str
    """The sources and the number of pairs of each, in words."""


def aligned(paths: Sequence[str]) -> ParallelText:
    """Return the pairs of two text files: line n of the second translates line n of the first.

    Raises `ConfigurationError` for a file that cannot be read, and for files with different numbers of lines.
    """
    if len(paths) != 2:
        raise ConfigurationError(
            f"translation: pairs must be two text files, the source and its translation, not {len(paths)}"
        )
    texts = []
    for path in paths:
        try:
            texts.append(Path(path).expanduser().read_text(encoding="utf-8").split("\n"))
        except (OSError, UnicodeDecodeError) as error:
            reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror or error
            raise ConfigurationError(f"translation: {path} cannot be read ({reason})") from error
    sources, targets = texts
    if len(sources) != len(targets):
        raise ConfigurationError(
            f"translation: {paths[0]} has {len(sources)} lines and {paths[1]} has {len(targets)}; line n of one must "
            "translate line n of the other"
        )
    pairs = distinct(zip(sources, targets, strict=True))
    return ParallelText(pairs, f"{len(pairs)} pairs of {paths[0]} and {paths[1]}")


def installed(language: str, folders: Sequence[str], *, use_cache: bool = True) -> ParallelText:
    """Return the translations from English into `language` that lie in `folders`; without folders, on this machine.

    Read are catalogues of gettext (`LANGUAGE/LC_MESSAGES/*.mo`, also in folders named `locale`), and the help of
    LibreOffice, whose paragraphs have the same ids in all languages. Damaged files are left out. What was read is
    kept in the user's cache folder, under a name that depends on paths, sizes and times of the files.
    """
    catalogue_paths = sorted(set(_catalogue_paths(language, folders)))
    help_paths = sorted(set(_help_paths(language, folders)))
    files = [*catalogue_paths, *(path for pages in help_paths for path in pages)]
    cache = _cache_path(language, files) if use_cache and files else None
    text = None if cache is None else _load(cache)
    if text is None:
        text = _read(catalogue_paths, help_paths)
        if cache is not None:
            _save(cache, text)
    return text


def _read(catalogue_paths: Sequence[Path], help_paths: Sequence[tuple[Path, Path]]) -> ParallelText:
    of_help = distinct(pair for english, other in help_paths for pair in _page_pairs(english, other))
    both = distinct([*of_help, *(pair for path in catalogue_paths for pair in catalogue(path))])
    counts = {
        f"{len(help_paths)} pages of LibreOffice's help": len(of_help),
        f"{len(catalogue_paths)} catalogues": len(both) - len(of_help),
    }
    origins = [f"{count} of {files}" for files, count in counts.items() if count]
    return ParallelText(both, " and ".join(origins) or "nothing installed")


def distinct(pairs: Iterable[tuple[str, str]]) -> tuple[Pair, ...]:
    """Return each pair once, its white space as single spaces, without those that have no letter or no translation."""
    cleaned = (Pair(" ".join(source.split()), " ".join(target.split())) for source, target in pairs)
    kept = dict.fromkeys(pair for pair in cleaned if pair.source != pair.target and all(map(_has_letter, pair)))
    return tuple(kept)


def _has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))


def catalogue(path: Path) -> list[tuple[str, str]]:
    """Return the messages of a compiled catalogue of gettext (.mo), singular forms only; of a damaged one, none.

    The format is that of the manual of GNU gettext, "The Format of GNU MO Files".
    """
    try:
        data = path.read_bytes()
        order = _MAGIC[data[:4]]
        count, sources_at, targets_at = struct.unpack_from(f"{order}8x3I", data)
        messages = [
            (_message(data, order, sources_at + 8 * number), _message(data, order, targets_at + 8 * number))
            for number in range(count)
        ]
        about = next((target for source, target in messages if not source), b"")
        named = _CHARSET.search(about)
        charset = named[1].decode() if named else "utf-8"
        singular = (
            [text.partition(b"\0")[0].decode(charset) for text in message] for message in messages if message[0]
        )
        return [(source.rpartition("\x04")[2], target) for source, target in singular]
    except (OSError, KeyError, struct.error, UnicodeDecodeError, LookupError):
        return []


def _message(data: bytes, order: str, place: int) -> bytes:
    length, begin = struct.unpack_from(f"{order}2I", data, place)
    if begin + length > len(data):
        raise struct.error("the message ends after the file")
    return data[begin : begin + length]


def _page_pairs(english: Path, other: Path) -> Iterator[tuple[str, str]]:
    """Yield the paragraphs of a page of LibreOffice's help whose ids are in both languages."""
    translated = paragraphs(other)
    yield from ((text, translated[id_]) for id_, text in paragraphs(english).items() if id_ in translated)


def paragraphs(path: Path) -> dict[str, str]:
    """Return the text of the paragraphs and headings of a page by their ids; of one that is not readable, nothing."""
    try:
        page = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    return {match[2]: html.unescape(_TAG.sub("", match[3])) for match in _PARAGRAPH.finditer(page)}


def _catalogue_paths(language: str, folders: Sequence[str]) -> Iterator[Path]:
    for folder in map(Path, folders or FOLDERS):
        yield from folder.glob(f"{language}/LC_MESSAGES/*.mo")
    packages = sysconfig.get_path("purelib")
    for folder in map(Path, folders or (packages,)):
        for depth in DEPTHS:
            yield from folder.glob(f"{depth}locale/{language}/LC_MESSAGES/*.mo")


def _help_paths(language: str, folders: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    for folder in map(Path, folders or FOLDERS):
        english = folder / "en-US"
        for path in english.glob("**/*.html"):
            other = folder / language / path.relative_to(english)
            if other.is_file():
                yield path, other


def _cache_path(language: str, files: Sequence[Path]) -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    digest = hashlib.sha256(f"{FORMAT} {language}".encode())
    for path in files:
        about = path.stat()
        digest.update(f"\n{path} {about.st_size} {about.st_mtime_ns}".encode())
    return folder / f"translation-{language}-{digest.hexdigest()[:16]}.tsv"


def _load(path: Path) -> ParallelText | None:
    """Return the text kept at `path`; None where there is none, or it is not as it was written."""
    try:
        head, _, body = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    digest, _, origin = head.partition(" ")
    if digest != _digest(body):
        return None
    rows = (line.split("\t") for line in body.split("\n") if line)
    return ParallelText(tuple(Pair(source, target) for source, target in rows), origin)


def _save(path: Path, text: ParallelText) -> None:
    """Keep the text; without room for it, or rights, nothing is kept."""
    body = "\n".join("\t".join(pair) for pair in text.pairs)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        number, new = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(number, "w", encoding="utf-8", newline="\n") as file:
            file.write(f"{_digest(body)} {text.origin}\n{body}")
        os.replace(new, path)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
