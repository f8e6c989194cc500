"""The images as scikit-learn brings them, and which of them test."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quorate.core.errors import MissingExtra

GREATEST = 16
"""Pixels are from 0 to this."""


class Digits(NamedTuple):
    """n images, in the order of the source."""

    images: Tensor
    """(n, 1, 8, 8), float32, from 0 to 1"""
    labels: Tensor
    """(n,), int64"""


def check_installed() -> None:
    """Raises `MissingExtra` without scikit-learn."""
    if find_spec("sklearn") is None:
        raise MissingExtra("digits needs scikit-learn; install it with: pip install scikit-learn")


def read() -> Digits:
    """All 1,797 images, from the file that scikit-learn brings, in some 10 ms.

    To import scikit-learn takes a second of the processor, in every worker; that is done where the file is elsewhere.
    """
    path = _file()
    if path is None:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
    else:
        with gzip.open(path, "rt", encoding="ascii") as file:
            rows: Any = np.loadtxt(file, delimiter=",")
        pixels, labels = rows[:, :-1], rows[:, -1]
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / GREATEST
    return Digits(images, torch.tensor(labels, dtype=torch.int64))


def _file() -> Path | None:
    """Rows of 64 pixels and a label; None where this version of scikit-learn has it elsewhere."""
    spec = find_spec("sklearn")
    folders = [] if spec is None else spec.submodule_search_locations or []
    paths = (Path(folder, "datasets", "data", "digits.csv.gz") for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def split(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Places (int64, ascending) of training and of test images: of each class a fifth tests, drawn from `seed`."""
    random = torch.Generator().manual_seed(seed)
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        is_test[members[torch.randperm(len(members), generator=random)[: len(members) // 5]]] = True
    return (~is_test).nonzero().squeeze(1), is_test.nonzero().squeeze(1)
