"""The strategies that every law is held against: those of the package, and the examples of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quorate.strategies import strategies

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "strategies").glob("*.py"))
OWN = [strategies.registered(str(path)) for path in EXAMPLES]
"""Names of those that need nothing but their file."""
OF_ONE_HOST = ["hogwild"]
"""Those whose workers have memory in common."""
OF_ONE_TENSOR: dict[str, dict[str, Any]] = {"streaming-diloco": {"fragments": 1}}
"""The settings with which a model of one tensor is trained, where defaults need more of them."""
OF_THE_SAME_BATCHES = ["detox", "draco", "gradient-coding"]
"""Those under which workers compute the same batches, which laws about batches of their own are not for."""
NAMES = [*(name for name in strategies.names() if name not in (*OWN, *OF_THE_SAME_BATCHES)), *OWN]
