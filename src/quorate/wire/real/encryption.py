"""TLS 1.3 for the connections of a run between hosts: each worker has a certificate of its own, known by its digest.

A worker makes a key and a certificate when it joins, and forgets them with its process. The digest of the certificate
is a part of the address that it signs with the run's key (`wire.real.trust`), so whoever knows the token knows which
certificate to expect, and nobody else can say another one. No authority, no names and no dates are asked. See
docs/decisions/0026.
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
"""Bytes that are encrypted at a time."""
_DAYS = timedelta(days=3650)
PLAIN, ENCRYPTED, CANNOT = b"plain", b"tls", b"tls, without its library"
"""What a worker says of itself before it meets the others."""


class Impostor(ConnectionError):
    """Somebody else answers at a worker's address."""


class Encrypted(ssl.SSLSocket):
    """One end of a connection. Where a plain socket raises `BlockingIOError` or `ConnectionError`, so does this."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """As of `socket.socket`."""
        with _as_of_plain_sockets():
            return super().recv(buflen, flags)

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """As much as there is, and not one record of 16 KiB at a time."""
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
        """Some of `data`; after a `BlockingIOError` it is to be called with the same data, or more behind it."""
        with _as_of_plain_sockets():
            return super().send(memoryview(data)[:_SLICE], flags)

    def do_handshake(self, block: bool = False) -> None:
        """As of `ssl.SSLSocket`."""
        with _as_of_plain_sockets():
            super().do_handshake(block)


class Encryption:
    """That of one worker. `digest` is of its certificate."""

    def __init__(self) -> None:
        private, certificate, self.digest = _made()
        self._server = _context(ssl.PROTOCOL_TLS_SERVER)
        self._server.num_tickets = 0  # nobody reads after the handshake on the connections that they make
        with _secret_file(private + certificate) as path:
            self._server.load_cert_chain(path)
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT)
        self._client.check_hostname = False
        self._client.verify_mode = ssl.CERT_NONE  # its digest is compared

    def accepted(self, sock: socket.socket) -> Encrypted:
        """Of a connection that another one makes; the handshake is still to be done."""
        return self._of(self._server, sock, server_side=True)

    def made(self, sock: socket.socket) -> Encrypted:
        """Of a connection that stands; the handshake, and `check`, are still to be done."""
        return self._of(self._client, sock, server_side=False)

    def _of(self, context: ssl.SSLContext, sock: socket.socket, *, server_side: bool) -> Encrypted:
        found = context.wrap_socket(sock, server_side=server_side, do_handshake_on_connect=False)
        assert isinstance(found, Encrypted)
        return found


def check(sock: Encrypted, address: str) -> None:
    """Raise `Impostor` unless the other side, behind the handshake, is the one at `address`."""
    shown = hashlib.sha256(sock.getpeercert(binary_form=True) or b"").hexdigest()
    digest, where = split(address)
    if not hmac.compare_digest(shown, digest or ""):
        raise Impostor(
            f"was shown another certificate at {where} than that of the worker there: somebody stands between them, "
            "and nothing was sent"
        )


def address_of(host: str, port: int, encryption: Encryption | None) -> str:
    """How others are told where this worker listens: `tcp:HOST:PORT`, `tls:DIGEST:HOST:PORT`."""
    return f"tcp:{host}:{port}" if encryption is None else f"tls:{encryption.digest}:{host}:{port}"


def split(address: str) -> tuple[str | None, str]:
    """The digest of the certificate to be expected (None: none is), and `HOST:PORT`."""
    kind, _, where = address.partition(":")
    if kind != "tls":
        return None, where
    digest, _, where = where.partition(":")
    return digest, where


def wish(*, is_encrypted: bool) -> bytes:
    """What this worker says before it meets the others."""
    if not is_encrypted:
        return PLAIN
    return ENCRYPTED if find_spec("cryptography") is not None else CANNOT


def check_wishes(wishes: Mapping[int, bytes], hosts: Mapping[int, str]) -> None:
    """Raise, on all workers, where not all encrypt, or not all can."""

    def named(wanted: bytes) -> str:
        ranks = [rank for rank, one in wishes.items() if one == wanted]
        where = ", ".join(sorted({hosts.get(rank, "unknown") for rank in ranks}))
        return f"{ranks_in_words(ranks)} (host {where})" if ranks else ""

    if without := named(CANNOT):
        raise MissingExtra(f"QUORATE_TLS=1 needs cryptography on {without}; install it there: pip install cryptography")
    if len(set(wishes.values())) > 1:
        raise ConfigurationError(
            f"QUORATE_TLS=1 is set on {named(ENCRYPTED)} and not on {named(PLAIN)}; set it on every machine, or on none"
        )


def _made() -> tuple[bytes, bytes, str]:
    """A private key and its certificate (PEM), and the digest of the certificate."""
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
    """The `ssl` module reads keys from files only: one in memory, where there are such, or in a folder of this user."""
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
