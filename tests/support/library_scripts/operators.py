"""torchvision's operators, declared where its build cannot load them: timm imports it, and calls none of them."""

from __future__ import annotations

import torch

_NAMES = ("nms", "qnms", "roi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d")

try:
    import torchvision  # noqa: F401
except (RuntimeError, AttributeError):
    for name in (*_NAMES, *(f"_{name}_backward" for name in _NAMES[2:])):
        torch.library.define(f"torchvision::{name}", "(Tensor x) -> Tensor")
