"""What a worker waits for that has asked a server."""

from __future__ import annotations

from collections.abc import Callable

from quorate.agreement.server_task import READ
from quorate.core.contracts import Message, Wire
from quorate.core.errors import PeerFailed


class ServerAnswer:
    """What `server` answers next; `lost` says what goes with it, `check` raises what the own one has ended with."""

    def __init__(self, wire: Wire, server: int, lost: str, check: Callable[[], None]) -> None:
        self._wire, self._server, self._lost, self._check = wire, server, lost, check
        self._work = wire.receive(server, READ)

    def done(self) -> bool:
        return self._work.done()

    def wait(self, timeout: float | None = None) -> Message:
        try:
            message = self._work.wait(timeout)[1]
        except PeerFailed as error:
            if self._server not in self._wire.dead:
                raise
            why = f"{error}; it was a server, and {self._lost} on it alone"
            raise PeerFailed(why, error.ranks or [self._server]) from None
        if "failed" in message.header:
            self._check()
            raise PeerFailed(f"the server on rank {self._server} raised {message.header['failed']}", [self._server])
        return message
