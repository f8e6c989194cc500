"""Videos of very unequal length through a large LSTM: the published workload whose imbalance lies in its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from quorate.core.errors import ConfigurationError
from quorate.workloads.drawing import drawn
from quorate.workloads.labelled_sequences import SequenceWorkload
from quorate.workloads.ucf101_features.model import VideoClassifier
from quorate.workloads.ucf101_features.videos import Video, class_names, folder_of, frames, labels_of, split


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
    """An LSTM (34,663,525 parameters) names the action in a video; lengths are very unequal.

    The features, 2,048 numbers per frame, are made beforehand: `folder` has a file per video and two split files; see
    the workload's documentation. The model is the published one; ReLU between its dense layers, optimizer and batch are
    our choice. Batches are neither bucketed nor cut, so that their cost varies as the videos do.

    Raises `ConfigurationError` for settings out of range or a folder that is not given or not there, and, when the data
    are asked for, for split files and videos that are missing or not what they should be (all are looked at, 0.1 ms
    each).
    """

    name: ClassVar[str] = "ucf101-features"
    batch_size: ClassVar[int] = 16
    learning_rate: ClassVar[float] = 3e-4
    epochs: ClassVar[int] = 50
    headline: ClassVar[str] = "top1"
    higher_is_better: ClassVar[bool] = True

    folder: str = ""
    """Where the videos' files and the split files lie; it must be given."""
    train_split: str = "train.txt"
    """Name of the file that lists the training videos and their classes."""
    test_split: str = "test.txt"
    """Name of the file that lists the test videos and their classes."""
    longest: int = 1776
    """Frames of a video beyond this are cut off; the longest of UCF101 has as many."""
    classes: int = 101
    """Scores the model gives; the training split has at most as many classes."""
    features: int = 2048
    """Numbers per frame."""
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
