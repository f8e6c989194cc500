"""Masked sums: workers learn the sum of all contributions, and nothing else of each other; it survives dropouts.

Every two workers agree on a secret, from which both draw the same mask. One adds it to its contribution, the other
subtracts it, so that masks cancel in the sum. A second mask, a worker's own, hides its contribution also when the first
ones come to be known. Of both secrets every worker has one Shamir share. When the sum is there, the remaining workers
publish shares of secrets. They publish those of the own masks of workers that are in it, and of the keys of workers
that are not, never both.

Numbers are whole ones modulo 2^32, of fixed point, so masks cancel exactly. Everything travels in the means that
workers form anyhow: rows by ranks as bytes, and a masked vector in three pieces of 11 bits, which float32 adds exactly.

Source: Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017, figure 4,
against workers that follow the protocol. This is its honest-but-curious case, without the consistency check, as all
workers see the same means. Cost: four exchanges; with n workers and d numbers, three times the bytes of a mean, 150 n^2
bytes of shares, and n d masks drawn by each.

Keys are of X25519, shares of Shamir's scheme, and masks of ChaCha20.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quorate.buckets.flat import layout_of
from quorate.core.errors import ConfigurationError
from quorate.core.installed import missing_extra
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat, empty_vector, pack

Words = NDArray[np.uint32]
_PIECES, _PIECE_BITS = 3, 11
MOST_WORKERS = 1024
"""With more the pieces of a sum are no whole numbers of float32."""


@dataclass(frozen=True)
class Masked:
    """A sum that was formed."""

    total: Flat
    weight: float
    """The sum of the weights."""
    numbers: tuple[float, float]
    """The sums of the numbers that workers have sent with their vectors, in the clear."""


def masked_sum(
    worker: Worker,
    contribution: tuple[Flat, float] | None,
    numbers: tuple[int, int],
    *,
    dropouts: int,
    bits: int,
) -> Masked | str | None:
    """Return the sum of all workers' vectors and weights; None if nobody has any, a sentence if too many have died.

    All workers call it together; one without a vector takes part all the same. `numbers` are two whole numbers below
    2^32 that are equal on all that contribute. `bits` are the digits behind the point. Raises `ConfigurationError` for
    numbers too large for 32 bits, and for worlds that are too large or too small.
    """
    has_any = gathered(worker, None if contribution is None else _bytes_of(numbers), 8)
    if not has_any:
        return None
    said = np.frombuffer(next(iter(has_any.values())), np.uint32)
    keys = MaskingKeys()
    public = gathered(worker, keys.public, len(keys.public))
    members = sorted(public)
    least = max(len(members) // 2 + 1, len(members) - dropouts)
    if not 2 <= len(members) <= MOST_WORKERS:
        raise ConfigurationError(
            f"secure sums are of 2 to {MOST_WORKERS} workers, and there are {len(members)}: a single worker "
            "cannot hide its value"
        )
    sealed = keys.sealed_shares(worker.rank, public, least)
    everyones = gathered(worker, sealed, len(sealed))
    members = sorted(everyones)
    held = keys.opened_shares(worker.rank, public, everyones)
    length = _length(worker)
    words = _as_words(contribution, length, len(members), bits) + mask(keys.own_seed, length)
    for other in members:
        if other != worker.rank:
            drawn = mask(keys.secret_with(public[other]), length)
            words = words + drawn if worker.rank < other else words - drawn
    total, inside = _sum_of_words(worker, words, members)
    revealed = gathered(worker, _revealed(held, members, inside), len(members) * SHARE_BYTES)
    if len(revealed) < least:
        return (
            f"a masked sum of {len(members)} workers is left out: {len(revealed)} are left, and it takes {least} to "
            "take the masks off"
        )
    shares = {rank: revealed[rank] for rank in sorted(revealed)[:least]}
    for place, member in enumerate(members):
        cut = {rank: row[place * SHARE_BYTES : (place + 1) * SHARE_BYTES] for rank, row in shares.items()}
        secret = joined_secret(cut)
        if member in inside:
            total = total - mask(secret, len(total))
        else:
            for other in inside:  # its masks with those that are in the sum have nothing to cancel with
                drawn = mask(shared_secret(secret, public[other]), len(total))
                total = total - drawn if other < member else total + drawn
    vector, weight = _as_numbers(worker, total, bits)
    return Masked(vector, weight, (float(said[0]), float(said[1])))


def _bytes_of(numbers: tuple[int, int]) -> bytes:
    return np.array(numbers, np.uint32).tobytes()


def _length(worker: Worker) -> int:
    """Numbers of a masked vector: the parameters', and the weight."""
    return sum(segment.numel for segment in worker.parameters.layout.segments) + 1


def gathered(worker: Worker, row: bytes | None, length: int) -> dict[int, bytes]:
    """Everyone's row of so many bytes, by rank; those that have none, and the dead, are missing. All ask together."""
    header = worker.parameters.layout.header
    named = [("there", torch.zeros(worker.size)), ("rows", torch.zeros(worker.size, length))]
    if row is not None:
        named[0][1][worker.rank] = 1.0
        named[1][1][worker.rank] = torch.tensor(list(row), dtype=torch.float32)
    into = empty_vector(layout_of(named, header=header))
    pack([x for _, x in named], into)
    mean = worker.means.of(into, weight=1.0).wait()
    there, rows = mean.segments()
    count = int((there > 0).sum())
    if count == 0:
        return {}
    of_all = _scale(there)
    plain = (rows * of_all).round().to(torch.uint8).numpy()
    return {rank: plain[rank].tobytes() for rank in range(worker.size) if there[rank] > 0}


def _scale(there: torch.Tensor) -> float:
    """How many workers a mean is of, from places that hold 1 of each that has something."""
    return round(1.0 / float(there.max()))


def _as_words(own: tuple[Flat, float] | None, length: int, workers: int, bits: int) -> Words:
    """The vector and its weight as whole numbers modulo 2^32; zeros where there is none."""
    if own is None:
        return np.zeros(length, np.uint32)
    vector, weight = own
    flat = torch.cat([x.detach().reshape(-1).double().cpu() for x in vector.segments()]).numpy()
    numbers = np.append(flat, weight) * 2.0**bits
    if not (np.isfinite(numbers).all() and np.abs(numbers).max() * workers < 2.0**31):
        raise ConfigurationError(
            f"a number of a masked sum is not finite, or too large for 32 bits with secure_bits={bits}: use fewer "
            'bits, weigh="equal", or clip deltas'
        )
    words: Words = np.round(numbers).astype(np.int64).astype(np.uint32)
    return words


def _as_numbers(worker: Worker, words: Words, bits: int) -> tuple[Flat, float]:
    signed = torch.from_numpy(words.astype(np.int32).astype(np.float64) / 2.0**bits)
    vector = Flat.zeros(worker.parameters.layout)
    begin = 0
    for x in vector.segments():
        x.copy_(signed[begin : begin + x.numel()].view(x.shape))
        begin += x.numel()
    return vector, float(signed[-1])


def _sum_of_words(worker: Worker, words: Words, members: Sequence[int]) -> tuple[Words, list[int]]:
    """The sum of all workers' words modulo 2^32, and who is in it: one mean, of pieces that float32 adds exactly."""
    cut = [words >> (_PIECE_BITS * k) & (2**_PIECE_BITS - 1) for k in range(_PIECES)]
    pieces = [torch.from_numpy(piece.astype(np.float32)) for piece in cut]
    there = torch.zeros(worker.size)
    there[worker.rank] = float(worker.rank in members)
    named = [("there", there), *((f"piece {k}", x) for k, x in enumerate(pieces))]
    into = empty_vector(layout_of(named, header=worker.parameters.layout.header))
    pack([x for _, x in named], into)
    mean = worker.means.of(into, weight=1.0).wait()
    there, *sums = mean.segments()
    count = _scale(there)
    total = sum((x.double() * count).round().to(torch.int64).numpy() << (_PIECE_BITS * k) for k, x in enumerate(sums))
    return np.asarray(total).astype(np.uint32), [rank for rank in range(worker.size) if there[rank] > 0]


def _revealed(held: dict[int, tuple[bytes, bytes]], members: Sequence[int], inside: Sequence[int]) -> bytes:
    """Return a share for each member: of its own mask if it is in the sum, else of its key; never both."""
    return b"".join(held[member][1] if member in inside else held[member][0] for member in members)


_PRIME = 2**521 - 1
"""Shares are points of polynomials modulo this prime (Mersenne's thirteenth)."""
_KEY_BYTES = 32
SHARE_BYTES = 66
"""The length of one share."""
_SEALED_BYTES = 2 * SHARE_BYTES + 16


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import x25519
        from cryptography.hazmat.primitives.ciphers import Cipher, aead, algorithms
        from cryptography.hazmat.primitives.kdf import hkdf
    except ImportError:
        raise missing_extra("secure sums need cryptography", extra="tls", package="cryptography") from None
    return hashes, serialization, x25519, Cipher, aead, algorithms, hkdf


def _derived(secret: bytes, purpose: bytes) -> bytes:
    hashes, *_, hkdf = _library()
    key: bytes = hkdf.HKDF(algorithm=hashes.SHA256(), length=_KEY_BYTES, salt=None, info=purpose).derive(secret)
    return key


def shared_secret(key: bytes, public: bytes) -> bytes:
    """Return the secret of the owner of a masking key and another worker, whose `MaskingKeys.public` is `public`."""
    _, _, x25519, *_ = _library()
    own = x25519.X25519PrivateKey.from_private_bytes(key)
    return _derived(own.exchange(x25519.X25519PublicKey.from_public_bytes(public[_KEY_BYTES:])), b"quorate mask")


def mask(seed: bytes, length: int) -> NDArray[np.uint32]:
    """So many numbers of 32 bits that whoever has not the seed cannot tell from chance: a ChaCha20 keystream."""
    *_, Cipher, _, algorithms, _ = _library()
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(4 * length))
    return np.frombuffer(stream, "<u4").astype(np.uint32)


class MaskingKeys:
    """One worker's, new for every sum and never sent: one to talk with others, one to draw masks with, and the
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
        """Return this worker's shares of the masking key and of the own seed of each worker that has sealed some.

        Raises `ConfigurationError` for shares that were not meant for this worker, or were changed on the way.
        """
        place, opened = sorted(public).index(rank), {}
        for other, row in sealed.items():
            sealed_share = row[place * _SEALED_BYTES : (place + 1) * _SEALED_BYTES]
            try:
                plain = self._cipher(public[other]).decrypt(_nonce(other, rank), sealed_share, None)
            except Exception as error:
                raise ConfigurationError(f"what rank {other} has sealed for a masked sum cannot be read") from error
            opened[other] = plain[:SHARE_BYTES], plain[SHARE_BYTES:]
        return opened


def _nonce(source: int, target: int) -> bytes:
    """Every key is of one pair and one sum, and each direction seals one message."""
    return source.to_bytes(6, "big") + target.to_bytes(6, "big")


def split_secret(secret: bytes, ranks: list[int], least: int) -> dict[int, bytes]:
    """Shamir's shares of a secret for these workers, any `least` of which give it again.

    Rank r has the value at r + 1 of a polynomial of degree `least` - 1 whose value at 0 is the secret.
    """
    powers = [int.from_bytes(secret, "big"), *(secrets.randbelow(_PRIME) for _ in range(least - 1))]
    shares = {}
    for rank in ranks:
        value = 0
        for coefficient in reversed(powers):
            value = (value * (rank + 1) + coefficient) % _PRIME
        shares[rank] = value.to_bytes(SHARE_BYTES, "big")
    return shares


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
    secret: bytes = (total % 2 ** (8 * _KEY_BYTES)).to_bytes(_KEY_BYTES, "big")
    return secret
