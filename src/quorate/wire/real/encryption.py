"""TLS 1.3 for the connections of a run between hosts: each worker has a certificate of its own, known by its digest.

A worker makes a key and a certificate when it joins, which end with its process. The digest of the certificate is part
of the address that it signs with the run's key (`wire.real.trust`). So workers that know the token know which
certificate to expect, and others cannot announce another one. Authorities, names and dates are not checked. See
docs/decisions/messages.md#0026.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import ssl
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from quorate.core.errors import ConfigurationError, MissingExtra, ranks_in_words

_SLICE = 1 << 18
"""Bytes encrypted at a time."""
_DAYS = timedelta(days=3650)
PLAIN, ENCRYPTED, CANNOT = b"plain", b"tls", b"tls, without its library"
"""Wishes that a worker writes before the exchange of addresses."""


class Impostor(ConnectionError):
    """Another process answers at a worker's address."""


class Encrypted(ssl.SSLSocket):
    """One end of a connection. It raises `BlockingIOError` and `ConnectionError` where a plain socket does."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Receive bytes, as `socket.socket` does."""
        with _as_of_plain_sockets():
            return super().recv(buflen, flags)

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Receive as many bytes as there are, not one record of 16 KiB at a time."""
        view, got = memoryview(buffer)[:nbytes], 0
        with _as_of_plain_sockets():
            while got < len(view):
                try:
                    more = super().recv_into(view[got:], None, flags)
                except ssl.SSLWantReadError:
                    if got:
                        break
                    raise
                if not more:
                    break
                got += more
        return got

    def send(self, data: Any, flags: int = 0) -> int:
        """Send a part of `data`; after a `BlockingIOError` the next call has the same data, or more behind it."""
        with _as_of_plain_sockets():
            return super().send(memoryview(data)[:_SLICE], flags)

    def do_handshake(self, block: bool = False) -> None:
        """Do the handshake, as `ssl.SSLSocket` does."""
        with _as_of_plain_sockets():
            super().do_handshake(block)


class Encryption:
    """The TLS contexts of one worker, with the `digest` of its certificate."""

    def __init__(self) -> None:
        private, certificate, self.digest = _made()
        self._server = _context(ssl.PROTOCOL_TLS_SERVER)
        self._server.num_tickets = 0  # clients do not read after the handshake
        with _secret_file(private + certificate) as path:
            self._server.load_cert_chain(path)
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT)
        self._client.check_hostname = False
        self._client.verify_mode = ssl.CERT_NONE  # its digest is compared

    def accepted(self, sock: socket.socket) -> Encrypted:
        """Return the server's end of an incoming connection; the handshake is still to be done."""
        return self._of(self._server, sock, server_side=True)

    def made(self, sock: socket.socket) -> Encrypted:
        """Return the client's end of an open connection; the handshake, and `check`, are still to be done."""
        return self._of(self._client, sock, server_side=False)

    def _of(self, context: ssl.SSLContext, sock: socket.socket, *, server_side: bool) -> Encrypted:
        encrypted = context.wrap_socket(sock, server_side=server_side, do_handshake_on_connect=False)
        assert isinstance(encrypted, Encrypted)
        return encrypted


def check(sock: Encrypted, address: str) -> None:
    """Raise `Impostor` unless the other side, after the handshake, has the certificate in `address`."""
    shown = hashlib.sha256(sock.getpeercert(binary_form=True) or b"").hexdigest()
    digest, where = split(address)
    if not hmac.compare_digest(shown, digest or ""):
        raise Impostor(
            f"was shown another certificate at {where} than that of the worker there: somebody stands between them, "
            "and nothing was sent"
        )


def address_of(host: str, port: int, encryption: Encryption | None) -> str:
    """Return the address at which this worker listens: `tcp:HOST:PORT`, `tls:DIGEST:HOST:PORT`."""
    return f"tcp:{host}:{port}" if encryption is None else f"tls:{encryption.digest}:{host}:{port}"


def split(address: str) -> tuple[str | None, str]:
    """Return the digest of the expected certificate (None: no TLS), and `HOST:PORT`."""
    kind, _, where = address.partition(":")
    if kind != "tls":
        return None, where
    digest, _, where = where.partition(":")
    return digest, where


def wish(*, is_encrypted: bool) -> bytes:
    """Return the wish that this worker writes before the exchange of addresses."""
    if not is_encrypted:
        return PLAIN
    return ENCRYPTED if find_spec("cryptography") is not None else CANNOT


def check_wishes(wishes: Mapping[int, bytes], hosts: Mapping[int, str]) -> None:
    """Raise `ConfigurationError`, on all workers, where not all encrypt, or not all can."""

    def named(wanted: bytes) -> str:
        ranks = [rank for rank, written in wishes.items() if written == wanted]
        where = ", ".join(sorted({hosts.get(rank, "unknown") for rank in ranks}))
        return f"{ranks_in_words(ranks)} (host {where})" if ranks else ""

    if without := named(CANNOT):
        raise MissingExtra(f"QUORATE_TLS=1 needs cryptography on {without}; install it there: pip install cryptography")
    if len(set(wishes.values())) > 1:
        raise ConfigurationError(
            f"QUORATE_TLS=1 is set on {named(ENCRYPTED)} and not on {named(PLAIN)}; set it on every machine, or on none"
        )


def _made() -> tuple[bytes, bytes, str]:
    """Make a private key and its certificate (PEM); return them and the digest of the certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a worker of a Quorate run")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAYS)
        .not_valid_after(now + _DAYS)
        .sign(private, hashes.SHA256())
    )
    encoded = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    digest = certificate.fingerprint(hashes.SHA256()).hex()
    return encoded, certificate.public_bytes(serialization.Encoding.PEM), digest


def _context(kind: int) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sslsocket_class = Encrypted
    return context


@contextmanager
def _secret_file(content: bytes) -> Iterator[str]:
    """Yield a file for `ssl`, which reads keys from files only: in memory where possible, or in a private folder."""
    if sys.platform.startswith("linux"):
        with os.fdopen(os.memfd_create("key"), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "key"
            path.touch(0o600)
            path.write_bytes(content)
            yield str(path)


@contextmanager
def _as_of_plain_sockets() -> Iterator[None]:
    try:
        yield
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        raise BlockingIOError from None
    except ssl.SSLError as error:
        raise ConnectionResetError(f"TLS: {error.reason or error}") from None
