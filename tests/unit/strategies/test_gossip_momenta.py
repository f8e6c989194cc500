"""Under gossip, momenta are kept, averaged or forgotten as the setting says: the recursions, worker by worker."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quorate.core.errors import ConfigurationError
from quorate.gossip.topology import topology_of
from quorate.gossip.topology.mixing import matrix
from tests.support.gossip import RATE, Told, run, train

HEAVY = 0.8


def gradients(found: list[Told], step: int) -> torch.Tensor:
    return torch.stack([told.steps[step] for told in found])


def momenta(found: list[Told]) -> torch.Tensor:
    return torch.stack([told.momentum for told in found if told.momentum is not None])


@pytest.mark.parametrize("topology", ["ring", "complete", "star"])
@pytest.mark.parametrize("overlap", [True, False])
def test_d_psgd_mixes_momenta_like_parameters(topology: str, overlap: bool) -> None:
    size, steps = 4, 5
    settings = {"strategy": "d-psgd", "topology": topology, "overlap": overlap, "momentum": "average"}
    found = run(size, lambda w: train(w, steps, heavy=HEAVY, **settings))
    weights = torch.tensor(matrix(topology_of(topology, size), size, 0))
    x, m = torch.stack([told.begin for told in found]), torch.zeros(size, len(found[0].begin), dtype=torch.float64)
    for step in range(steps):
        m = HEAVY * (weights @ m) + gradients(found, step)
        x = weights @ x - RATE * m
    assert torch.allclose(momenta(found), m, atol=1e-5)
    assert torch.allclose(found[0].end, x.mean(dim=0), atol=1e-5)


def test_sgp_mixes_the_numerators_of_momenta(tmp_path: Path) -> None:
    """On a graph that is not regular, where weights differ: what counts more in x counts more in the momentum."""
    (tmp_path / "graph.txt").write_text("0 -> 1\n1 -> 2\n2 -> 3\n3 -> 0\n0 -> 2\n0 -> 3\n")
    graph, size, steps = f"file:path={tmp_path / 'graph.txt'}", 4, 6
    settings = {"strategy": "sgp", "topology": graph, "momentum": "average"}
    found = run(size, lambda w: train(w, steps, heavy=HEAVY, **settings))
    shares = torch.tensor(matrix(topology_of(graph, size), size, 0))
    x, u = torch.stack([told.begin for told in found]), torch.ones(size, 1, dtype=torch.float64)
    m = torch.zeros_like(x)
    for step in range(steps):
        m = HEAVY * m + gradients(found, step)
        x, m, u = shares @ (x - RATE * m), shares @ (u * m), shares @ u
        m = m / u
    assert float(u.max()) > 1.2
    assert torch.allclose(momenta(found), m, atol=1e-5)
    assert torch.allclose(found[0].end, x.sum(dim=0) / size, atol=1e-5)


def test_sgp_forgets_after_every_cycle() -> None:
    found = run(4, lambda w: train(w, 7, heavy=HEAVY, strategy="sgp", momentum="reset"))  # hops of 1, then of 2
    assert torch.allclose(momenta(found), gradients(found, 6), atol=1e-6)


def test_d_psgd_forgets_after_every_cycle() -> None:
    settings = {"strategy": "d-psgd", "topology": "hierarchical:per_host=2", "momentum": "reset"}
    found = run(4, lambda w: train(w, 5, heavy=HEAVY, **settings))
    assert torch.allclose(momenta(found), HEAVY * gradients(found, 3) + gradients(found, 4), atol=1e-5)


@pytest.mark.parametrize("name", ["d-psgd", "sgp"])
def test_a_graph_that_stays_the_same_would_leave_no_momentum(name: str) -> None:
    with pytest.raises(ConfigurationError, match="nothing would be kept"):
        run(3, lambda w: train(w, 1, strategy=name, topology="ring", momentum="reset"))


@pytest.mark.parametrize("name", ["d-psgd", "sgp"])
@pytest.mark.parametrize("momentum", ["average", "reset"])
def test_alone_there_is_nothing_to_mix_or_to_forget(name: str, momentum: str) -> None:
    (told,) = run(1, lambda w: train(w, 4, heavy=HEAVY, strategy=name, momentum=momentum))
    expected = torch.zeros_like(told.begin)
    for gradient in told.steps:
        expected = HEAVY * expected + gradient
    assert told.momentum is not None
    assert torch.allclose(told.momentum, expected, atol=1e-6)
