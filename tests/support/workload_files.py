"""Small files in the formats that workloads read: CIFAR-10, videos as features."""

from __future__ import annotations

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
