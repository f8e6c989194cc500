"""Videos of very unequal length through a large LSTM: the published workload whose imbalance lies in its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from quorate.core.errors import ConfigurationError, unknown
from quorate.core.workload import Imbalance
from quorate.workloads.drawing import drawn
from quorate.workloads.labelled_sequences import SequenceWorkload, at_the_ends

DENSE = 512
"""Width between the LSTM and the scores."""


class VideoDataset(Dataset[tuple[Tensor, int]]):
    """Videos, each as its frames (length, features) float32 and its class; read when they are asked for."""

    def __init__(self, videos: Sequence[Video], labels: Sequence[int], features: int, longest: int) -> None:
        self._videos = videos
        self._labels = labels
        self._features = features
        self._longest = longest
        self.lengths = torch.tensor([min(len(frames(video, features)), longest) for video in videos])
        """Frames per video: int64 of shape (n,)."""

    def __len__(self) -> int:
        return len(self._videos)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        array = np.array(frames(self._videos[index], self._features)[: self._longest])
        return torch.from_numpy(array), self._labels[index]


@dataclass(frozen=True, kw_only=True)
class Ucf101Features(SequenceWorkload):
    """An LSTM (34,663,525 parameters) classifies the actions in videos; lengths differ widely.

    The features, 2,048 numbers per frame, must be computed beforehand: `folder` has a file per video and two split
    files (see docs/workloads.md). The model is the published one; ReLU between its dense layers, optimizer and batch
    are our choice. Batches are neither bucketed nor cut, so that their cost varies with the videos.

    Raises `ConfigurationError` for settings out of range, and for a folder that is not passed or does not exist. When
    the data are read, it raises one for split files and videos that are missing or damaged (all are checked, 0.1 ms
    each).
    """

    name: ClassVar[str] = "ucf101-features"
    batch_size: ClassVar[int] = 16
    learning_rate: ClassVar[float] = 3e-4
    epochs: ClassVar[int] = 50
    headline: ClassVar[str] = "top1"
    higher_is_better: ClassVar[bool] = True
    baseline: ClassVar[str] = "0.01, one of 101 classes"
    cost: ClassVar[str] = "5 s at 100 frames, 10 s at 200 (34,663,525 parameters)"
    imbalance: ClassVar[Imbalance] = "natural"

    folder: str = ""
    """Folder of the feature files of the videos and of the split files; required."""
    train_split: str = "train.txt"
    """Name of the file that lists the training videos and their classes."""
    test_split: str = "test.txt"
    """Name of the file that lists the test videos and their classes."""
    longest: int = 1776
    """Maximum number of frames of a video; further frames are cut off. The default is the longest video of UCF101."""
    classes: int = 101
    """Number of outputs of the model; the training split may have fewer classes."""
    features: int = 2048
    """Number of features per frame."""
    hidden: int = 2048
    """Width of the LSTM."""

    def __post_init__(self) -> None:
        for setting in ("longest", "classes", "features", "hidden"):
            if getattr(self, setting) < 1:
                raise ConfigurationError(f"ucf101-features: {setting} must be at least 1, not {getattr(self, setting)}")
        folder_of(self.folder)

    @property
    def _folder(self) -> Path:
        return folder_of(self.folder)

    @cached_property
    def _training(self) -> list[Video]:
        return split(self._folder, self.train_split)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The classes of the training split, in the order of their numbers."""
        return class_names(self._training, self.classes)

    @cached_property
    def _datasets(self) -> dict[bool, VideoDataset]:
        return {}

    def dataset(self, *, train: bool) -> VideoDataset:
        """Pairs of frames (length, features) and a class."""
        if train not in self._datasets:
            videos = self._training if train else split(self._folder, self.test_split)
            labels = labels_of(videos, self.class_names)
            self._datasets[train] = VideoDataset(videos, labels, self.features, self.longest)
        return self._datasets[train]

    def model(self, seed: int = 0) -> nn.Module:
        """LSTM, dense layer of 512, linear layer; see `VideoClassifier`."""
        return drawn(lambda: VideoClassifier(self.features, self.hidden, self.classes), seed)

    def describe(self) -> list[str]:
        training, test = self.dataset(train=True), self.dataset(train=False)
        lengths = training.lengths
        exact = lengths.double()
        return [
            f"ucf101-features: {len(training)} training and {len(test)} test videos of {len(self.class_names)} "
            f"classes, {self.features} features per frame",
            f"frames per training video: mean {float(exact.mean()):.1f}, median {float(exact.median()):.0f}, "
            f"max {int(lengths.max())}, all {int(lengths.sum())}",
        ]


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
    """The videos of one split file; raises `ConfigurationError` for one that is not there or says something else.

    A split file has one line per video: its path, relative to the folder, white space, and the name of its class (a
    number is a name like any other). Classes are numbered in the sorted order of their names in the training split.
    """
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


class OneBiasLSTM(nn.LSTM):
    """One LSTM layer whose gates have one bias vector each, as in the books; batch first.

    torch's own has two, which are only ever added up. Here the second one stays zero and is no parameter, and is not in
    the state dict either; the computation is torch's, its fused kernels included.
    """

    bias_hh_l0: Tensor

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__(features, hidden, batch_first=True)
        del self.bias_hh_l0
        self.bias_hh_l0 = nn.Buffer(torch.zeros(4 * hidden), persistent=False)


class VideoClassifier(nn.Module):
    """LSTM, read to each sequence's own end; a dense layer of `DENSE` with ReLU; a linear layer.

    The LSTM runs over the padded batch: what comes after an end is computed and not looked at.
    """

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.lstm = OneBiasLSTM(features, hidden)
        self.dense = nn.Linear(hidden, DENSE)
        self.output = nn.Linear(DENSE, classes)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        """Scores (n, classes) of `frames` (n, longest, features), of which the first `lengths` (n,) >= 1 count."""
        states, _ = self.lstm(frames)
        scores: Tensor = self.output(torch.relu(self.dense(at_the_ends(states, lengths))))
        return scores
