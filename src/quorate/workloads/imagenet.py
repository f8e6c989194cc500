"""Photographs in a thousand classes, with the ResNet-50 of the published table, or SqueezeNet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from quorate.core.draws import mixed
from quorate.core.errors import ConfigurationError
from quorate.core.installed import missing_extra
from quorate.core.workload import Imbalance
from quorate.workloads.drawing import drawn
from quorate.workloads.labelled_images import Images, ImageWorkload

if TYPE_CHECKING:
    from PIL import Image

OUTPUTS = 1001
"""The thousand classes of ImageNet, after one for the background."""
SIZES = (64, 224)
"""The least and the greatest side of an image."""

MEANS = (0.485, 0.456, 0.406)
DEVIATIONS = (0.229, 0.224, 0.225)
"""The usual means and deviations of red, green and blue, pixels from 0 to 1."""

CHOICES = {"images": ("folder", "cliparts", "generated"), "network": ("resnet-50", "squeezenet")}
"""The values of settings that are names."""

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
CLIPARTS = "/usr/share/openclipart/png"
"""The folder of Debian's package openclipart-png."""
CLIPART_CLASSES = 22
TESTED_TENTH = 10
"""One image in this many is for testing, where the folder is not divided."""

AREAS = (0.08, 1.0)
"""The least and the greatest share of an image that a crop keeps (Szegedy et al., CVPR 2015, section 6)."""
SHAPES = (3 / 4, 4 / 3)
"""The least and the greatest ratio of a crop's width to its height."""
CENTRE = 224 / 256
"""The share of the shorter side that a test image keeps."""
GENERATED = 1280
"""The number of generated images."""

Box = tuple[float, float, float, float]
"""Left, upper, right and lower side of a crop, in pixels of the image."""


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    """Images of files, decoded when they are fetched: cropped, mirrored and of one size."""

    def __init__(self, files: Sequence[LabelledFile], size: int, seed: int | None) -> None:
        self._files, self._size, self._seed = files, size, seed
        self._means = torch.tensor(MEANS).view(3, 1, 1)
        self._deviations = torch.tensor(DEVIATIONS).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """An image (3, size, size), normalized, and its label (); the same whenever it is fetched alone."""
        images, labels = self.__getitems__([index])
        return images[0], labels[0]

    def __getitems__(self, indices: Sequence[int]) -> Images:
        """A batch, fetched as a whole. With a seed, crops are drawn from the seed and `indices`."""
        chosen = [self._files[index] for index in indices]
        random = None if self._seed is None else torch.Generator().manual_seed(mixed(self._seed, *indices))
        pixels = torch.stack([_pixels(file.path, self._size, random) for file in chosen])
        labels = torch.tensor([file.label for file in chosen])
        return Images((pixels / 255 - self._means) / self._deviations, labels)


class GeneratedPictures(Dataset[tuple[Tensor, Tensor]]):
    """Normal noise with random labels: images of the right size, from which nothing can be learned."""

    def __init__(self, count: int, size: int, classes: int, seed: int) -> None:
        self._count, self._size, self._classes, self._seed = count, size, classes, seed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """An image (3, size, size) and a label ()."""
        if not 0 <= index < self._count:
            raise IndexError(index)
        random = torch.Generator().manual_seed(mixed(self._seed, index))
        label = torch.randint(1, self._classes, (), generator=random)
        return torch.randn(3, self._size, self._size, generator=random), label


@dataclass(frozen=True, kw_only=True)
class ImageNet(ImageWorkload):
    """ResNet-50 (25,559,081 parameters), or SqueezeNet 1.0, on photographs from a folder of yours.

    `path` has a folder for each class, or folders `train` and `val` (or `test`) with a folder for each class. Training
    images are cropped at random, 8 to 100 % of their area, and half of them are mirrored; test images keep their
    centre. The crops depend on `seed` and on the images of a batch only, as those of cifar10. Loader processes decode
    the images, `decoders` for each worker.

    Without photographs, `images` "cliparts" takes the drawings of Debian's package openclipart-png (22 classes).
    "generated" takes noise with random labels, which is good for measuring speed only: nothing can be learned from it.

    Raises `ConfigurationError` for settings out of range, and where a folder is not passed or has no images. Raises
    `MissingExtra` without Pillow.
    """

    name: ClassVar[str] = "imagenet"
    batch_size: ClassVar[int] = 32
    learning_rate: ClassVar[float] = 0.0125
    epochs: ClassVar[int] = 90
    headline: ClassVar[str] = "top1"
    higher_is_better: ClassVar[bool] = True
    baseline: ClassVar[str] = "0.001, one of 1,000 equal classes"
    cost: ClassVar[str] = "8 s at 224 pixels, 0.6 s at 64 (25,559,081 parameters)"
    imbalance: ClassVar[Imbalance] = "injected"

    images: Literal["folder", "cliparts", "generated"] = "folder"
    """Images: those of `path`, Debian's cliparts, or noise, from which nothing can be learned."""
    path: str = ""
    """Folder of the images. Required, but for cliparts, whose folder is by default that of the Debian package."""
    network: Literal["resnet-50", "squeezenet"] = "resnet-50"
    """ResNet-50 with its stride in the 3x3 convolutions (version 1.5), or SqueezeNet 1.0 (1,248,937 parameters)."""
    size: int = 224
    """Side of the images in pixels, from 64 to 224."""
    augment: bool = True
    """Whether training images are cropped and mirrored at random; otherwise they keep their centre."""
    decoders: int = 2
    """Number of loader processes of each worker that decode images; 0 decodes them in the worker."""
    seed: int = 0
    """Seed of the crops, and of generated images; the model has its own seed."""

    def __post_init__(self) -> None:
        for setting, names in CHOICES.items():
            if getattr(self, setting) not in names:
                raise ConfigurationError(
                    f'imagenet: {setting} must be one of {", ".join(names)}, not "{getattr(self, setting)}"'
                )
        if not SIZES[0] <= self.size <= SIZES[1]:
            raise ConfigurationError(f"imagenet: size must be from {SIZES[0]} to {SIZES[1]}, not {self.size}")
        for setting in ("decoders", "seed"):
            if getattr(self, setting) < 0:
                raise ConfigurationError(f"imagenet: {setting} must be at least 0, not {getattr(self, setting)}")
        if self.images == "generated":
            return
        if find_spec("PIL") is None:
            raise missing_extra("imagenet needs Pillow", extra="images", package="Pillow")
        if self._folder is None:
            raise ConfigurationError(
                "imagenet needs a setting path=FOLDER with a folder of images for each class, or images=cliparts, or, "
                "for measuring speed, images=generated"
            )
        if not self._folder.is_dir():
            package = "; install Debian's package openclipart-png, or give path=" * (self.images == "cliparts")
            raise ConfigurationError(f"imagenet: there is no folder {self._folder}{package}")

    @property
    def _folder(self) -> Path | None:
        named = self.path or (CLIPARTS if self.images == "cliparts" else "")
        return Path(named).expanduser() if named else None

    @cached_property
    def _files(self) -> Folder:
        assert self._folder is not None
        return read_folder(self._folder)

    @property
    def loader_workers(self) -> int:
        """The number of loader processes of each worker."""
        return 0 if self.images == "generated" else self.decoders

    def dataset(self, *, train: bool) -> Dataset[tuple[Tensor, Tensor]]:
        """Pairs of an image (3, size, size) and a label (), from 1 on in the order of the classes' names."""
        if self.images == "generated":
            count = GENERATED if train else GENERATED // TESTED_TENTH
            return GeneratedPictures(count, self.size, OUTPUTS, mixed(self.seed, int(train)))
        files = self._files.training if train else self._files.test
        return Pictures(files, self.size, self.seed if train and self.augment else None)

    def model(self, seed: int = 0) -> nn.Module:
        """The network with 1,001 outputs."""
        make: Callable[[], nn.Module] = ResNet50 if self.network == "resnet-50" else SqueezeNet
        return drawn(make, seed)

    def describe(self) -> list[str]:
        sides = f"{self.size}x{self.size} pixels"
        if self.images == "generated":
            return [f"imagenet: {GENERATED} generated images of {sides}, for speed only: they teach nothing"]
        files = self._files
        return [
            f"imagenet: {len(files.training)} training and {len(files.test)} test images of {len(files.classes)} "
            f"classes in {self._folder}, at {sides}"
        ]


@dataclass(frozen=True)
class LabelledFile:
    """An image file and the number of its class, from 1 on."""

    path: Path
    label: int


@dataclass(frozen=True)
class Folder:
    """The images of a folder, in the order of their paths."""

    classes: tuple[str, ...]
    training: tuple[LabelledFile, ...]
    test: tuple[LabelledFile, ...]


def read_folder(folder: Path) -> Folder:
    """Return the images in `folder`; a class is a folder with all images in and below it.

    If there are folders `train` and `val` (or `test`), their folders are the classes. Otherwise one image in ten, by a
    hash of its path, is for testing. Raises `ConfigurationError` without images, and for too many or unknown classes.
    """
    test_folder = next((folder / name for name in ("val", "test") if (folder / name).is_dir()), None)
    is_divided = (folder / "train").is_dir() and test_folder is not None
    images = _images_by_class(folder / "train" if is_divided else folder)
    classes = tuple(sorted(images))
    if not classes:
        raise ConfigurationError(
            f"imagenet: there is no folder with images ({', '.join(SUFFIXES)}) in {folder}; each class is a folder"
        )
    if len(classes) >= OUTPUTS:
        raise ConfigurationError(f"imagenet: {folder} has {len(classes)} classes; at most {OUTPUTS - 1} fit the model")
    labels = {name: number for number, name in enumerate(classes, 1)}
    if test_folder is not None and is_divided:
        test_images = _images_by_class(test_folder)
        unknown = sorted(set(test_images) - set(classes))
        if unknown:
            raise ConfigurationError(f"imagenet: {folder / 'train'} lacks the class {unknown[0]} of {test_folder}")
        return Folder(classes, _labelled(images, labels), _labelled(test_images, labels))
    files = _labelled(images, labels)
    is_test = [_is_test(file.path.relative_to(folder)) for file in files]
    return Folder(
        classes,
        tuple(file for file, tests in zip(files, is_test, strict=True) if not tests),
        tuple(file for file, tests in zip(files, is_test, strict=True) if tests),
    )


def _is_test(path: Path) -> bool:
    return int(sha256(path.as_posix().encode()).hexdigest()[:8], 16) % TESTED_TENTH == 0


def _images_by_class(folder: Path) -> dict[str, list[Path]]:
    by_class = {
        inner.name: sorted(path for path in inner.rglob("*") if path.suffix.lower() in SUFFIXES)
        for inner in folder.iterdir()
        if inner.is_dir()
    }
    return {name: paths for name, paths in by_class.items() if paths}


def _labelled(images: dict[str, list[Path]], labels: dict[str, int]) -> tuple[LabelledFile, ...]:
    return tuple(LabelledFile(path, labels[name]) for name in sorted(images) for path in images[name])


def _pixels(path: Path, size: int, random: torch.Generator | None) -> Tensor:
    """Return a crop of the image at `path`, uint8 (3, size, size): of its centre, or drawn from `random`."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            box, is_mirrored = (centre(*image.size), False) if random is None else random_crop(*image.size, random)
            crop = _without_transparency(image).resize((size, size), Image.Resampling.BILINEAR, box, reducing_gap=2.0)
    except (OSError, ValueError, SyntaxError) as error:  # what Pillow raises for a damaged file
        raise ConfigurationError(f"imagenet: {path} cannot be read ({error})") from error
    pixels = torch.frombuffer(bytearray(crop.tobytes()), dtype=torch.uint8).view(size, size, 3).permute(2, 0, 1)
    return pixels.flip(2) if is_mirrored else pixels


def _without_transparency(image: Image.Image) -> Image.Image:
    """Return red, green and blue; what is transparent is white, as drawings are drawn on paper."""
    from PIL import Image

    if not image.has_transparency_data:
        return image.convert("RGB")
    layers = image.convert("RGBA")
    paper = Image.new("RGBA", layers.size, "white")
    return Image.alpha_composite(paper, layers).convert("RGB")


def centre(width: int, height: int) -> Box:
    """Return the square in the centre of an image of `width` x `height` pixels, 7/8 of its shorter side."""
    side = CENTRE * min(width, height)
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side


def random_crop(width: int, height: int, random: torch.Generator) -> tuple[Box, bool]:
    """Return a random part of an image of `width` x `height` pixels, and whether it is mirrored.

    Its area is a uniform share of the image's (`AREAS`), the logarithm of its shape is uniform (`SHAPES`). A crop that
    does not fit is cut to the image.
    """
    share, shape, x, y, mirrored = torch.rand(5, generator=random, dtype=torch.float64).tolist()
    area = width * height * (AREAS[0] + (AREAS[1] - AREAS[0]) * share)
    least, greatest = map(math.log, SHAPES)
    ratio = math.exp(least + (greatest - least) * shape)
    crop_width = min(float(width), math.sqrt(area * ratio))
    crop_height = min(float(height), math.sqrt(area / ratio))
    left, upper = (width - crop_width) * x, (height - crop_height) * y
    return (left, upper, left + crop_width, upper + crop_height), mirrored < 0.5


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution beside a shortcut (He et al., CVPR 2016, figure 5).

    The stride is in the 3x3 convolution (version 1.5). The last norm begins with a weight of 0 (Goyal et al. 2017).
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.third, self.third_norm = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        nn.init.zeros_(self.third_norm.weight)
        self.shortcut = (
            nn.Identity()
            if channels == 4 * width
            else nn.Sequential(nn.Conv2d(channels, 4 * width, 1, stride=stride, bias=False), nn.BatchNorm2d(4 * width))
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the activations of the block for `images` (n, channels, height, width)."""
        inner = torch.relu(self.first_norm(self.first(images)))
        inner = torch.relu(self.second_norm(self.second(inner)))
        return torch.relu(self.third_norm(self.third(inner)) + self.shortcut(images))


class ResNet50(nn.Module):
    """ResNet-50 version 1.5 (He et al., CVPR 2016, table 1): 25,559,081 parameters with 1,001 outputs."""

    def __init__(self, outputs: int = OUTPUTS) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks, channels = [], 64
        for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for place in range(depth):
                blocks.append(Bottleneck(channels, width, 2 if place == 0 and width > 64 else 1))
                channels = 4 * width
        self.blocks, self.output = nn.Sequential(*blocks), nn.Linear(channels, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Scores (n, outputs) of `images` (n, 3, height, width)."""
        scores: Tensor = self.output(self.blocks(self.stem(images)).mean(dim=(2, 3)))
        return scores


class Fire(nn.Module):
    """A 1x1 convolution that squeezes, then 1x1 and 3x3 ones side by side (Iandola et al. 2016, figure 1)."""

    def __init__(self, channels: int, squeezed: int, width: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.narrow, self.wide = nn.Conv2d(squeezed, width, 1), nn.Conv2d(squeezed, width, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the activations (n, 2·width, height, width) of the module."""
        squeezed = torch.relu(self.squeeze(images))
        return torch.relu(torch.cat([self.narrow(squeezed), self.wide(squeezed)], dim=1))


class SqueezeNet(nn.Module):
    """SqueezeNet 1.0 (Iandola et al. 2016, table 1), without dropout: 1,248,937 parameters with 1,001 outputs."""

    def __init__(self, outputs: int = OUTPUTS) -> None:
        super().__init__()
        pool = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.features = nn.Sequential(
            nn.Conv2d(3, 96, 7, stride=2), nn.ReLU(), pool, Fire(96, 16, 64), Fire(128, 16, 64), Fire(128, 32, 128),
            pool, Fire(256, 32, 128), Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), pool,
            Fire(512, 64, 256),
        )  # fmt: skip
        self.output = nn.Conv2d(512, outputs, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight)
                assert module.bias is not None
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.output.weight, std=0.01)

    def forward(self, images: Tensor) -> Tensor:
        """Scores (n, outputs) of `images` (n, 3, height, width)."""
        return torch.relu(self.output(self.features(images))).mean(dim=(2, 3))
