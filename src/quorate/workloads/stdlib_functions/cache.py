"""A corpus on disk: one safetensors file, whose metadata holds a digest of everything and, as JSON, the rest.

Written to a temporary name and renamed, so that several processes may build it at once: the last one wins, and all
wrote the same. A file that is damaged, or of another format, is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from quorate.core.cache_folder import cache_folder
from quorate.workloads.stdlib_functions.corpus import Corpus, Selection

FORMAT = 1
"""Counted up when the same source would give another corpus, or another file."""

_TENSORS = ("words", "offsets", "labels", "is_test")


def cache_path(folder: Path, paths: Sequence[str], selection: Selection) -> Path | None:
    """Return the cache file of the corpus of `paths` below `folder`; it depends on sizes, settings and Python."""
    place = cache_folder()
    if place is None:
        return None
    sizes = [(path, (folder / path).stat().st_size) for path in paths]
    key = json.dumps([FORMAT, sys.version, str(folder), asdict(selection), sizes])
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return place / f"stdlib-functions-{version}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"


def load(path: Path) -> Corpus | None:
    """The corpus kept at `path`; None where there is none, or none that is whole."""
    try:
        data = path.read_bytes()
        tensors = safetensors.torch.load(data)
        digest, _, text = _metadata(data)["corpus"].partition(" ")
        if digest != _digest(tensors, text):
            return None
        rest = json.loads(text)
    except (OSError, SafetensorError, ValueError, KeyError):
        return None
    return Corpus(
        **{name: tensors[name] for name in _TENSORS},
        classes=tuple(rest["classes"]),
        vocabulary=tuple(rest["vocabulary"]),
        files=rest["files"],
        skipped=tuple(rest["skipped"]),
    )


def save(path: Path, corpus: Corpus) -> bool:
    """Keep the corpus at `path`; False where that cannot be written, which is no error."""
    tensors = {name: getattr(corpus, name) for name in _TENSORS}
    rest = {
        "classes": corpus.classes,
        "vocabulary": corpus.vocabulary,
        "files": corpus.files,
        "skipped": corpus.skipped,
    }
    text = json.dumps(rest)
    # One entry: safetensors writes several in any order, and equal corpora shall be equal files.
    data = safetensors.torch.save(tensors, {"corpus": f"{_digest(tensors, text)} {text}"})
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False
    return True


def _metadata(data: bytes) -> dict[str, str]:
    """The text in a safetensors file's header: 8 bytes of length (little-endian), then JSON."""
    (length,) = struct.unpack_from("<Q", data)
    metadata: dict[str, str] = json.loads(data[8 : 8 + length])["__metadata__"]
    return metadata


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in _TENSORS:
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()
