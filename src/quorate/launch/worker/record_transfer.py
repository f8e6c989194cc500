"""Records come home: where hosts have no file system in common, rows go on to the run's folder as they are written.

Each worker writes its rows to a file on its own host, as ever. A thread beside it sends what is new to the keeper, a
batch at a time: the lowest living rank on rank 0's host, else the lowest of all. The keeper appends it to the file of
that rank in its own folder. Whether both have the same folder is found out first: the keeper makes a file there, with a
name that nobody can guess, and the others look for it.

Cost: a batch is `BATCH` bytes at most, the next goes when the last one was received, and the file is the only buffer.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from quorate.core.contracts import Message
from quorate.core.errors import QuorateError
from quorate.core.members import Members
from quorate.core.telling import tell
from quorate.records.records import records_of
from quorate.wire.members import members_on
from quorate.wire.real.endpoint import Endpoint

EVERY = 1.0
"""Seconds between two checks for new rows."""
BATCH = 1 << 18
"""Bytes of one message, at most."""
LOOKS_FOR, LOOKS_FOR_AT_END = 2.0, 0.3
"""Seconds in which a file that another host has made is seen, on a common file system, and seconds that remain for this
if the run is over by then.
"""
_AGAIN = 5.0
"""Seconds after which an unanswered message is sent again."""
_TO_KEEPER, _FROM_KEEPER = "records/to the keeper", "records/from the keeper"
_LOOKS, _SHARES = "looks", "shares"
"""Answers of a worker on another host about the keeper's folder."""
_KEY = "records/kept by"


class RecordTransfer:
    """That of one worker, whose own rows are in `folder`; it begins before the first row is written."""

    def __init__(self, endpoint: Endpoint, folder: Path) -> None:
        self._endpoint, self._folder, self._rank = endpoint, folder, endpoint.rank
        self._own = records_of(folder, self._rank)
        self._begin = _size(self._own)
        """The place at which this session's rows begin there."""
        self._pid = os.getpid()
        self._keeper: int | None = None
        self._is_away = False
        """Whether the keeper has another folder."""
        self._base: tuple[int, int] | None = None
        """At which host, and where, this session's rows begin in the file at home."""
        self._had = 0
        """How much of them is at home."""
        self._kept: dict[int, tuple[int, int]] = {}
        """By rank: where its session begins in the file here, and how much of it is here."""
        self._expected: set[int] = set()
        """The ranks that may send more rows."""
        self._mark: Path | None = None
        self._is_full = False
        self._is_closing, self._is_home, self._is_over = threading.Event(), threading.Event(), threading.Event()
        self._found: tuple[Members, int] | None = None
        self._arriving = endpoint.inbox.ask(None, _TO_KEEPER)
        self._thread = threading.Thread(target=self._run, name="quorate-records", daemon=True)
        self._thread.start()

    def close(self, within: float) -> None:
        """The last row is written: wait until all of them are at home, for so many seconds at most."""
        if os.getpid() == self._pid:
            self._is_closing.set()
            self._is_home.wait(within)

    def wait_for_others(self, within: float) -> None:
        """Give the others time to send their last rows, on the keeper, as it ends; others do nothing."""
        until = time.monotonic() + within
        while self._keeper == self._rank and time.monotonic() < until:
            with suppress(QuorateError):
                if self._expected <= members_on(self._endpoint.board, 0).dead:
                    return
            time.sleep(0.02)

    def leave(self) -> None:
        """Nothing is kept for others any more."""
        self._is_over.set()
        if self._mark is not None and os.getpid() == self._pid:
            self._mark.unlink(missing_ok=True)

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._is_over.is_set() and not (self._is_closing.is_set() and self._is_home.is_set()):
                self._look()
                if self._keeper == self._rank:
                    self._is_home.set()
                    self._serve()
                elif self._is_away:
                    self._is_home.clear()
                    self._send()
                else:
                    self._is_home.set()
                    self._is_closing.wait(EVERY)
            while self._keeper == self._rank and not self._is_over.is_set():
                self._serve()
        except (QuorateError, OSError):
            self._is_home.set()  # cut off from the others, or a full disk: nothing goes home any more

    def _look(self) -> None:
        keeper = self._find_keeper()
        if keeper == self._keeper:
            return
        self._keeper, self._is_away = keeper, False
        if keeper == self._rank:
            self._mark = self._folder / f".kept-{secrets.token_hex(16)}"
            self._mark.touch()
            self._endpoint.board.set(f"{_KEY}/{keeper}", self._mark.name.encode())
        elif self._endpoint.host_of(keeper) != self._endpoint.host_of(self._rank):
            self._tell(keeper, {"says": _LOOKS})
            self._is_away = not self._is_seen(keeper)
            if not self._is_away:
                self._tell(keeper, {"says": _SHARES})

    def _find_keeper(self) -> int:
        members = members_on(self._endpoint.board, self._endpoint.size)
        if self._found is None or self._found[0] != members:
            _, keeper = min((self._endpoint.host_of(rank) != 0, rank) for rank in members.alive or {self._rank})
            self._found = members, keeper
        return self._found[1]

    def _is_seen(self, keeper: int) -> bool:
        """Whether the keeper's mark is in this worker's folder as well."""
        key = f"{_KEY}/{keeper}"
        while (name := self._endpoint.board.peek(key)) is None:
            if keeper != self._find_keeper():
                return True  # it is none any more: looked for again
            time.sleep(0.05)
        begin = time.monotonic()
        while name.decode() not in os.listdir(self._folder):
            if time.monotonic() - begin > (LOOKS_FOR_AT_END if self._is_closing.is_set() else LOOKS_FOR):
                return False
            time.sleep(0.05)
        return True

    def _tell(self, keeper: int, header: Mapping[str, Any]) -> None:
        assert self._endpoint.mailbox is not None
        self._endpoint.mailbox.send(Message((), header), keeper, _TO_KEEPER)

    # -- one that sends

    def _send(self) -> None:
        """Say where it stands, then all that is new; until the keeper is another one."""
        assert self._keeper is not None
        host = self._endpoint.host_of(self._keeper)
        base = self._base[1] if self._base is not None and self._base[0] == host else None
        answer = self._asked({"base": base})
        while answer is not None:
            if answer.get("is_full"):
                self._is_closing.set()
                self._is_home.set()  # the rows stay here
                return
            self._base, self._had = (host, int(answer["base"])), int(answer["had"])
            was_closing = self._is_closing.is_set()  # then nothing more is written
            new = self._new_rows()
            if new:
                answer = self._asked({"base": self._base[1], "at": self._had}, new)
            elif was_closing:
                if self._asked({"base": self._base[1], "at": self._had, "is_all": True}) is not None:
                    self._is_home.set()
                return
            elif self._find_keeper() != self._keeper:
                return
            else:
                self._is_closing.wait(EVERY)

    def _new_rows(self) -> bytes:
        if _size(self._own) <= self._begin + self._had:
            return b""
        with open(self._own, "rb") as file:
            file.seek(self._begin + self._had)
            return file.read(BATCH)

    def _asked(self, header: Mapping[str, Any], rows: bytes = b"") -> Mapping[str, Any] | None:
        """Return the keeper's answer; None if the keeper is another worker by now."""
        keeper = self._keeper
        assert keeper is not None and self._endpoint.mailbox is not None
        number = secrets.randbits(60)
        tensors = (torch.frombuffer(bytearray(rows), dtype=torch.uint8),) if rows else ()
        waiting = self._endpoint.inbox.ask(keeper, _FROM_KEEPER)
        while True:
            self._endpoint.mailbox.send(Message(tensors, {**header, "number": number}), keeper, _TO_KEEPER)
            until = time.monotonic() + _AGAIN
            while time.monotonic() < until:
                if waiting.filled.wait(0.2) and waiting.result is not None:
                    answer = waiting.result[1].header
                    if answer.get("number") == number:
                        return answer
                    waiting = self._endpoint.inbox.ask(keeper, _FROM_KEEPER)  # that was to an older one
                elif self._find_keeper() != keeper:
                    return None

    # -- the keeper

    def _serve(self) -> None:
        while self._arriving.filled.wait(EVERY):
            assert self._arriving.result is not None and self._endpoint.mailbox is not None
            source, message = self._arriving.result
            self._arriving = self._endpoint.inbox.ask(None, _TO_KEEPER)
            if "says" in message.header:
                (self._expected.add if message.header["says"] == _LOOKS else self._expected.discard)(source)
                continue
            try:
                answer = self._received(source, message)
            except OSError as error:
                self._say_it_is_full(error)
                answer = {"number": message.header["number"], "is_full": True}
            self._endpoint.mailbox.send(Message((), answer), source, _FROM_KEEPER)

    def _say_it_is_full(self, error: OSError) -> None:
        if not self._is_full:
            self._is_full = True
            why = error.strerror or error
            tell(
                f"quorate: rank {self._rank}: {self._folder} cannot store more rows ({why}); other hosts keep theirs\n"
            )

    def _received(self, source: int, message: Message) -> dict[str, Any]:
        header, path = message.header, records_of(self._folder, source)
        base = header["base"]
        if source not in self._kept:
            base = _end_of_lines(path) if base is None else int(base)
            self._kept[source] = base, max(0, _size(path) - base)
        base, had = self._kept[source]
        if message.tensors and header["at"] == had:
            rows = message.tensors[0].numpy().tobytes()
            with open(path, "ab") as file:
                file.write(rows)
            self._kept[source] = base, had + len(rows)
        self._expected.add(source)
        if header.get("is_all"):
            self._expected.discard(source)
        return {"number": header["number"], "base": base, "had": self._kept[source][1]}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _end_of_lines(path: Path) -> int:
    """The size of a file; a line that was cut off there is ended first."""
    size = _size(path)
    if size:
        with open(path, "rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
                size += 1
    return size
