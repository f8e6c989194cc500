"""Waits for a GPU: a step has a few of them, and no more of them with more parameters, parts or layers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

import quorate
from tests.support.counted_networks import NETWORKS, WIDTH
from tests.support.counted_waits import Case, Counts, counted
from tests.support.on_gpu import GPU, IS_REAL, needs_gpu, run_on_gpu
from tests.support.processes import WorkersFailed
from tests.support.second_device import watching
from tests.world.test_offload import boundary_of

pytestmark = [
    pytest.mark.gpu,
    needs_gpu,
    pytest.mark.slow,
    pytest.mark.skipif(IS_REAL, reason="waits are counted by the device that stands in"),
]


def coded(compress: str, **settings: Any) -> Case:
    return Case(settings={"compress": compress, "dense_below": 0, **settings})


PAIR = {"shards": 2}


def divided(network: str, mesh: dict[str, int], *, more: dict[str, Any] | None = None, **how: Any) -> Case:
    return Case(network=network, mesh=mesh, divided=how, **(more or {}))


def between(strategy: str = "all-reduce", **settings: Any) -> Case:
    """Replicas in shards."""
    return Case(strategy, settings, size=4, mesh={"replicas": 2, **PAIR})


EVERY = {"sync_every": 1}
IN_TWO = {"sync_every": 2, "fragments": 2, "overlap": 0}


OFFLOADED = "the optimizer's step on the host"
GROUPS: dict[str, list[tuple[Case, int]]] = {
    "all-reduce": [
        (Case(), 1),
        (Case(adamw=True), 1),
        (Case(settings={"on_nonfinite": "skip"}), 1),
        (Case(settings={"on_nonfinite": "ignore"}), 1),
        (Case(settings={"on_death": "continue"}), 1),
    ],
    "local steps": [
        (Case("local-sgd", EVERY), 2),
        (Case("local-sgd", {**EVERY, "momentum": "average"}), 2),
        (Case("post-local-sgd", {**EVERY, "after": 0}), 2),
        (Case("slowmo", EVERY), 2),
        (Case("adaptive-local-sgd", {**EVERY, "most": 1}), 3),
        (Case("hierarchical-local-sgd", EVERY), 2),
        (Case("symmetric-easgd", EVERY), 2),
        *((Case(name, EVERY), 2) for name in ("fed-avg", "fed-prox", "fed-opt", "scaffold")),
        (Case("fed-avg", {**EVERY, "clip": 1.0}), 2),
    ],
    "outer steps": [
        (Case("diloco", EVERY), 3),
        (Case("diloco", {**EVERY, "outer_gain": "measured"}), 4),
        (Case("diloco", {**EVERY, "compress": "top-k", "dense_below": 0}), 4),
        (Case("sparse-loco", EVERY), 3),
        (Case("streaming-diloco", IN_TWO), 3),
    ],
    "shards": [
        *((divided("layers", PAIR, zero=zero), 1) for zero in (1, 2, 3)),
        (divided("layers", PAIR, zero=3, more={"adamw": True, "clips": True}), 1),
        (divided("layers", PAIR, more={"settings": {"on_nonfinite": "skip"}}), 1),
        (divided("layers", PAIR, more={"settings": {"shard_by": "tensors"}}), 1),
        (divided("words", PAIR), 1),
    ],
    "tensor": [
        (divided("pairs", {"tensor": 2}), 1),
        (divided("pairs", {"tensor": 2}, more={"adamw": True, "clips": True}), 1),
        (divided("words", {"tensor": 2}, tensor="tables"), 1),
        (divided("filters", {"tensor": 2}), 1),
        (divided("branches", {"tensor": 2}, tensor={}), 1),
        (divided("heads", {"tensor": 2}, tensor="sequence"), 1),
        (divided("ring", {"tensor": 2}, tensor="sequence"), 1),
    ],
    "stages": [
        (divided("layers", {"stages": 2}, microbatches=2), 1),
        (divided("layers", {"stages": 2}, microbatches=2, more={"by_schedule": True}), 1),
        (divided("layers", {"stages": 2}, microbatches=2, more={"by_schedule": True, "clips": True}), 1),
        (divided("tied", {"stages": 2}, microbatches=2), 1),
    ],
    "several axes": [
        (between(), 1),
        (divided("pairs", {"replicas": 2, "tensor": 2}, more={"size": 4}), 1),
        (divided("layers", {"replicas": 2, "stages": 2}, microbatches=2, more={"size": 4, "by_schedule": True}), 1),
        (divided("pairs", {"shards": 2, "tensor": 2}, more={"size": 4}), 1),
        (divided("layers", {"shards": 2, "stages": 2}, microbatches=2, more={"size": 4, "by_schedule": True}), 1),
    ],
    "replicas in shards": [
        (between("quorum", wait_for="all", grace=5.0), 2),
        (between("local-sgd", sync_every=1), 2),
        (between("diloco", sync_every=1), 3),
        (between(compress="power-sgd:start=0,min_rate=1", dense_below=0), 2),
    ],
    OFFLOADED: [
        (divided("layers", PAIR, offload="optimizer", more={"adamw": True}), 1),
        (divided("layers", PAIR, offload="all", more={"adamw": True}), 1),
    ],
    "through the host": [
        (Case(gpus="host"), 1),
        (Case(gpus="host", settings={"on_death": "continue"}), 1),
        (Case("quorum", gpus="host"), 2),
        (Case("quorum", gpus="host", adamw=True), 2),
    ],
    "another index": [(Case(index=3), 1), (Case(index=3, adamw=True), 1)],
    "another index through the host": [(Case(gpus="host", index=3), 1), (Case("quorum", gpus="host", index=3), 2)],
    "rounds, neighbours and servers": [
        (Case("eager-solo", gpus="host"), 2),
        (Case("eager-solo", gpus="host", adamw=True), 2),
        (Case("d-psgd", gpus="host"), 4),
        (Case("sgp", gpus="host"), 5),
        (Case("choco-sgd", gpus="host"), 4),
        (Case("relay", gpus="host"), 4),
        (Case("osgp", gpus="host"), 5),
        (Case("d2", gpus="host"), 5),
        (Case("ad-psgd", gpus="host"), 9),
        (Case("group-averaging", gpus="host"), 5),
        (Case("robust", gpus="host"), 1),
        (Case("easgd", gpus="host"), 3),
        (Case("parameter-server", gpus="host"), 9),
        (Case("dana", gpus="host"), 9),
        (Case("adaptive", gpus="host"), 2),
        (Case("eager-majority", gpus="host"), 2),
        (Case("eager-averaging", EVERY, gpus="host"), 2),
        (Case("bounded-staleness", gpus="host"), 2),
        (Case("backup-workers", gpus="host"), 2),
        (Case("dcd-psgd", gpus="host"), 4),
        (Case("ecd-psgd", gpus="host"), 4),
        (Case("eamsgd", EVERY, gpus="host"), 9),
        *((Case(name, gpus="host"), 9) for name in ("downpour", "dc-asgd", "ssp", "sync-backup")),
        (Case("async-local-sgd", EVERY, gpus="host"), 9),
        (Case("decoupled-diloco", IN_TWO, gpus="host"), 10),
    ],
    "codecs that add": [(coded(name), 1) for name in ("half", "random-k", "mask")],
    "power-sgd": [(coded("power-sgd:start=0,min_rate=1"), 2)],
    "other codecs": [
        (coded(name), 2)
        for name in ("top-k", "qsgd", "sign", "one-bit", "dgc", "natural", "terngrad", "fp8", "demo", "chunked-top-k")
    ],
    "codes of their own length": [(coded(name), 1) for name in ("threshold", "atomo")],
    "two phases": [(coded("qsgd", reduce="two-phase"), 1)],
    "reducers": [(Case(settings={"reduce": name}), 1) for name in ("ring", "tree", "halving-doubling", "adasum")],
    "rules": [(Case(settings={"reduce": f"{name}:f=0"}), 1) for name in ("median", "krum", "geometric-median")],
    "on_anomaly": [(Case(settings={"on_anomaly": "skip"}), 1)],
}
"""By group, trainings and how often a step may wait for the GPU."""


def told(counts: Counts) -> dict[str, int]:
    """By line, without the comparison of replicas after rounds 1, 2, 4, 8 and 16, which falls into any step."""
    return without_samples(counts.waits)


def without_samples(lines: Counter[str]) -> dict[str, int]:
    return {line: count for line, count in lines.items() if "observe/signatures.py" not in line}


def unasked(counts: Counts) -> int:
    """The number of waits but for questions that are repeated until a copy is there, as often as time allows."""
    return sum(count for line, count in told(counts).items() if "a question" not in line)


@pytest.mark.parametrize("group", GROUPS)
def test_waits_do_not_grow_with_a_model(group: str) -> None:
    cases, waits_for_others = GROUPS[group], group.startswith("rounds")
    for (case, most), (small, large) in zip(cases, counted([case for case, _ in cases]), strict=True):
        if not waits_for_others:  # the order of whose messages decides how often a step reads some
            assert unasked(small) == unasked(large), (case, told(small), told(large))
        limit = most * case.steps * (2 if waits_for_others else 1)  # a late worker is sent more messages
        assert sum(told(large).values()) <= limit, (case, told(large))
        assert not small.strange and not large.strange, case


@pytest.mark.parametrize("group", [group for group in GROUPS if group != OFFLOADED])
def test_copies_do_not_grow_with_a_model(group: str) -> None:
    """Between the host and a device, of gradients that fill less than one part."""
    cases, waits_for_others = GROUPS[group], group.startswith("rounds")
    counts_of = counted([case for case, _ in cases], part_bytes=None)
    for (case, most), (small, large) in zip(cases, counts_of, strict=True):
        before, after = without_samples(small.copies), without_samples(large.copies)
        if not waits_for_others:
            assert before == after, case
        limit = (2 * most + 3) * case.steps * (2 if waits_for_others else 1)  # a late worker takes several results
        assert sum(after.values()) <= limit, (case, after)


def test_layers_of_experts_do_not_wait() -> None:
    """Sizes of what workers send each other are those of the limits of experts."""
    ((small, large),) = counted([divided("experts", PAIR)], layers=(1, 4))
    assert unasked(small) == unasked(large) == 0, told(large)
    assert without_samples(small.copies) == without_samples(large.copies)


def test_a_layer_of_experts_without_limits_waits_once() -> None:
    """For the numbers of tokens of each expert, which are the sizes of what workers send each other."""
    case = divided("experts without limits", PAIR)
    ((small, large),) = counted([case], layers=(1, 4))
    assert unasked(small) == case.steps and unasked(large) == 4 * case.steps, told(large)
    assert sum(without_samples(large.copies).values()) <= 5 * case.steps


def backward_waits(layers: Sequence[int], world: Any) -> list[tuple[int, int, int]]:
    """For each number of layers the copies to the host that a backward pass waits for one by one, also in torch's own
    lines, and the bytes that go to the host: counted by Quorate, and those of the gradients."""
    counts = []
    for count in layers:
        model: Any = quorate.parallelize(NETWORKS["layers"].make(count).to(GPU), world.mesh(shards=2), offload="all")
        optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=1e-3), model)
        boundary = boundary_of(model)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.ones(4, WIDTH, device=GPU)).sum()
            before = boundary.to_host_bytes
            with watching() as events:
                loss.backward()
            sent = boundary.to_host_bytes - before
            optimizer.step()
        waits = sum(event.kind == "wait" and event.name == "copy to the host" for event in events)
        counts.append((waits, sent, sum(p.grad.to_local().nbytes for p in model.parameters())))
        optimizer.finish()
    return counts


def offloaded(offload: Any, world: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model: Any = quorate.parallelize(NETWORKS["layers"].make(3).to(GPU), world.mesh(shards=2), offload=offload)
    optimizer: Any = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=1e-2), model, on_nonfinite="skip")
    for step in range(4):
        optimizer.zero_grad()
        for number in range(2):  # of which the second adds to gradients on the host
            x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10 * step + number)).to(GPU)
            model(x / (0.0 if step == 2 and number == 1 else 1.0)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    optimizer.finish()
    return [p.detach().to_local().cpu() for p in model.parameters()]


def test_offload_of_all_makes_the_same_steps() -> None:
    ends = [run_on_gpu(2, partial(offloaded, offload), gpus="nccl") for offload in ("all", None)]
    for ours, wanted in zip(*ends, strict=True):
        assert all(p.isfinite().all() for p in wanted)
        torch.testing.assert_close(ours, wanted)


def test_gradients_that_go_to_the_host_are_not_waited_for_one_by_one() -> None:
    for small, large in run_on_gpu(2, partial(backward_waits, (2, 6)), gpus="nccl"):
        assert small[0] == large[0] == 0
        assert small[1] == small[2] and large[1] == large[2]


def asked_for_another(world: Any) -> None:
    network = NETWORKS["words"]
    model = quorate.parallelize(network.make(1).to(GPU), world.mesh(tensor=2), tensor={"tables.0": "embedding"})
    model(torch.full(network.shape, 2 * WIDTH, device=GPU))


def test_an_id_that_is_no_entry_is_refused_by_the_device() -> None:
    with pytest.raises(WorkersFailed, match="tables.0 has 32 entries, and was asked for another one"):
        run_on_gpu(2, asked_for_another, gpus="nccl")


CODES = ("draco", "detox", "gradient-coding")


@pytest.mark.parametrize("strategy", CODES)
def test_where_workers_compute_the_same_batches(strategy: str) -> None:
    case = Case(strategy, size=3, gpus="host", are_alike=True)
    (((small,),), ((large,),)) = (counted([case], layers=(layers,)) for layers in (2, 6))
    assert unasked(small) == unasked(large) and sum(told(large).values()) <= 2 * case.steps, told(large)


def test_flags_of_gradients_are_read_in_the_next_step() -> None:
    cases = [Case(), divided("layers", PAIR), divided("pairs", {"tensor": 2}), divided("tied", {"stages": 2})]
    for case, ((large,),) in zip(cases, ([counts] for counts in counted(cases, layers=(6,))), strict=True):
        assert unasked(large) == 0, (case, told(large))


def test_no_wait_is_before_the_last_part_is_launched() -> None:
    ((_, large),) = counted([Case()])
    assert all("means/headers.py" in line or "wire/real/works.py" in line for line in large.waits), told(large)


def test_what_is_a_wait() -> None:
    x = torch.ones(3, device=GPU)
    with watching() as events:
        pinned = torch.empty(3, pin_memory=True)
        pinned.copy_(x, non_blocking=True)
        _ = x + 1
        x[0] = 2.0
    assert [event for event in events if event.kind == "wait"] == []
    with watching() as events:
        x.sum().item()
        torch.equal(x, x)
        x.cpu()
        x.copy_(torch.ones(3))
        x[x > 0]
    assert [event.name for event in events if event.kind == "wait"] == [
        "_local_scalar_dense",
        "aten::equal",
        "copy to the host",
        "copy from the host",
        "aten::nonzero",
    ]


def test_watching_ends_while_another_thread_uses_the_device() -> None:
    x, is_over = torch.ones(3, device=GPU), threading.Event()

    def use() -> None:
        while not is_over.is_set():
            x.cpu()

    threads = [threading.Thread(target=use) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(1500):
            with watching():
                pass
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def test_a_device_that_is_not_current_is_noticed() -> None:
    x = torch.ones(3, device=f"{GPU.type}:2")
    assert x.device.index == 2 and (x + 1).device.index == 2
    with watching() as events:
        torch.equal(x, x)
    assert [(event.current, event.index) for event in events if event.kind == "kernel"] == [(0, 2)]
    module: Any = torch.get_device_module(GPU.type)
    with module.device(2), watching() as events:
        torch.equal(x, x)
        module.synchronize()
    assert [event for event in events if event.kind == "kernel"] == []
    assert [event.index for event in events if event.name == "synchronize"] == [2]
    with pytest.raises(RuntimeError, match="two devices"):
        _ = x + torch.ones(3, device=f"{GPU.type}:1")
