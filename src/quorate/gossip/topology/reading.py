"""A topology as a user writes it: `ring`, `random:degree=3,seed=1`, `file:path=graph.txt`.

Semicolons may separate settings as well, where commas separate other things (`--strategy d-psgd:topology=...`).
"""

from __future__ import annotations

from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.core.settings import settings_for, written_settings
from quorate.core.topology import Topology
from quorate.gossip.topology import topologies


def topology_of(text: str, size: int | None = None) -> Topology:
    """Return the topology that `text` names, with its settings; checked for `size` workers if that is given.

    Raises `ConfigurationError` for unknown names and settings, and for a size that the topology does not support.
    """
    name, raw = written_settings(text, "topology")
    kind: Any = topologies.get(name)
    try:
        topology: Topology = kind(**settings_for(kind, raw, name))
    except TypeError:
        raise ConfigurationError(f'the topology "{name}" needs settings: write {name}:key=value') from None
    if size is not None:
        topology.check(size)
    return topology
