"""Codecs, which compress vectors: one file per codec, each registered under one name; pure, without a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core.registry import Registry

if TYPE_CHECKING:
    from quorate.core.codec import Codec

codecs: Registry[type[Codec]] = Registry(
    "codec",
    {
        "atomo": "quorate.codecs.atomo:Atomo",
        "blocks": "quorate.codecs.blocks:Blocks",
        "chunked-top-k": "quorate.codecs.chunked_top_k:ChunkedTopK",
        "demo": "quorate.codecs.demo:DeMo",
        "dgc": "quorate.codecs.dgc:DGC",
        "fp8": "quorate.codecs.fp8:FP8",
        "half": "quorate.codecs.half:Half",
        "mask": "quorate.codecs.mask:Mask",
        "natural": "quorate.codecs.natural:Natural",
        "one-bit": "quorate.codecs.one_bit:OneBit",
        "qsgd": "quorate.codecs.qsgd:QSGD",
        "random-k": "quorate.codecs.random_k:RandomK",
        "sign": "quorate.codecs.sign:Sign",
        "terngrad": "quorate.codecs.terngrad:TernGrad",
        "threshold": "quorate.codecs.threshold:Threshold",
        "tiled-top-k": "quorate.codecs.tiled_top_k:TiledTopK",
        "top-k": "quorate.codecs.top_k:TopK",
    },
)
register = codecs.register
