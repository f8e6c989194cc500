"""Packed files: the same bits come back, sizes follow from entropies, and damaged files are refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from quorate.core.errors import CheckpointError
from quorate.replica.groups import clustered, shared
from quorate.shrink.packed import pack, plain_tensors, unpack
from tests.support.scene import net


def pruned(count: int = 20_000, density: float = 0.1, groups: int = 16) -> Tensor:
    """A pruned weight whose numbers share values."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count // 100, 100, generator=generator)
    kept = torch.rand(x.shape, generator=generator) < density
    return shared(*clustered(x * kept, groups))


def far() -> Tensor:
    """Numbers with gaps around and above 255."""
    x = torch.zeros(5000)
    x[torch.tensor([0, 255, 256, 511, 1022, 4999])] = torch.randn(6, generator=torch.Generator().manual_seed(0))
    return x


TENSORS = {
    "dense": torch.randn(30, 20, generator=torch.Generator().manual_seed(0)),
    "pruned and shared": pruned(),
    "pruned": torch.randn(1000, generator=torch.Generator().manual_seed(0)) * (torch.arange(1000) % 9 == 0),
    "shared": pruned(density=1.1, groups=255),
    "far": far(),
    "odd numbers": torch.tensor([math.nan, -0.0, 0.0, math.inf]),
    "doubles": torch.randn(5, dtype=torch.float64),
    "halves": torch.randn(7, 3).bfloat16(),
    "counters": torch.arange(5),
    "flags": torch.tensor([True, False]),
    "a scalar": torch.tensor(3.0),
    "nothing": torch.zeros(0, 3),
    "zeros": torch.zeros(100, 10),
    "not contiguous": torch.randn(4, 6).t(),
}


def is_same(x: Tensor, y: Tensor) -> bool:
    """Whether dtype, shape and all bits are equal."""
    bits = [z.contiguous().reshape(-1).view(torch.uint8) for z in (x, y)]
    return x.dtype == y.dtype and x.shape == y.shape and torch.equal(*bits)


def test_the_same_bits_come_back() -> None:
    packed = pack(TENSORS, {"format": "pt", "of": "a test"})
    tensors, metadata = unpack(packed.data)
    assert metadata == {"format": "pt", "of": "a test"} and tensors.keys() == TENSORS.keys()
    assert not [name for name, x in TENSORS.items() if not is_same(x, tensors[name])]


def test_the_size_is_that_of_the_entropy() -> None:
    """Within 2 % of the bound: gaps of a mask, indices of groups, and the table of values."""
    x = pruned(200_000)
    stages = pack({"x": x}).stages[0]
    kept = x[x != 0]
    density = len(kept) / x.numel()
    bits_of_mask = -(density * math.log2(density) + (1 - density) * math.log2(1 - density)) * x.numel()
    shares = torch.unique(kept, return_counts=True)[1].double() / len(kept)
    bits_of_values = -float((shares * shares.log2()).sum()) * len(kept)
    bound = (bits_of_mask + bits_of_values) / 8 + 16 * 4
    assert bound < stages.coded < 1.03 * bound
    assert (stages.numbers, stages.kept, stages.values) == (x.numel(), len(kept), 16)
    assert stages.dense == 4 * x.numel() > stages.pruned > stages.shared > stages.coded


def test_a_clustered_model_becomes_a_plain_one() -> None:
    from quorate.shrink.cluster import cluster

    model, plain = net(6, 8, 3), net(6, 8, 3, seed=1)
    cluster(model, 4)
    tensors = unpack(pack(model.state_dict()).data)[0]
    plain.load_state_dict(tensors)
    x = torch.randn(5, 6)
    assert torch.equal(plain(x), model(x)) and plain_tensors(tensors) == tensors


def test_damage_is_refused_in_one_sentence() -> None:
    data = pack({"x": pruned(2000), "y": torch.randn(9)}).data
    for cut in (0, 5, 100, len(data) - 1):
        with pytest.raises(CheckpointError, match="model.bin is no packed file, or it is cut short"):
            unpack(data[:cut], "model.bin")
    for place in range(len(data) - 60, len(data)):
        changed = bytearray(data)
        changed[place] ^= 4
        with pytest.raises(CheckpointError, match="is damaged: its tensors have another checksum"):
            unpack(bytes(changed))


def test_tensors_that_no_packer_writes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a checksum that fits, whatever the bytes: an error that is a sentence, or tensors."""
    monkeypatch.setattr("quorate.shrink.packed._checksum", lambda blobs: 0)
    data = pack({"x": pruned(400)}).data
    start, refused = 8 + int.from_bytes(data[:8], "little"), list[str]()
    for place in range(start, len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 + place % 255
        try:
            unpack(bytes(changed))
        except CheckpointError as error:
            refused.append(str(error))
    assert len(refused) > 0.3 * (len(data) - start) and "\n" not in "".join(refused)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(CheckpointError, match="x is of torch.complex64"):
        pack({"x": torch.zeros(2, dtype=torch.complex64)})


def test_groups_without_a_value_are_refused() -> None:
    state = {"fc.weight_values": torch.ones(2), "fc.weight_groups": torch.full((2, 2), 3, dtype=torch.uint8)}
    with pytest.raises(CheckpointError, match="has a group of which"):
        pack(state)
