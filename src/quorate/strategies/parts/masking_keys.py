"""The keys, shares and masks of one masked sum: X25519, Shamir's scheme, ChaCha20."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quorate.core.errors import ConfigurationError, MissingExtra

_PRIME = 2**521 - 1
"""Shares are points of polynomials modulo this prime (Mersenne's thirteenth)."""
_KEY_BYTES = 32
SHARE_BYTES = 66
"""Of one share."""
_SEALED_BYTES = 2 * SHARE_BYTES + 16


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import x25519
        from cryptography.hazmat.primitives.ciphers import Cipher, aead, algorithms
        from cryptography.hazmat.primitives.kdf import hkdf
    except ImportError:
        raise MissingExtra("secure sums need cryptography; install it with: pip install cryptography") from None
    return hashes, serialization, x25519, Cipher, aead, algorithms, hkdf


def _derived(secret: bytes, purpose: bytes) -> bytes:
    hashes, *_, hkdf = _library()
    found: bytes = hkdf.HKDF(algorithm=hashes.SHA256(), length=_KEY_BYTES, salt=None, info=purpose).derive(secret)
    return found


def shared_secret(key: bytes, public: bytes) -> bytes:
    """What the owner of a masking key has in common with another worker, whose `MaskingKeys.public` that is."""
    _, _, x25519, *_ = _library()
    own = x25519.X25519PrivateKey.from_private_bytes(key)
    return _derived(own.exchange(x25519.X25519PublicKey.from_public_bytes(public[_KEY_BYTES:])), b"quorate mask")


def mask(seed: bytes, length: int) -> NDArray[np.uint32]:
    """So many numbers of 32 bits that whoever has not the seed cannot tell from chance: a ChaCha20 keystream."""
    *_, Cipher, _, algorithms, _ = _library()
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(4 * length))
    return np.frombuffer(stream, "<u4").astype(np.uint32)


class MaskingKeys:
    """One worker's, made anew for every sum and never told: one to talk with others, one to draw masks with, and the
    seed of its own mask."""

    def __init__(self) -> None:
        _, serialization, x25519, *_ = _library()
        self._talking, self._masking = x25519.X25519PrivateKey.generate(), x25519.X25519PrivateKey.generate()
        raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
        self.public = b"".join(key.public_key().public_bytes(*raw) for key in (self._talking, self._masking))
        """For all."""
        self.own_seed = secrets.token_bytes(_KEY_BYTES)

    def secret_with(self, public: bytes) -> bytes:
        """The seed of the mask that this worker and another one have in common."""
        return shared_secret(self._masking.private_bytes_raw(), public)

    def _cipher(self, public: bytes) -> Any:
        _, _, x25519, _, aead, *_ = _library()
        common = self._talking.exchange(x25519.X25519PublicKey.from_public_bytes(public[:_KEY_BYTES]))
        return aead.ChaCha20Poly1305(_derived(common, b"quorate share"))

    def sealed_shares(self, rank: int, public: Mapping[int, bytes], least: int) -> bytes:
        """For each worker in order of rank its shares of the masking key and of the own seed, which only it can read.

        Any `least` shares give the secret, fewer say nothing.
        """
        ranks = sorted(public)
        keys = split_secret(self._masking.private_bytes_raw(), ranks, least)
        seeds = split_secret(self.own_seed, ranks, least)
        sealed = []
        for other in ranks:
            plain = keys[other] + seeds[other]
            sealed.append(self._cipher(public[other]).encrypt(_nonce(rank, other), plain, None))
        return b"".join(sealed)

    def opened_shares(
        self, rank: int, public: Mapping[int, bytes], sealed: Mapping[int, bytes]
    ) -> dict[int, tuple[bytes, bytes]]:
        """Of each worker that has sealed some, this one's share of its masking key and of its own seed.

        Raises `ConfigurationError` for shares that were not meant for this worker, or were changed on the way.
        """
        place, found = sorted(public).index(rank), {}
        for other, row in sealed.items():
            mine = row[place * _SEALED_BYTES : (place + 1) * _SEALED_BYTES]
            try:
                plain = self._cipher(public[other]).decrypt(_nonce(other, rank), mine, None)
            except Exception as error:
                raise ConfigurationError(f"what rank {other} has sealed for a masked sum cannot be read") from error
            found[other] = plain[:SHARE_BYTES], plain[SHARE_BYTES:]
        return found


def _nonce(source: int, target: int) -> bytes:
    """Every key is of one pair and one sum, and each direction seals one message."""
    return source.to_bytes(6, "big") + target.to_bytes(6, "big")


def split_secret(secret: bytes, ranks: list[int], least: int) -> dict[int, bytes]:
    """Shamir's shares of a secret for these workers, any `least` of which give it again.

    Rank r has the value at r + 1 of a polynomial of degree `least` - 1 whose value at 0 is the secret.
    """
    powers = [int.from_bytes(secret, "big"), *(secrets.randbelow(_PRIME) for _ in range(least - 1))]
    found = {}
    for rank in ranks:
        value = 0
        for coefficient in reversed(powers):
            value = (value * (rank + 1) + coefficient) % _PRIME
        found[rank] = value.to_bytes(SHARE_BYTES, "big")
    return found


def joined_secret(shares: Mapping[int, bytes]) -> bytes:
    """The secret of enough shares, by rank (Lagrange's interpolation at 0); of too few, or wrong ones, any bytes."""
    total = 0
    for rank, share in shares.items():
        above, below = 1, 1
        for other in shares:
            if other != rank:
                above = above * (other + 1) % _PRIME
                below = below * (other - rank) % _PRIME
        total = (total + int.from_bytes(share, "big") * above * pow(below, -1, _PRIME)) % _PRIME
    found: bytes = (total % 2 ** (8 * _KEY_BYTES)).to_bytes(_KEY_BYTES, "big")
    return found
