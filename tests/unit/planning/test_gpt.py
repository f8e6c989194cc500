"""A transformer by its sizes."""

from __future__ import annotations

import pytest

from quorate.core.errors import ConfigurationError
from quorate.planning.gpt import Speed, Transformer, model_of, transformer_from

TEXT = "gpt:hidden=12288,layers=96,heads=96,sequence=2048,vocabulary=51200"


def test_gpt_3() -> None:
    """175 billion parameters; and with layers computed again 96 B s l h² (1 + s / 6 h + V / 16 l h) operations."""
    sizes = transformer_from(f"{TEXT},recompute=1")
    assert sizes.numbers / 1e9 == pytest.approx(174.6, abs=0.05)
    s, layers, h, words = 2048, 96, 12288, 51200
    assert sizes.flops == pytest.approx(96 * s * layers * h**2 * (1 + s / (6 * h) + words / (16 * layers * h)))
    assert transformer_from(TEXT).flops < sizes.flops


def test_its_seconds_are_its_operations() -> None:
    sizes = transformer_from(f"{TEXT},recompute=1")
    model = model_of(sizes, 8, Speed(flops=1e14, efficiency=0.5), 8)
    assert sum(block.seconds for block in model.blocks) == pytest.approx(sizes.flops / 0.5e14)
    assert model.numbers == sizes.numbers
    plain = model_of(transformer_from(TEXT), 8, Speed(flops=1e14, efficiency=0.5), 8)
    assert sum(block.seconds for block in plain.blocks) == pytest.approx(transformer_from(TEXT).flops / 0.5e14)


def test_what_a_layer_keeps() -> None:
    """s h (34 + 5 a s / h) bytes (Korthikanti et al. 2022), on 8 workers s h (10 + 24 / 8 + 5 a s / 8 h)."""
    sizes = Transformer(hidden=6144, layers=2, heads=64, sequence=2048, vocabulary=1000)
    model = model_of(sizes, 1, Speed(flops=1e12), 8)
    sh, scores = 2048 * 6144, 5 * 64 * 2048 / 6144
    whole, on_eight = (model.stages(2, tensor)[0].saved for tensor in (1, 8))
    assert whole == pytest.approx(sh * (34 + scores))
    assert on_eight == pytest.approx(sh * (10 + 24 / 8 + scores / 8))


def test_what_moves_takes_time() -> None:
    slow, fast = (
        model_of(transformer_from(TEXT), 1, Speed(flops=1e14, memory_bandwidth=bandwidth), 1) for bandwidth in (1e12, 0)
    )
    block = fast.blocks[1]
    assert slow.blocks[1].forward - block.forward == pytest.approx(2 * block.saved / 1e12)
    assert slow.update * slow.numbers == pytest.approx(28 * slow.numbers / 1e12)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gpt:hidden=8", 'does not say layers, heads, sequence, vocabulary; write gpt:'),
        ("gpt:width=8", '"width=8" in "gpt:width=8": write gpt:hidden=H,'),
        (f"{TEXT},hidden=8", '"hidden=8" in'),
        ("gpt:hidden=1.5", '"hidden=1.5" in'),
        ("gpt:hidden=0", '"hidden=0" in'),
        ("gpt:hidden=", '"hidden=" in'),
        (TEXT.replace("heads=96", "heads=95"), "95 heads do not divide a hidden size of 12288"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        transformer_from(text)


def test_sparse_attention_computes_fewer_scores_and_keeps_none() -> None:
    text = "gpt:hidden=1024,layers=2,heads=16,sequence=65536,vocabulary=1000"
    dense, sparse = transformer_from(text), transformer_from(text, "longformer:width=3,block=128")
    assert sparse.scores == pytest.approx(4 * 128 * 65536, rel=0.01)
    assert dense.flops - sparse.flops == pytest.approx(3 * 2 * 4 * (65536**2 - sparse.scores) * 1024)
    models = [model_of(sizes, 1, Speed(flops=1e14), 1) for sizes in (dense, sparse)]
    saved = [model.stages(1)[0].saved for model in models]
    assert saved[1] == pytest.approx(2 * 34 * 65536 * 1024)
    assert saved[0] - saved[1] == pytest.approx(2 * 5 * 16 * 65536**2)
    assert sum(block.seconds for block in models[1].blocks) == pytest.approx(sparse.flops / 0.5e14)
