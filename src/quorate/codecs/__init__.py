"""How a vector is written small: one file per codec, each known by one name; pure, knows no worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core.registry import Registry

if TYPE_CHECKING:
    from quorate.core.codec import Codec

codecs: Registry[type[Codec]] = Registry(
    "codec",
    {
        "half": "quorate.codecs.half:Half",
        "top-k": "quorate.codecs.top_k:TopK",
    },
)
register = codecs.register
