"""Copies between a device and its host are counted; host tensors lie in memory, or in mapped files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from quorate.core.errors import ConfigurationError
from quorate.sharding.bits import digest_of
from quorate.sharding.boundary import Boundary, HostMemory


def test_copies_are_made_and_counted() -> None:
    boundary, x = Boundary(), torch.arange(6.0)
    host, back = torch.empty(6), torch.empty(6, dtype=torch.float32)
    boundary.to_host(x, host)
    boundary.to_host(x[:2], host[:2])
    boundary.to_device(host, back)
    boundary.wait([x, back])
    assert torch.equal(back, x) and host.data_ptr() != x.data_ptr()
    assert (boundary.to_host_bytes, boundary.to_device_bytes) == (24 + 8, 24)


def test_files_are_mapped_and_have_no_name(tmp_path: Path) -> None:
    memory = HostMemory(tmp_path)
    x = memory.empty((3, 5), torch.float64).fill_(2.0)
    assert memory.holds(x) and memory.holds(x[1]) and not memory.holds(torch.empty(3))
    assert list(tmp_path.iterdir()) == []
    assert memory.kept(x, torch.float64) is x
    copied = memory.kept(torch.ones(4, dtype=torch.bfloat16), torch.float32)
    assert memory.holds(copied) and copied.tolist() == [1.0] * 4 and x.sum() == 30.0
    assert memory.empty((0, 3), torch.float32).shape == (0, 3)


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(
        ConfigurationError, match=r"needs 4,000 bytes in .*, which are not free: No space left on device;"
    ):
        HostMemory(tmp_path).empty((1000,), torch.float32)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex128])
@pytest.mark.parametrize("numel", [0, 1, 7, 1024, 5000])
def test_a_digest_sees_every_change(dtype: torch.dtype, numel: int) -> None:
    draw = torch.Generator().manual_seed(numel)
    x = torch.randn(numel, generator=draw).to(dtype)
    before = digest_of(x)
    assert torch.equal(before, digest_of(x.clone())) and before.shape == (4,)
    for place in {0, numel // 2, numel - 1} if numel else ():
        changed = x.clone()
        changed[place] = -changed[place]
        assert not torch.equal(before, digest_of(changed))
    if numel > 1:
        swapped = x.clone()
        swapped[[0, 1]] = swapped[[1, 0]]
        assert not torch.equal(before, digest_of(swapped))
        assert not torch.equal(before, digest_of(x.flip(0)))
        assert not torch.equal(before, digest_of(-x))
        assert torch.equal(digest_of(x[1:]), digest_of(x[1:].clone())), "where it begins does not matter"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_digest_sees_signs_that_change_in_every_other_row(dtype: torch.dtype) -> None:
    """Sums of words alone lose their uppermost bit, in pairs."""
    x = torch.randn(512, 512, generator=torch.Generator().manual_seed(1)).to(dtype)
    for chosen in (x[:, 1], x[::2], x[:, 1::2], x[1::4, 3::8]):
        before = digest_of(x)
        chosen.neg_()
        assert not torch.equal(before, digest_of(x))
