"""The published regression of eager-SGD: one linear layer, every step the same work, so that imbalance is injected."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset

from quorate.core.errors import ConfigurationError
from quorate.core.resources import cache_folder
from quorate.core.telling import tell
from quorate.core.workload import Imbalance
from quorate.workloads.points import Points, PointWorkload

HELD_OUT_SHARE = 8
"""One held-out point for so many training points, and at least one."""

Floats = NDArray[np.float32]

FORMAT = 1
"""Counted up when the same plane would give other rows, or another file."""

HEADER_BYTES = 4096
BLOCK_ROWS = 64
SHOWN_FROM_BYTES = 64 * 2**20
"""A smaller file is written without a word."""

CHECKED_ROWS = 16
"""So many rows, spread evenly, are drawn again and compared when a file is opened."""

WAIT_SECONDS = 600.0
"""How long another process may take to write the file."""

_POLL_SECONDS = 0.1
_OTHERWISE = 'data="counter" needs no file'


class PointDataset(Dataset[tuple[Tensor, Tensor]]):
    """Some rows of a plane, out of the mapped file (`points`) or drawn when they are asked for (None)."""

    def __init__(self, plane: Plane, rows: range, points: Points | None) -> None:
        self._plane = plane
        self._rows = rows
        self._points = points

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """The input (features,) and the target () of one point."""
        inputs, targets = self.__getitems__([index])
        return inputs[0], targets[0]

    def __getitems__(self, indices: Sequence[int]) -> Points:
        """The whole batch in one copy; torch's DataLoader asks so."""
        rows = [self._rows[index] for index in indices]
        if self._points is None:
            inputs, targets = self._plane.rows(rows)
            return Points(torch.from_numpy(inputs), torch.from_numpy(targets))
        wanted = torch.tensor(rows)
        return Points(self._points.inputs.index_select(0, wanted), self._points.targets.index_select(0, wanted))


@dataclass(frozen=True, kw_only=True)
class Hyperplane(PointWorkload):
    """Linear regression with 8,193 parameters on 32,768 points; all batches have equal cost.

    Model, number of points, the global batch of 2,048 (256 on each of 8 workers) and the 48 epochs are those of
    eager-SGD. The paper is Li et al., "Taming Unbalanced Training Workloads in Deep Learning with Partial Collective
    Operations", PPoPP 2020. The distribution of the points and the noise are our choice. The plane that fits the
    training points best has an expected squared error of noise² / (1 − features/points) on other points, which is 4.66.
    The published final loss is about 4.7.

    The first use writes 1.2 GB to the user's cache folder, which all workers of the machine then map into memory. With
    `data` "counter" no file is needed, the numbers are the same, and a batch costs about ten times as much.

    With a global batch of B from many more points plain SGD is stable below a learning rate of about
    1 / (1 + features/B): 0.03 for 256, 0.2 for 2,048.

    Raises `ConfigurationError` for settings out of range, and, when the data are asked for, where the file cannot be
    kept.
    """

    name: ClassVar[str] = "hyperplane"
    batch_size: ClassVar[int] = 256
    learning_rate: ClassVar[float] = 0.0125
    epochs: ClassVar[int] = 48
    headline: ClassVar[str] = "squared_error"
    higher_is_better: ClassVar[bool] = False
    baseline: ClassVar[str] = "about 8,200, a prediction of 0"
    cost: ClassVar[str] = "4 ms (8,193 parameters)"
    imbalance: ClassVar[Imbalance] = "injected"

    points: int = 32_768
    """Number of training points; one eighth as many are held out in addition."""
    features: int = 8192
    """Number of inputs per point."""
    noise: float = 1.87
    """Standard deviation of the noise in the targets."""
    seed: int = 0
    """Seed of the data; the model has its own seed."""
    data: Literal["file", "counter"] = "file"
    """Whether points come from a file that is written once, or are generated on every access."""

    def __post_init__(self) -> None:
        for setting, least in {"points": 1, "features": 1, "noise": 0, "seed": 0}.items():
            if not getattr(self, setting) >= least:
                raise ConfigurationError(
                    f"hyperplane: {setting} must be at least {least}, not {getattr(self, setting)}"
                )
        if self.seed >= 2**64:
            raise ConfigurationError(f"hyperplane: seed must be below 2**64, not {self.seed}")
        if self.data not in ("file", "counter"):
            raise ConfigurationError(f'hyperplane: data must be "file" or "counter", not "{self.data}"')

    @property
    def _rows(self) -> int:
        """Training points first, then those held out."""
        return self.points + max(1, self.points // HELD_OUT_SHARE)

    @cached_property
    def _plane(self) -> Plane:
        return Plane(features=self.features, noise=self.noise, seed=self.seed)

    @cached_property
    def _points(self) -> Points | None:
        if self.data == "counter":
            return None
        inputs, targets = opened(self._plane, self._rows)
        return Points(torch.from_numpy(inputs), torch.from_numpy(targets))

    def dataset(self, *, train: bool) -> PointDataset:
        """Pairs of an input (features,) and a target ()."""
        rows = range(self.points) if train else range(self.points, self._rows)
        return PointDataset(self._plane, rows, self._points)

    def model(self, seed: int = 0) -> nn.Module:
        """A linear map with a bias, all uniform between ±1/√features."""
        linear = nn.Linear(self.features, 1, device="meta").to_empty(device="cpu")
        random = torch.Generator().manual_seed(seed)
        bound = self.features**-0.5
        for parameter in linear.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=random)
        return linear

    def loss(self, model: nn.Module, batch: Points) -> Tensor:
        """The mean squared error."""
        return mse_loss(model(batch.inputs).squeeze(1), batch.targets)

    @torch.no_grad()
    def quality(self, model: nn.Module, batch: Points) -> dict[str, float]:
        """The sum of squared errors ("squared_error")."""
        errors = mse_loss(model(batch.inputs).squeeze(1), batch.targets, reduction="sum")
        return {"squared_error": float(errors), "examples": float(len(batch.targets))}

    def describe(self) -> list[str]:
        return [
            f"hyperplane: {self.points} training and {self._rows - self.points} held-out points of {self.features} "
            f"features, noise {self.noise:g}, seed {self.seed}, from {self.data}",
            f"{self.features + 1} parameters; least possible expected squared error {self.noise**2:.3g}",
        ]


@dataclass(frozen=True, kw_only=True)
class Plane:
    """y = w·x + b + noise, with standard normal w, b and x.

    Numbers are drawn from numpy's Philox, a generator that is a function of a key and a counter. The key is `seed`, and
    each row has 2¹⁹² counts to itself (the first row is the plane's). A row of 8,192 takes about 0.1 ms.
    """

    features: int
    noise: float
    """Standard deviation of the noise in the targets."""
    seed: int
    """From 0 to 2⁶⁴ − 1."""

    @cached_property
    def coefficients(self) -> Floats:
        """w and then b: (features + 1,)."""
        return _at(self.seed, 0).standard_normal(self.features + 1, dtype=np.float32)

    def draw(self, row: int, inputs: Floats) -> float:
        """Write x of `row` (from 0) into `inputs` (features,), and return y."""
        normal = _at(self.seed, row + 1)
        noise = self.noise * normal.standard_normal(dtype=np.float32)
        normal.standard_normal(out=inputs, dtype=np.float32)
        # Not a dot product: its bits may depend on the number of threads.
        exact = np.multiply(inputs, self.coefficients[:-1], dtype=np.float64).sum()
        return float(exact + self.coefficients[-1] + noise)

    def rows(self, numbers: list[int]) -> tuple[Floats, Floats]:
        """x (n, features) and y (n,) of these rows."""
        inputs = np.empty((len(numbers), self.features), np.float32)
        targets = np.array([self.draw(row, inputs[place]) for place, row in enumerate(numbers)], np.float32)
        return inputs, targets


class _Own(threading.local):
    """Every thread sets the counter of a generator of its own: one plane may be drawn from by several at once."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(key=0)


_OWN = _Own()


def _at(seed: int, era: int) -> np.random.Generator:
    """A generator that begins at the first count of the rows: setting the state takes 2 µs, a new Philox 15."""
    state: Any = _OWN.philox.state
    state["state"]["key"][:] = (seed, 0)
    state["state"]["counter"][:] = (0, 0, 0, era)
    state.update(buffer_pos=4, has_uint32=0, uinteger=0)  # nothing is left over from the row before
    _OWN.philox.state = state
    return np.random.Generator(_OWN.philox)


def opened(plane: Plane, rows: int) -> tuple[Floats, Floats]:
    """Inputs (rows, features) and targets (rows,), mapped from a file in the user's cache folder.

    All workers on this machine map the file, so that the points are in memory once. It has 4,096 bytes of header
    (JSON), then the inputs, then the targets, both float32, row by row. Where there is none it is written first: to a
    temporary name and renamed, under a lock, so that it is written once however many processes want it.

    What is written into the arrays stays in this process. Looked at are the file's length, its header, the targets'
    digest, and `CHECKED_ROWS` rows; a file that fails is written again. Raises `ConfigurationError` where the file can
    not be kept, or another process does not finish writing it within `WAIT_SECONDS`.
    """
    folder = cache_folder()
    if folder is None:
        raise ConfigurationError(f"hyperplane: there is no home for a cache folder; {_OTHERWISE}")
    path = folder / f"hyperplane-{_digest(_description(plane, rows))[:16]}.rows"
    try:
        arrays = _mapped(path, plane, rows)
        if arrays is None:
            folder.mkdir(parents=True, exist_ok=True)
            with _alone(path.with_suffix(".lock")):
                arrays = _mapped(path, plane, rows)  # perhaps another process has written it
                if arrays is None:
                    _write(path, plane, rows)
                    arrays = _mapped(path, plane, rows)
    except OSError as error:
        why = error.strerror or error
        raise ConfigurationError(f"hyperplane: {path} cannot be kept ({why}); {_OTHERWISE}") from error
    if arrays is None:
        raise ConfigurationError(f"hyperplane: {path} does not hold what was written to it; {_OTHERWISE}")
    return arrays


def _description(plane: Plane, rows: int) -> str:
    # Another numpy may draw other numbers from the same counts.
    return json.dumps([FORMAT, np.__version__, sys.byteorder, asdict(plane), rows])


def _mapped(path: Path, plane: Plane, rows: int) -> tuple[Floats, Floats] | None:
    """The arrays in the file; None where there is none, or it is not whole."""
    end_of_inputs = HEADER_BYTES + 4 * rows * plane.features
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != end_of_inputs + 4 * rows:
                return None
            header = file.read(HEADER_BYTES)
            # "c": changes stay in this process; torch will not take an array that can not be written to.
            inputs = np.memmap(file, np.float32, "c", HEADER_BYTES, (rows, plane.features))
            targets = np.memmap(file, np.float32, "c", end_of_inputs, (rows,))
    except FileNotFoundError:
        return None
    if header != _header(plane, rows, targets):
        return None
    drawn = np.unique(np.linspace(0, rows - 1, CHECKED_ROWS).astype(int)).tolist()
    is_whole = np.array_equal(plane.rows(drawn)[0], inputs[drawn])
    return (inputs, targets) if is_whole else None


def _header(plane: Plane, rows: int, targets: Floats) -> bytes:
    fields = {"rows": _description(plane, rows), "targets": _digest(targets.tobytes())}
    return json.dumps(fields).encode().ljust(HEADER_BYTES - 1) + b"\n"


def _digest(of: str | bytes) -> str:
    return hashlib.sha256(of.encode() if isinstance(of, str) else of).hexdigest()


def _write(path: Path, plane: Plane, rows: int) -> None:
    """Make the file, in about 7 s per gigabyte. Only one process at a time."""
    size = HEADER_BYTES + 4 * rows * (plane.features + 1)
    temporary = path.with_suffix(".part")  # what a writer that was killed has left is written over
    try:
        temporary.unlink(missing_ok=True)
        free = shutil.disk_usage(path.parent).free
        if free < size:
            raise ConfigurationError(
                f"hyperplane: the points take {size / 1e9:.2g} GB and {path.parent} has {free / 1e9:.2g} GB free; "
                f"{_OTHERWISE}"
            )
        with temporary.open("wb") as file:
            _fill(file, path, plane, rows)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _fill(file: BinaryIO, path: Path, plane: Plane, rows: int) -> None:
    is_shown = 4 * rows * plane.features >= SHOWN_FROM_BYTES
    if is_shown:
        tell(f"hyperplane: writing {4 * rows * plane.features / 1e9:.2g} GB to {path}, once\n")
    file.seek(HEADER_BYTES)
    targets = np.empty(rows, np.float32)
    tenths = 0
    for first in range(0, rows, BLOCK_ROWS):
        end = min(first + BLOCK_ROWS, rows)
        inputs, targets[first:end] = plane.rows(list(range(first, end)))
        file.write(inputs.data)
        if is_shown and end * 10 // rows > tenths:
            tenths = end * 10 // rows
            tell(f"hyperplane: {tenths}0 % written\n")
    file.write(targets.data)
    file.seek(0)
    file.write(_header(plane, rows, targets))


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock at `path`; the system lets go of it when its holder ends, however that ends."""
    with path.open("ab") as file:
        # Counted, and not by `time`: another process is waited for, which a virtual clock does not know.
        pause = threading.Event()
        for wait in range(round(WAIT_SECONDS / _POLL_SECONDS) + 1):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if wait == round(1 / _POLL_SECONDS):
                    tell("hyperplane: waiting for another process, which writes the points\n")
                pause.wait(_POLL_SECONDS)
            else:
                break
        else:
            raise ConfigurationError(
                f"hyperplane: another process has held {path} for {WAIT_SECONDS:g} s; {_OTHERWISE}"
            )
        yield  # closing the file lets go of the lock
