"""Small files in the formats that workloads read: CIFAR-10, videos as features, catalogues of gettext, images."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

CIFAR10_NAMES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def cifar10_images(records: int, place: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (records, 3072) and labels (records,) of the file at `place`: each class has a brightness of its own."""
    random = np.random.default_rng(place)
    labels = random.integers(0, 10, records, dtype=np.uint8)
    pixels = labels[:, None] * 20 + random.integers(0, 50, (records, 3072), dtype=np.uint8)
    return pixels, labels


def write_cifar10_binary(folder: Path, records: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for place, name in enumerate(CIFAR10_NAMES):
        pixels, labels = cifar10_images(records, place)
        (folder / f"{name}.bin").write_bytes(np.concatenate([labels[:, None], pixels], axis=1).tobytes())
    return folder


def write_videos(folder: Path, videos: int, *, features: int, classes: int) -> Path:
    """`videos` training and half as many test videos of 1 to 9 frames; each class has features of its own."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((classes, features)) * 3
    for name, count in (("train", videos), ("test", videos // 2)):
        lines = []
        for place in range(count):
            path = Path(f"class {place % classes}") / f"{name}_{place}.npy"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            frames = centres[place % classes] + random.standard_normal((1 + place % 9, features))
            np.save(folder / path, frames.astype(np.float32))
            lines.append(f"{path} Action{place % classes}\n")
        (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    return folder


def write_catalogue(path: Path, messages: Mapping[str, str], *, charset: str = "utf-8", order: str = "<") -> Path:
    """A compiled catalogue of gettext: a header, then the messages, sorted, in words of the byte `order`."""
    texts = {"": f"Content-Type: text/plain; charset={charset}\n", **messages}
    rows = [(source.encode(charset), target.encode(charset)) for source, target in sorted(texts.items())]
    begin, tables, body = 28 + 16 * len(rows), ([], []), b""
    for column, table in enumerate(tables):
        for row in rows:
            table += [len(row[column]), begin + len(body)]
            body += row[column] + b"\0"
    head = [0x950412DE, 0, len(rows), 28, 28 + 8 * len(rows), 0, 0]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f"{order}{7 + 4 * len(rows)}I", *head, *tables[0], *tables[1]) + body)
    return path


def sentences(count: int) -> dict[str, str]:
    """Sentences of 1 to 200 words, log-normal as those of LibreOffice's help, and their words in other letters."""
    random = np.random.default_rng(0)
    words = ("file", "print", "the", "open", "a", "page", "table", "cell", "of", "border")
    exchanged = str.maketrans("aeiou", "uoiea")
    made = {}
    for place in range(count):
        length = int(np.clip(np.exp(random.normal(np.log(9), 1.0)), 1, 200))
        text = f"{place} " + " ".join(random.choice(words, length))
        made[text] = text.translate(exchanged)
    return made


def write_translations(folder: Path, count: int) -> Path:
    """A folder with `sentences` in a catalogue where Django has its own."""
    write_catalogue(folder / "django/conf/locale/de/LC_MESSAGES/django.mo", sentences(count))
    return folder


def write_images(folder: Path, per_class: int, *, classes: int, side: int = 40) -> Path:
    """`per_class` PNG images in each folder; each class has a colour of its own."""
    from PIL import Image

    random = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class {label}").mkdir(parents=True, exist_ok=True)
        for place in range(per_class):
            pixels = random.integers(0, 40, (side + 7, side, 3), dtype=np.uint8)
            pixels[:, :, label % 3] += 200
            Image.fromarray(pixels).save(folder / f"class {label}" / f"{place}.png")
    return folder
