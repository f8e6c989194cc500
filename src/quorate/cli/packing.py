"""`quorate pack` and `quorate unpack`: files of pruned and clustered models, with a few bits for each number."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli.tables import echo_text, table, terminal_width
from quorate.core.errors import ConfigurationError

if TYPE_CHECKING:
    from quorate.shrink.packed import Stages

_SUFFIX, _PACKED = ".safetensors", ".packed.safetensors"
_STAGES = ("dense", "pruned", "shared", "coded")

_Output = Annotated[Path | None, typer.Option(help="The file to write; an existing one is replaced.", metavar="FILE")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print what was written as one JSON object.")]


def pack(
    model: Annotated[Path, typer.Argument(help="A .safetensors file.", metavar="MODEL")],
    output: _Output = None,
    as_json: _AsJson = False,
) -> None:
    """Write a pruned or clustered model with a few bits for each number, and check that the bits come back.

    A table shows the bytes of each tensor as it is, without its zeros, with shared values, and in the file.
    """
    from quorate.shrink.packed import pack_file

    _check_input(model)
    target = _target(output, model.with_name(f"{model.name.removesuffix(_SUFFIX)}{_PACKED}"), model)
    packed = pack_file(model)
    _write(target, packed.data)
    before, after = model.stat().st_size, len(packed.data)
    totals = {stage: sum(getattr(tensor, stage) for tensor in packed.stages) for stage in _STAGES}
    if as_json:
        tensors = [asdict(tensor) for tensor in packed.stages]
        typer.echo(json.dumps({"path": str(target), "bytes": after, "bytes_before": before, "tensors": tensors}))
        return
    rows = [_row(tensor) for tensor in packed.stages]
    rows.append(["all", "", "", "", *(f"{totals[stage]:,}" for stage in _STAGES)])
    heads = ["tensor", "numbers", "not zero", "values", "bytes", *_STAGES[1:]]
    typer.echo("\n".join(table(heads, rows, terminal_width(), bold=[len(rows) - 1])))
    typer.echo("")
    smaller, of_tensors = before / after, totals["dense"] / max(1, totals["coded"])
    echo_text(
        f"{target}: {after:,} bytes, {smaller:.1f} times fewer than {model.name}; its tensors {of_tensors:.1f} times"
    )


def unpack(
    packed: Annotated[Path, typer.Argument(help="A file that quorate pack has written.", metavar="FILE")],
    output: _Output = None,
    as_json: _AsJson = False,
) -> None:
    """Write the tensors of a packed model as a .safetensors file, with the bits that they had."""
    from safetensors.torch import save

    from quorate.shrink.packed import read_packed

    _check_input(packed)
    target = _target(output, packed.with_name(packed.name.replace(_PACKED, _SUFFIX)), packed)
    tensors, metadata = read_packed(packed)
    data = save(tensors, metadata or None)
    _write(target, data)
    if as_json:
        typer.echo(json.dumps({"path": str(target), "bytes": len(data), "tensors": list(tensors)}))
        return
    echo_text(f"{target}: {len(tensors)} tensors, {len(data):,} bytes")


def _check_input(path: Path) -> None:
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}")


def _target(output: Path | None, default: Path, source: Path) -> Path:
    """Return the path to write; the default one only if there is no such file yet."""
    target = output or default
    if output is None and (target.exists() or target == source):
        raise ConfigurationError(f"{target} exists already; name the file to write with --output")
    if target.exists() and (target.is_dir() or os.path.samefile(target, source)):
        raise ConfigurationError(f"--output {target} is a folder, or the file to be read")
    if not target.parent.is_dir():
        raise ConfigurationError(f"--output {target}: there is no folder {target.parent}")
    return target


def _write(path: Path, data: bytes) -> None:
    """Write a file beside `path`, and rename it, so that an interrupted call leaves no half of it."""
    new = path.with_name(f".writing-{path.name}")
    try:
        new.write_bytes(data)
        os.replace(new, path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from None


def _row(tensor: Stages) -> list[str]:
    kept = f"{tensor.kept / tensor.numbers:.1%}" if tensor.numbers else ""
    values = f"{tensor.values}" if tensor.values else "many" if tensor.kept else ""
    sizes = (tensor.dense, tensor.pruned, tensor.shared, tensor.coded)
    return [tensor.name, f"{tensor.numbers:,}", kept, values, *(f"{size:,}" for size in sizes)]
