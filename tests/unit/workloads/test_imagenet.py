"""Photographs of folders: networks, crops, drawings on paper, decoding in loader processes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader

from quorate.core.errors import ConfigurationError, MissingExtra
from quorate.workloads import imagenet
from quorate.workloads.imagenet import DEVIATIONS, MEANS, ImageNet, ResNet50, SqueezeNet, centre, random_crop
from tests.support.workload_files import write_images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", 20, classes=3)


def made(folder: Path, **settings: Any) -> ImageNet:
    return ImageNet(**{"path": str(folder), "size": 64, "network": "squeezenet", **settings})


def pixels_of(image: Tensor) -> Tensor:
    return (image * torch.tensor(DEVIATIONS).view(3, 1, 1) + torch.tensor(MEANS).view(3, 1, 1)) * 255


@pytest.mark.parametrize(("network", "number"), [(ResNet50, 25_559_081), (SqueezeNet, 1_248_937)])
def test_networks_are_the_published_ones(network: type[nn.Module], number: int) -> None:
    net: Any = network()
    assert sum(parameter.numel() for parameter in net.parameters()) == number
    with torch.no_grad():
        assert net(torch.randn(2, 3, 64, 64)).shape == (2, 1001)
    if network is ResNet50:
        blocks = [block for block in net.blocks if block.second.stride == (2, 2)]
        assert len(blocks) == 3 and all(block.first.stride == (1, 1) for block in blocks)


def test_test_images_are_the_centre_of_the_file(tmp_path: Path) -> None:
    assert centre(100, 80) == (15.0, 5.0, 85.0, 75.0)
    image = Image.new("RGB", (160, 80), "red")
    image.paste("blue", (43, 3, 117, 77))  # bilinear edges are soft
    for split in ("train", "val"):
        (tmp_path / split / "flag").mkdir(parents=True)
        image.save(tmp_path / split / "flag" / "1.png")
    pixels = pixels_of(made(tmp_path).dataset(train=False)[0][0])
    torch.testing.assert_close(pixels, torch.tensor([0.0, 0, 255]).view(3, 1, 1).expand(3, 64, 64), atol=1e-3, rtol=0)


def test_crops_are_within_the_image_and_of_the_published_sizes() -> None:
    random = torch.Generator().manual_seed(0)
    crops = [random_crop(320, 200, random) for _ in range(500)]
    for (left, upper, right, lower), _ in crops:
        assert 0 <= left < right <= 320 and 0 <= upper < lower <= 200
    areas = torch.tensor([(b[2] - b[0]) * (b[3] - b[1]) / (320 * 200) for b, _ in crops])
    shapes = torch.tensor([(b[2] - b[0]) / (b[3] - b[1]) for b, _ in crops])
    assert 0.07 < areas.min() < 0.12 and areas.max() > 0.7 and 0.4 < areas.mean() < 0.6
    assert shapes.min() > 0.74 and shapes.max() < 2.2
    assert 200 < sum(is_mirrored for _, is_mirrored in crops) < 300


def test_crops_are_drawn_from_the_batch(folder: Path) -> None:
    one, other = made(folder).dataset(train=True), made(folder).dataset(train=True)
    first = one.__getitems__([1, 2, 3]).images
    assert torch.equal(first, other.__getitems__([1, 2, 3]).images)
    assert not torch.equal(first[0], one.__getitems__([1, 3, 2]).images[0])
    assert not torch.equal(first, made(folder, seed=1).dataset(train=True).__getitems__([1, 2, 3]).images)
    plain = made(folder, augment=False).dataset(train=True)
    assert torch.equal(plain.__getitems__([1, 2]).images[0], plain[1][0])


def test_half_of_the_crops_are_mirrored(tmp_path: Path) -> None:
    (tmp_path / "flag").mkdir()
    image = Image.linear_gradient("L").rotate(90).convert("RGB")
    for place in range(30):
        image.save(tmp_path / "flag" / f"{place}.png")
    data: Any = made(tmp_path).dataset(train=True)
    images = data.__getitems__(range(len(data))).images
    is_mirrored = images[:, 0, :, 0].mean(1) > images[:, 0, :, -1].mean(1)
    assert 5 < int(is_mirrored.sum()) < len(data) - 5


def test_loader_processes_decode_the_same_images(folder: Path) -> None:
    workload = made(folder)
    assert workload.loader_workers == 2 and ImageNet(images="generated").loader_workers == 0
    data: Any = workload.dataset(train=True)
    ours, theirs = (
        next(iter(DataLoader(data, batch_size=4, collate_fn=workload.collate, num_workers=n))) for n in (0, 1)
    )
    assert torch.equal(ours.images, theirs.images) and torch.equal(ours.labels, theirs.labels)


def test_transparent_parts_of_drawings_are_white(tmp_path: Path) -> None:
    (tmp_path / "animals" / "birds").mkdir(parents=True)
    drawing = Image.new("RGBA", (80, 80), (0, 0, 0, 0))
    for place in range(30):
        drawing.save(tmp_path / "animals" / "birds" / f"{place}.png")
    workload = made(tmp_path, images="cliparts", augment=False)
    assert torch.allclose(pixels_of(workload.dataset(train=True)[0][0]), torch.tensor(255.0))
    assert "training and" in workload.describe()[0] and "of 1 classes" in workload.describe()[0]


def test_a_divided_folder_has_its_own_test_images(tmp_path: Path) -> None:
    write_images(tmp_path / "train", 4, classes=3)
    write_images(tmp_path / "val", 2, classes=2)
    workload = made(tmp_path)
    assert (len(workload.dataset(train=True)), len(workload.dataset(train=False))) == (12, 4)
    assert [int(workload.dataset(train=False)[place][1]) for place in range(4)] == [1, 1, 2, 2]
    write_images(tmp_path / "val", 1, classes=4)
    with pytest.raises(ConfigurationError, match="train lacks the class class 3 of .*val"):
        made(tmp_path).dataset(train=True)


def test_generated_images_say_that_they_teach_nothing() -> None:
    workload = ImageNet(images="generated", size=64)
    image, label = workload.dataset(train=True)[7]
    assert image.shape == (3, 64, 64) and 1 <= int(label) <= 1000
    assert torch.equal(image, ImageNet(images="generated", size=64).dataset(train=True)[7][0])
    assert not torch.equal(image, workload.dataset(train=False)[7][0])
    assert "generated images of 64x64 pixels, for speed only: they teach nothing" in workload.describe()[0]


def test_what_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {},
            "needs a setting path=FOLDER with a folder of images for each class, or images=cliparts, or, for measuring",
        ),
        ({"path": str(tmp_path / "no")}, "imagenet: there is no folder .*no$"),
        ({"path": str(tmp_path / "no"), "images": "cliparts"}, "no; install Debian's package openclipart-png, or give"),
        ({"path": str(folder), "size": 32}, "size must be from 64 to 224, not 32"),
        ({"path": str(folder), "decoders": -1}, "decoders must be at least 0, not -1"),
        ({"path": str(folder), "network": "vgg"}, 'network must be one of resnet-50, squeezenet, not "vgg"'),
    ]
    for settings, words in cases:
        with pytest.raises(ConfigurationError, match=words):
            ImageNet(**settings)
    with pytest.raises(ConfigurationError, match=r"there is no folder with images \(.jpg, .* each class is a folder"):
        made(folder / "class 1").dataset(train=True)
    (damaged,) = (path for path in folder.rglob("10.png") if path.parent.name == "class 1")
    damaged.write_bytes(b"no image")
    data = made(folder, augment=False).dataset(train=True)
    with pytest.raises(ConfigurationError, match=r"imagenet: .*class 1.10.png cannot be read"):
        [data[place] for place in range(len(data))]
    monkeypatch.setattr(imagenet, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="imagenet needs Pillow; install it with: pip install"):
        made(folder)
