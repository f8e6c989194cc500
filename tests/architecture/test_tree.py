"""The reader itself: a ban that can be walked around is no ban."""

from __future__ import annotations

import pytest

from tests.architecture.tree import PACKAGE, Module, uses


@pytest.mark.parametrize(
    "source",
    [
        "import torch.distributed",
        "import torch.distributed as dist",
        "from torch import distributed",
        "from torch import distributed as dist",
        "from torch.distributed import all_reduce",
        "from torch.distributed.nn import functional",
        "import torch\ntorch.distributed.all_reduce(x)",
        "import torch as t\nt.distributed.all_reduce(x)",
        "def f():\n    import torch.distributed",
    ],
)
def test_every_way_to_name_it_is_seen(source: str) -> None:
    assert uses(Module(PACKAGE / "here.py", source), "torch.distributed")


@pytest.mark.parametrize(
    "source", ["import torch", "import torch.distributions", "x.torch.distributed", "distributed()"]
)
def test_other_names_are_left_alone(source: str) -> None:
    assert not uses(Module(PACKAGE / "here.py", source), "torch.distributed")
