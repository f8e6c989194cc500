"""Errors for users; each message is one sentence with the mistake and the allowed values."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

_ALIKE = 0.75
"""The likeness from which on a name is taken for a misspelling of one other."""


class QuorateError(Exception):
    """The root of every error Quorate raises on purpose."""

    ag_pass_through = True
    """It leaves a `tf.function` as it is: AutoGraph of TensorFlow looks for this name."""


class ConfigurationError(QuorateError, ValueError):
    """A wrong argument, setting or combination; raised before any work is done (exit status 2)."""


class MissingExtra(ConfigurationError):
    """A package that is needed is not installed; the message says how to install it (exit status 3)."""


class _OfRanks(QuorateError):
    """An error that concerns some workers: `ranks`, as far as they are known."""

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class PeerFailed(_OfRanks, RuntimeError):
    """Another worker died, raised, or left while it was needed.

    `ranks` are the workers that failed, as far as they are known (empty if only a broken connection was seen).
    """


class WireTimeout(_OfRanks, TimeoutError):
    """A wait outlasted its timeout; `ranks` are the workers that were waited for, as far as they are known."""

    record = ""
    """The end of a sentence, which names the file with torch's record of collectives, if there is one."""


class RequestFailed(_OfRanks, RuntimeError):
    """The server of a request, another worker, raised; `ranks` is that worker."""


class WorkerFailed(_OfRanks, RuntimeError):
    """A worker that `quorate.launch` has started raised or died; the message holds its traceback, and `ranks` is it."""


class Mismatch(QuorateError, RuntimeError):
    """Workers called different operations at the same place: another order, shape or dtype."""

    @classmethod
    def between(
        cls, rank: int, operation: str, peer: int, theirs: str, named: Callable[[int], str] = "rank {}".format
    ) -> Mismatch:
        """Return the error of `rank` that called `operation` and `peer` that called `theirs`; `named` names a rank."""
        (first, a), (second, b) = sorted([(rank, operation), (peer, theirs)])
        return cls(
            f"workers called different things at the same place: {named(first)} {a}, {named(second)} {b}; every worker "
            "must call the same collectives in the same order"
        )


class NotFinite(_OfRanks, ArithmeticError):
    """A gradient is NaN or infinite, and `on_nonfinite` says that this ends the training.

    `ranks` are the workers that computed it.
    """


class BadFile(_OfRanks, OSError):
    """A file of the data that cannot be read; `ranks` is the worker that tried."""


class Diverged(_OfRanks, RuntimeError):
    """Replicas that must be equal are not; `ranks` are those of the minority, or all that differ."""


class CheckpointError(ConfigurationError):
    """A checkpoint that cannot be used: damaged, incomplete, of a later version, or of another model or world."""


Failure = PeerFailed | Mismatch | NotFinite | Diverged
"""The first failure of a run, as the other workers raise it."""


class Stopped(SystemExit):
    """This worker was asked to leave, and leaves in order; `code` is its exit status."""


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Return ranks in words: `rank 2`, `ranks 0, 1 and 3`; `no rank` when empty."""
    names = [str(rank) for rank in sorted(ranks)]
    if not names:
        return "no rank"
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def unknown(kind: str, name: str, known: Iterable[str], *, listed_by: str = "") -> ConfigurationError:
    """Return the error for an unknown name, with the nearest known ones and all, or the command that lists them."""
    names = sorted(known)
    folded = {each.lower().replace("_", "-"): each for each in names}
    near = [folded[each] for each in difflib.get_close_matches(name.lower().replace("_", "-"), folded, n=3)]
    if near and difflib.SequenceMatcher(None, name.lower(), near[0].lower()).ratio() > _ALIKE:
        near = near[:1]
    quoted = " or ".join(f'"{each}"' for each in near)
    if listed_by:
        hint = f"; did you mean {quoted}? See" if near else "; see"
        return ConfigurationError(f'unknown {kind} "{name}"{hint} {listed_by}')
    hint = f"; did you mean {quoted}?" if near else "."
    return ConfigurationError(f'unknown {kind} "{name}"{hint} Known: {", ".join(names) or "none"}.')
