"""CIFAR-10 from its published files: both versions, damage, crops; and no pickle is ever executed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from quorate.core.errors import ConfigurationError
from quorate.workloads.cifar10 import pickled
from quorate.workloads.cifar10.crops import augmented
from quorate.workloads.cifar10.workload import DEVIATIONS, MEANS, Cifar10
from tests.support.workload_files import (
    cifar10_images,
    pickled_by_python2,
    write_cifar10_binary,
    write_cifar10_python,
)

RECORDS = 7


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    return write_cifar10_binary(tmp_path / "binary", RECORDS)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return write_cifar10_python(tmp_path / "python", RECORDS)


def made(folder: Path, **settings: Any) -> Cifar10:
    return Cifar10(folder=str(folder), records=RECORDS, **settings)


def everything(workload: Cifar10, *, train: bool) -> tuple[Tensor, Tensor]:
    data = workload.dataset(train=train)
    return data.__getitems__(range(len(data)))


@pytest.mark.parametrize("train", [True, False])
def test_both_versions_give_what_was_published(binary: Path, python: Path, *, train: bool) -> None:
    files = [cifar10_images(RECORDS, place) for place in (range(5) if train else [5])]
    pixels = np.concatenate([images for images, _ in files]).reshape(-1, 3, 32, 32) / 255
    means, deviations = (np.array(each).reshape(3, 1, 1) for each in (MEANS, DEVIATIONS))
    for folder in (binary, python):
        images, labels = everything(made(folder, augment=False), train=train)
        assert images.dtype == torch.float32 and images.shape == ((5 if train else 1) * RECORDS, 3, 32, 32)
        torch.testing.assert_close(images.double(), torch.from_numpy((pixels - means) / deviations), atol=1e-5, rtol=0)
        assert labels.tolist() == np.concatenate([labels for _, labels in files]).tolist()


def test_the_folder_of_the_archive_is_found(tmp_path: Path) -> None:
    write_cifar10_python(tmp_path / "one" / "cifar-10-batches-py", RECORDS)
    write_cifar10_binary(tmp_path / "two" / "cifar-10-batches-bin", RECORDS)
    ours, theirs = (made(tmp_path / name, augment=False) for name in ("one", "two"))
    assert torch.equal(everything(ours, train=False)[0], everything(theirs, train=False)[0])
    assert "python version" in ours.describe()[0] and "binary version" in theirs.describe()[0]


def test_what_lies_where_it_should_not(tmp_path: Path, binary: Path) -> None:
    cases: list[tuple[str, str]] = [
        ("", r"cifar10 needs a setting folder=..., where the CIFAR-10 binary or python version, unpacked, lies"),
        (str(tmp_path / "nowhere"), "there is no folder .*nowhere; it should hold the CIFAR-10 binary or python"),
        (str(tmp_path), "has neither data_batch_1.bin, as the binary version, nor data_batch_1, as the python"),
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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "was not read: it is damaged or cut off"),
        (b"no pickle at all", "was not read"),
        (pickle.dumps([1, 2], protocol=2), 'no array "data" of 7 x 3072 bytes'),
        (pickle.dumps({"labels": [0] * RECORDS}, protocol=2), 'no array "data"'),
        (pickled_by_python2(np.zeros((6, 3072), np.uint8), np.zeros(6, np.uint8)), 'no array "data" of 7 x 3072'),
        (pickled_by_python2(np.zeros((7, 3072), np.uint8), np.zeros(6, np.uint8)), 'no list "labels" of 7 small'),
        (pickled_by_python2(np.zeros((7, 3072), np.uint8), np.full(7, 10, np.uint8)), "the label 10 at image 0"),
        (pickle.dumps({"data": np.zeros((7, 3072))}, protocol=2), 'an array of the type "f8" in it, not of bytes'),
    ],
)
def test_a_python_file_that_is_something_else(python: Path, content: bytes, words: str) -> None:
    (python / "test_batch").write_bytes(content)
    with pytest.raises(ConfigurationError, match=words):
        made(python).dataset(train=False)


def test_every_cut_of_a_python_file_is_refused() -> None:
    whole = pickled_by_python2(*cifar10_images(2, 0))
    assert pickled.read(whole)["labels"] == cifar10_images(2, 0)[1].tolist()
    for end in [*range(200), *range(len(whole) - 200, len(whole))]:
        with pytest.raises(pickled.NotPlainData):
            pickled.read(whole[:end])


def test_what_python_3_wrote_is_read_too() -> None:
    pixels, labels = cifar10_images(3, 0)
    for array in (pixels, np.asfortranarray(pixels)):
        found = pickled.read(pickle.dumps({b"data": array, b"labels": labels.tolist(), b"n": None}, protocol=2))
        assert np.array_equal(found["data"], pixels)
        assert found["labels"] == labels.tolist() and found["n"] is None


class Canary:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("where", ["top", "key", "label", "array"])
def test_a_malicious_pickle_is_refused_and_never_runs(tmp_path: Path, python: Path, protocol: int, where: str) -> None:
    canary = Canary(tmp_path / "canary")
    contents: dict[str, object] = {
        "top": canary,
        "key": {b"data": np.zeros((RECORDS, 3072), np.uint8), b"labels": [0] * RECORDS, b"more": canary},
        "label": {b"labels": [canary] * RECORDS},
        "array": {b"data": np.array([canary], dtype=object)},
    }
    content = pickle.dumps(contents[where], protocol=protocol)
    (python / "test_batch").write_bytes(content)
    with pytest.raises(ConfigurationError, match="test_batch was not read: it (names posix.mkdir|has)"):
        made(python).dataset(train=False)
    assert not canary.path.exists()
    pickle.loads(content)
    assert canary.path.exists()  # so it would have run


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02cnumpy\ndtype\nU\x02u1\x85R.",  # arguments that dtype does not get from numpy
        b"\x80\x02cnumpy\nndarray\n)R.",
        b"\x80\x02cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R.",
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n}K\x00\x85U\x01b\x87R.",
        b"\x80\x02}}b.",
        b"\x80\x02]K\x01u.",
        b"\x80\x02K\x01a.",
        b"\x80\x02h\x05.",
        b"\x80\x02K\x01K\x02.",
        b"\x80\x02}(]K\x01u.",
        b"\x80\x02e.",
        b"\x80\x02\x87.",
    ],
)
def test_instructions_that_make_no_sense_are_refused(content: bytes) -> None:
    with pytest.raises(pickled.NotPlainData):
        pickled.read(content)


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


def test_bytes_that_look_like_odd_escapes_are_refused_without_a_warning() -> None:
    """As of an archive whose date happens to be such a byte; warnings are errors here."""
    with pytest.raises(pickled.NotPlainData, match="which plain data do not need"):
        pickled.read(b"c\\q\n\n.")
