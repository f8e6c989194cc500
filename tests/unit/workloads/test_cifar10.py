"""CIFAR-10 from its published files: damage, crops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from quorate.core.errors import ConfigurationError
from quorate.workloads.cifar10 import DEVIATIONS, MEANS, Cifar10, augmented
from tests.support.workload_files import cifar10_images, write_cifar10_binary

RECORDS = 7


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    return write_cifar10_binary(tmp_path / "binary", RECORDS)


def made(folder: Path, **settings: Any) -> Cifar10:
    return Cifar10(folder=str(folder), records=RECORDS, **settings)


def everything(workload: Cifar10, *, train: bool) -> tuple[Tensor, Tensor]:
    data = workload.dataset(train=train)
    return data.__getitems__(range(len(data)))


@pytest.mark.parametrize("train", [True, False])
def test_images_are_what_was_published(binary: Path, *, train: bool) -> None:
    files = [cifar10_images(RECORDS, place) for place in (range(5) if train else [5])]
    pixels = np.concatenate([images for images, _ in files]).reshape(-1, 3, 32, 32) / 255
    means, deviations = (np.array(each).reshape(3, 1, 1) for each in (MEANS, DEVIATIONS))
    images, labels = everything(made(binary, augment=False), train=train)
    assert images.dtype == torch.float32 and images.shape == ((5 if train else 1) * RECORDS, 3, 32, 32)
    torch.testing.assert_close(images.double(), torch.from_numpy((pixels - means) / deviations), atol=1e-5, rtol=0)
    assert labels.tolist() == np.concatenate([labels for _, labels in files]).tolist()


def test_the_folder_of_the_archive_is_found(tmp_path: Path) -> None:
    write_cifar10_binary(tmp_path / "cifar-10-batches-bin", RECORDS)
    assert len(made(tmp_path).dataset(train=False)) == RECORDS


def test_the_python_version_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="holds the python version, which is pickled; it should hold the CI"):
        made(tmp_path)


def test_what_lies_where_it_should_not(tmp_path: Path, binary: Path) -> None:
    cases: list[tuple[str, str]] = [
        ("", r"cifar10 needs a setting folder=..., where the CIFAR-10 binary version, unpacked, lies"),
        (str(tmp_path / "nowhere"), "there is no folder .*nowhere; it should hold the CIFAR-10 binary version"),
        (str(tmp_path), "has no data_batch_1.bin; it should hold the CIFAR-10 binary version"),
    ]
    for folder, words in cases:
        with pytest.raises(ConfigurationError, match=words):
            Cifar10(folder=folder)
    (binary / "data_batch_3.bin").unlink()
    with pytest.raises(ConfigurationError, match="binary lacks data_batch_3.bin; it should hold"):
        made(binary)


def test_a_binary_file_that_is_cut_off_or_has_a_wrong_label(binary: Path) -> None:
    file = binary / "data_batch_2.bin"
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:-3073], b"", whole + b"\0"):
        file.write_bytes(damaged)
        with pytest.raises(ConfigurationError, match=r"data_batch_2.bin has \d+ bytes, and 7 images take 21511"):
            made(binary).dataset(train=True)
    file.write_bytes(whole[:3073] + b"\x0a" + whole[3074:])
    with pytest.raises(
        ConfigurationError, match="data_batch_2.bin has the label 10 at image 1; labels are from 0 to 9"
    ):
        made(binary).dataset(train=True)
    made(binary).dataset(train=False)


def test_crops_are_windows_of_the_padded_image_and_half_are_mirrored() -> None:
    pixels = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = augmented(pixels, 5, range(64))
    seen = []
    for image, padded in zip(found, pad(pixels, (4, 4, 4, 4)), strict=True):
        windows = {
            (top, left, mirrored): padded[:, top : top + 8, left : left + 8].flip(2 if mirrored else ())
            for top in range(9)
            for left in range(9)
            for mirrored in (False, True)
        }
        seen.append([place for place, window in windows.items() if torch.equal(window, image)])
    assert all(len(places) == 1 for places in seen)
    tops, lefts, mirrored = (set(each) for each in zip(*(places[0] for places in seen), strict=True))
    assert tops == lefts == set(range(9))
    assert mirrored == {False, True}
    assert 16 < sum(places[0][2] for places in seen) < 48


def test_crops_are_drawn_from_the_batch(binary: Path) -> None:
    one, other = made(binary).dataset(train=True), made(binary).dataset(train=True)
    assert torch.equal(one.__getitems__([1, 2, 3]).images, other.__getitems__([1, 2, 3]).images)
    first = one.__getitems__([1, 2, 3]).images
    for others in ([1, 3, 2], [1, 2, 4]):
        assert not torch.equal(first[0], one.__getitems__(others).images[0])
    assert not torch.equal(first, made(binary, seed=1).dataset(train=True).__getitems__([1, 2, 3]).images)
    plain = made(binary, augment=False).dataset(train=True)
    assert not torch.equal(first, plain.__getitems__([1, 2, 3]).images)
    assert torch.equal(made(binary).dataset(train=False)[2][0], made(binary, augment=False).dataset(train=False)[2][0])


def test_the_optimizer_is_the_published_one(binary: Path) -> None:
    workload = made(binary)
    (group,) = workload.optimizer(workload.model()).param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"], group["nesterov"]) == (0.1, 0.9, 1e-4, False)


def test_settings_out_of_range_are_refused(binary: Path) -> None:
    with pytest.raises(ConfigurationError, match="cifar10: records must be at least 1, not 0"):
        Cifar10(folder=str(binary), records=0)
