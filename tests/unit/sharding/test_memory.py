"""Bytes that a worker holds of a model in shards, by the formulas."""

from __future__ import annotations

import json

import pytest

from quorate.sharding.memory import (
    MODES,
    VECTORS,
    Mode,
    Model,
    Size,
    by_formula,
    held,
    held_between_replicas,
    numbers_sent,
)
from quorate.strategies import strategies

PSI = 1 << 20


def size(rows: int = 1024, block: str = "", *, width: int = 8, gathered: int = 4, **others: object) -> Size:
    """In float32, under Adam."""
    numbers = rows * width
    values: dict[str, object] = {"kept_like": 8 * numbers, **others}
    return Size(
        numbers=numbers, rows=rows, bytes=4 * numbers, gathered_bytes=gathered * numbers, block=block, **values,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("zero", "wanted"), [(0, 16 * PSI), (1, 4 * PSI + 12 * PSI / 64), (2, 2 * PSI + 14 * PSI / 64), (3, 16 * PSI / 64)]
)
def test_the_paper_in_mixed_precision(zero: Mode, wanted: float) -> None:
    """Equations of section 3: 2 bytes of parameters, 2 of gradients, and 12 of copies and what Adam keeps."""
    mixed = Size(numbers=PSI, rows=PSI, bytes=2 * PSI, gathered_bytes=2 * PSI, kept_like=12 * PSI)
    assert by_formula(Model(sizes=[mixed]), zero, 64) == wanted


def test_in_float32() -> None:
    model = Model(sizes=[size(1024, "a"), size(1024, "b")])
    numbers = 2 * 1024 * 8
    assert [by_formula(model, zero, 4) / numbers for zero in MODES] == [16, 10, 7, 4]
    assert [held(model, zero, 4).between_steps / numbers for zero in MODES] == [16, 4, 4, 4]


def test_alone_all_modes_are_one() -> None:
    model = Model(sizes=[size()], buffers=10, activations=7)
    by_mode = {held(model, zero, 1) for zero in MODES}
    assert len(by_mode) == 1
    (only,) = by_mode
    assert (only.parameters, only.gradients, only.optimizer) == (4 * 8192 + 10, 4 * 8192, 8 * 8192)
    assert only.total == 16 * 8192 + 17


def test_what_is_gathered() -> None:
    model = Model(sizes=[size(16), size(64, "a"), size(256, "b"), size(128, "c")])
    each = 8 * 4
    assert held(model, 1, 2).gathered == held(model, 2, 2).gathered == 464 * each
    assert held(model, 3, 2).gathered == (16 + 256 + 128) * each, "what is in no block, and the two largest"
    assert held(model, 0, 2).gathered == 0
    assert held(model, 1, 4).exchanged == (256 + 256 + 64) * each, "whole, packed, and a piece of it"
    assert held(model, 3, 4).exchanged == (256 + 256 + 64 + 256) * each


def test_in_half_precision_what_is_gathered_is_half() -> None:
    model = Model(sizes=[size(64, "a", gathered=2), size(64, "b", gathered=2)])
    assert held(model, 1, 2).gathered == 128 * 8 * 2
    assert held(model, 1, 2).exchanged == 64 * 8 * (2 + 4) + 32 * 8 * 4, "gradients are packed, and kept, in float32"


def test_rows_are_rounded_up_and_other_state_is_whole() -> None:
    on_worker = held(Model(sizes=[size(7, width=3, kept_apart=4)], buffers=5), 3, 4)
    assert (on_worker.parameters, on_worker.gradients, on_worker.optimizer) == (2 * 3 * 4 + 5, 2 * 3 * 4, 2 * 3 * 8 + 4)
    single = Size(numbers=1, rows=1, bytes=4, gathered_bytes=4)
    assert held(Model(sizes=[single]), 3, 4).parameters == 4


def test_what_is_frozen_has_no_gradient() -> None:
    model = Model(sizes=[size(64, "a"), size(64, "b", is_trained=False, kept_like=0)])
    on_worker = held(model, 3, 2)
    assert (on_worker.parameters, on_worker.gradients, on_worker.optimizer) == (64 * 8 * 4, 32 * 8 * 4, 32 * 8 * 8)


def test_numbers_that_are_sent() -> None:
    model = Model(sizes=[size(100, "a", width=1), size(60, width=1)])
    assert [numbers_sent(model, zero, 4) for zero in MODES] == [240, 240, 240, 315]
    assert numbers_sent(model, 3, 1) == 0
    frozen = Model(sizes=[size(100, "a", width=1, is_trained=False), size(60, width=1)])
    assert [numbers_sent(frozen, zero, 4) for zero in MODES] == [90, 165, 165, 240]


def test_a_model_survives_json() -> None:
    model = Model(sizes=[size(7, "a", is_trained=False), size()], buffers=3, activations=9)
    assert Model.from_json(json.loads(json.dumps(model.as_json()))) == model


def test_no_parameters() -> None:
    assert held(Model(sizes=[]), 3, 2).total == 0


@pytest.mark.parametrize("zero", MODES)
def test_offloaded(zero: Mode) -> None:
    """Nothing is lost between the device and the host; copies of pieces and of gradients come to it."""
    model = Model(sizes=[size(1024, "a"), size(512, "b", is_trained=False, kept_like=0)], buffers=10, activations=7)
    without, some, disk, everything = (held(model, zero, 4, how) for how in (None, "optimizer", "disk", "all"))
    cut = 4 if zero else 1
    trained, frozen = 4 * 1024 * 8 // cut, 4 * 512 * 8 // cut
    assert without.host == 0 and some == disk
    assert (some.parameters, some.gradients, some.optimizer) == (trained + frozen + 10, trained, 0)
    assert (some.host, everything.host) == (2 * trained + trained + trained, 2 * trained + trained + trained + frozen)
    assert (everything.between_steps, everything.gathered) == (10, without.gathered)
    assert some.total == without.total - without.optimizer


def test_16_bits_have_32_on_the_host() -> None:
    """A copy in 32 bits, and what Adam keeps in 32, where it would keep 16."""
    small = Size(numbers=64, rows=8, bytes=128, gathered_bytes=128, kept_like=256)
    assert held(Model(sizes=[small]), 3, 2, "optimizer").host == 32 * (2 + 2 + 4 + 8)
    assert held(Model(sizes=[small]), 3, 2, "all").host == 32 * (2 + 2 + 4 + 8)


MEASURED = {
    "ad-psgd": 5.00, "adaptive": 2.58, "adaptive-local-sgd": 4.05, "all-reduce": 1.00, "async-local-sgd": 5.57,
    "backup-workers": 1.48, "bounded-staleness": 2.16, "choco-sgd": 3.50, "d-psgd": 2.51, "d2": 6.51, "dana": 7.99,
    "dc-asgd": 13.50, "dcd-psgd": 3.50, "decoupled-diloco": 4.99, "diloco": 6.51, "downpour": 6.50,
    "eager-averaging": 4.71, "eager-majority": 1.99, "eager-solo": 2.01, "eamsgd": 5.99, "easgd": 5.99,
    "ecd-psgd": 4.78, "fed-avg": 4.00, "fed-buff": 5.99, "fed-opt": 6.10, "fed-prox": 4.01, "group-averaging": 5.01,
    "hierarchical-local-sgd": 2.00, "hogwild": 0.50, "local-sgd": 3.01, "muloco": 6.50, "noloco": 5.00,
    "one-bit-adam": 3.00, "one-bit-lamb": 3.00, "osgp": 4.49, "parameter-server": 5.49, "quorum": 1.49, "relay": 4.00,
    "robust": 4.27, "scaffold": 7.08, "sgp": 3.00, "slowmo": 5.00, "sparse-loco": 5.50, "ssp": 6.90,
    "streaming-diloco": 7.50, "symmetric-easgd": 3.00, "sync-backup": 6.99, "zero-one-adam": 3.00,
}  # fmt: skip
"""Vectors by `benchmarks/memory.py --strategies all --steps 12`: the greatest figure, or the usual one where workers
were late (`adaptive`, `backup-workers`, `bounded-staleness`, `decoupled-diloco`, `quorum`, and the eager ones)."""


def test_strategies_between_replicas_add_vectors_to_a_worker_alone() -> None:
    """Measured with one parameter of 2^26 float32 and SGD without momentum."""
    numbers = 1 << 26
    model = Model(sizes=[size(numbers, width=1, kept_like=0)])
    shares = {strategy: held_between_replicas(model, strategy) / (4 * numbers) for strategy in MEASURED}
    running = 1 / 8
    assert shares == pytest.approx({name: 1 + running + vectors for name, vectors in MEASURED.items()}, rel=0.05)


def test_memory_is_predicted_for_every_strategy_of_two_workers() -> None:
    of_more_workers = {"detox", "draco", "gradient-coding"}
    of_the_package = {name for name in strategies.names() if strategies.get(name).__module__.startswith("quorate.")}
    assert of_the_package - of_more_workers == set(VECTORS)
    assert set(VECTORS) - set(MEASURED) == {"auto", "post-local-sgd"}, "they change to local steps later"


def test_quorums_copy_gradients_that_are_small_or_enter_a_momentum() -> None:
    """A contribution is the gradient itself, or one vector more."""
    for numbers, kept_like, copies in ((1 << 26, 0, 0), (1 << 26, 4, 1), (1 << 20, 0, 1)):
        model = Model(sizes=[size(numbers, width=1, kept_like=kept_like)])
        more = held_between_replicas(model, "eager-solo") - held_between_replicas(model, "all-reduce")
        assert more == (1 + copies) * 4 * numbers
