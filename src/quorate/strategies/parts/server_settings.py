"""Settings of a strategy whose parameters lie on servers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from quorate.core.errors import ConfigurationError
from quorate.core.servers import ServerRules, ServerTerms
from quorate.core.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class ServerSettings(ServerRules, Strategy):
    """The rules of servers, and how often a worker pushes and pulls."""

    push_every: int = 1
    """After how many steps a worker pushes the mean of its gradients; between pushes it steps on its own copy."""
    pull_every: int = 1
    """After how many steps a worker pulls."""
    overlap: bool = False
    """Whether a pull is waited for one step later, so that nobody waits for it: gradients are one step older."""

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"max_staleness": 0, "backup": 0, "push_every": 1, "pull_every": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)!r}; it must be a whole number (at least {number})"
                )
        if self.softsync is not None and self.softsync < 1:
            raise ConfigurationError(f"softsync is {self.softsync!r}; it must be a whole number (at least 1), or None")
        self._only("backup", self.backup > 0, "sync")
        self._only("softsync", self.softsync is not None, "async")
        self._only("push_every and pull_every", max(self.push_every, self.pull_every) > 1, "async")
        self._only("overlap", self.overlap, "async", "bounded")

    def terms(self, there: tuple[int, ...], replication: int) -> ServerTerms:
        """Return the terms for servers on these ranks."""
        rules = {field.name: getattr(self, field.name) for field in fields(ServerRules)}
        return ServerTerms(servers=there, replication=replication, **rules)

    def _only(self, name: str, is_set: bool, *modes: str) -> None:
        if is_set and self.mode not in modes:
            raise ConfigurationError(f"{name} needs mode={' or '.join(modes)}, and the mode is {self.mode}")
