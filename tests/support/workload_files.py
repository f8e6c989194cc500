"""Small files in the formats that workloads read: CIFAR-10 in both versions, videos as features."""

from __future__ import annotations

import struct
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


def write_cifar10_python(folder: Path, records: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for place, name in enumerate(CIFAR10_NAMES):
        (folder / name).write_bytes(pickled_by_python2(*cifar10_images(records, place)))
    return folder


def pickled_by_python2(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """The dictionary of one file as Python 2's cPickle wrote it, instruction by instruction."""

    def text(content: bytes) -> bytes:
        short = len(content) < 256
        return (b"U" + bytes([len(content)]) if short else b"T" + struct.pack("<i", len(content))) + content

    def number(value: int) -> bytes:
        return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)

    names = b"".join(text(f"image_{place}.png".encode()) for place in range(len(labels)))
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
        b"(K\x01" + number(pixels.shape[0]) + number(pixels.shape[1]) + b"\x86"
        b"cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89" + text(pixels.tobytes()) + b"tb"
    )
    return (
        b"\x80\x02}q\x01("
        + (text(b"batch_label") + b"q\x02" + text(b"training batch 1 of 5") + b"q\x03")
        + (text(b"labels") + b"q\x04]q\x05(" + b"".join(map(number, labels.tolist())) + b"e")
        + (text(b"data") + b"q\x06" + array)
        + (text(b"filenames") + b"q\x0c]q\x0d(" + names + b"e")
        + b"u."
    )


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
