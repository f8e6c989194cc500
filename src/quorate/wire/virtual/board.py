"""The board of a virtual world: one dictionary for all workers, with waits on the virtual clock."""

from __future__ import annotations

from collections.abc import Sequence

from quorate.core.contracts import Board
from quorate.core.errors import WireTimeout
from quorate.wire.failure import FAILED
from quorate.wire.members import GONE
from quorate.wire.virtual.waits import Scene, VirtualWork


class Keys(VirtualWork[None]):
    """Keys that `rank` waits for."""

    __slots__ = ("lacking",)

    def __init__(self, scene: Scene, rank: int, keys: Sequence[str], timeout: float) -> None:
        super().__init__(scene, rank, "board.wait", timeout)
        self.lacking = dict.fromkeys(keys)

    def timed_out(self, seconds: float) -> WireTimeout:
        keys = ", ".join(f'"{key}"' for key in self.lacking)
        return WireTimeout(f"rank {self.rank} waited {seconds:g} s for {keys} in board.wait")


class VirtualBoard(Board):
    """See `Board`; reading and writing take no virtual time."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._values: dict[str, bytes] = {}
        self._counters: dict[str, int] = {}
        self._waits: dict[str, list[Keys]] = {}

    def set(self, key: str, value: bytes) -> None:
        self._values[key] = bytes(value)
        if self._scene.is_traced:
            self._scene.note(None, f"board {key} = {len(value)} bytes")
        for wait in self._waits.pop(key, ()):
            del wait.lacking[key]
            if not wait.lacking and not wait.is_finished:
                wait.finish(None)
        if key == FAILED:
            self._scene.learn_of_failure(self._values[key])
        if key == GONE:
            self._scene.learn_members(self._values[key])

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def add(self, key: str, amount: int = 1) -> int:
        self._counters[key] = self._counters.get(key, 0) + amount
        return self._counters[key]

    def swap(self, key: str, expected: bytes | None, value: bytes) -> bool:
        if self._values.get(key) != expected:
            return False
        self.set(key, value)
        return True

    def wait(self, keys: Sequence[str], timeout: float | None = None) -> None:
        scene = self._scene
        wait = Keys(scene, scene.scheduler.running().rank, keys, scene.timeout)
        for key in keys:
            if key in self._values:
                wait.lacking.pop(key, None)
        if not wait.lacking:
            return
        for key in wait.lacking:
            self._waits.setdefault(key, []).append(wait)
        try:
            wait.wait(timeout)
        finally:
            for key in wait.lacking:
                self._forget(key, wait)

    def delete(self, prefix: str) -> None:
        for table in (self._values, self._counters):
            for key in [key for key in table if key.startswith(prefix)]:
                del table[key]
        if FAILED.startswith(prefix):
            self._scene.learn_of_failure(None)

    def _forget(self, key: str, wait: Keys) -> None:
        waits = self._waits[key]
        waits.remove(wait)
        if not waits:
            del self._waits[key]
