"""The live page of a run, served to browsers on this machine: the standard library's web server on the loopback.

No other machine reaches it, and the address holds a token that nobody can guess, since others may have an account
here. Requests that name another host are refused, so that no page from elsewhere can read it through a name of this
address. It answers GET alone, and reads nothing but the records.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from quorate.core.errors import ConfigurationError
from quorate.report.live.page import SCRIPT, LivePage
from quorate.report.page import policy

LOOPBACK = "127.0.0.1"
_HOSTS = frozenset((LOOPBACK, "localhost"))
_WRONG = "This address does not hold the token of the run; copy the whole line that quorate has printed."
_LONGEST_SILENCE = 10.0
"""Seconds that a browser may take for its request."""


class LiveServer:
    """A context in which the page of the run in `folder` is at `address`.

    Raises `ConfigurationError` for a `port` that is taken; 0 takes a free one. Cost: nothing while no browser looks.
    """

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(18)
        self.page = LivePage(folder)
        try:
            self._server = _Server((LOOPBACK, port), self)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigurationError(
                f"nothing can listen at port {port} of {LOOPBACK} ({why}); leave out --port for a free one"
            ) from None
        self.port: int = self._server.server_address[1]
        self.address = f"http://{LOOPBACK}:{self.port}/{self.token}/"

    def __enter__(self) -> LiveServer:
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="quorate page", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, address: tuple[str, int], live: LiveServer) -> None:
        self.live = live
        super().__init__(address, _Answers)


class _Answers(BaseHTTPRequestHandler):
    """Answers one browser."""

    server: _Server
    timeout = _LONGEST_SILENCE
    server_version, sys_version = "quorate", ""

    def do_GET(self) -> None:
        """Answer with the page, one of its changing parts, or a refusal."""
        live = self.server.live
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        token, _, name = self.path.removeprefix("/").partition("?")[0].partition("/")
        is_known = secrets.compare_digest(token.encode("utf-8", "replace"), live.token.encode())
        parts: dict[str, Callable[[], str]] = {
            "": live.page.document,
            "state": live.page.state,
            "sections": live.page.sections,
        }
        if host not in _HOSTS or not is_known:
            self._answer(403, _WRONG, "text/plain")
        elif name in parts:
            self._answer(200, parts[name](), "text/html")
        else:
            self._answer(404, "There is nothing here.", "text/plain")

    def _answer(self, status: int, body: str, kind: str) -> None:
        data = body.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Security-Policy", f"{policy(SCRIPT)}; frame-ancestors 'none'")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        try:
            self.wfile.write(data)
        except OSError:
            self.close_connection = True  # the browser has left

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal is the script's."""
