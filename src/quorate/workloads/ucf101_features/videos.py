"""A folder of videos as features: one .npy file of frames x features each, and text files that say which are used.

A split file has one line per video: its path, relative to the folder, white space, and the name of its class (a number
is a name like any other). Classes are numbered in the sorted order of their names in the training split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quorate.core.errors import ConfigurationError, unknown


@dataclass(frozen=True)
class Video:
    """One line of a split file."""

    path: Path
    label: str
    place: str
    """The line that lists it: `train.txt line 3`."""


def folder_of(named: str) -> Path:
    """The folder as a path; raises `ConfigurationError` where it is not given or not there."""
    if not named:
        raise ConfigurationError(
            "ucf101-features needs a setting folder=..., where one .npy file of frames x features per video lies, and "
            "the split files"
        )
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise ConfigurationError(f"ucf101-features: there is no folder {folder}")
    return folder


def split(folder: Path, name: str) -> list[Video]:
    """The videos of one split file; raises `ConfigurationError` for one that is not there or says something else."""
    try:
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = "it is not text" if isinstance(error, UnicodeDecodeError) else error.strerror or error
        raise ConfigurationError(
            f'ucf101-features: {folder / name} cannot be read ({why}); it should have lines of "path.npy class"'
        ) from error
    videos = []
    for number, line in enumerate(lines, 1):
        words = line.rsplit(maxsplit=1)
        if len(words) == 1:
            raise ConfigurationError(
                f'ucf101-features: {name} line {number} is "{words[0]}"; a line is a path and a class'
            )
        if words:
            videos.append(Video(folder / words[0].strip(), words[1], f"{name} line {number}"))
    if not videos:
        raise ConfigurationError(f"ucf101-features: {folder / name} names no video")
    return videos


def class_names(training: Sequence[Video], most: int) -> tuple[str, ...]:
    """The classes in the order of their numbers; raises `ConfigurationError` for more than `most`."""
    names = tuple(sorted({video.label for video in training}))
    if len(names) > most:
        raise ConfigurationError(
            f"ucf101-features: the training split has {len(names)} classes and the setting classes is {most}"
        )
    return names


def labels_of(videos: Sequence[Video], names: Sequence[str]) -> list[int]:
    """The number of each video's class; raises `ConfigurationError` for one that is not among `names`."""
    numbers = {name: number for number, name in enumerate(names)}
    for video in videos:
        if video.label not in numbers:
            raise unknown(f"class in {video.place}", video.label, names)
    return [numbers[video.label] for video in videos]


def frames(video: Video, features: int) -> NDArray[np.float32]:
    """The frames (number, features) of one video, mapped from its file: nothing is read before it is looked at.

    Raises `ConfigurationError` for a file that is not there, is damaged, or holds something else. No pickle is read.
    """
    try:
        array = np.lib.format.open_memmap(video.path, mode="r")  # unlike np.load, it knows nothing but arrays
    except FileNotFoundError as error:
        raise ConfigurationError(f"ucf101-features: {video.place} names {video.path}, which is not there") from error
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"ucf101-features: {video.path} is damaged, or no .npy file of plain numbers ({error})"
        ) from error
    if array.ndim != 2 or array.shape[1] != features or len(array) < 1 or array.dtype != np.float32:
        shape = " x ".join(map(str, array.shape))
        raise ConfigurationError(
            f"ucf101-features: {video.path} holds {shape} numbers of type {array.dtype}; wanted are frames x "
            f"{features} of type float32"
        )
    return array
