"""Changes by one worker alone of values that have to be equal on all, found by signatures in the headers of sums
(`observe.signatures`), and with contributions to rounds.

Options of the optimizer are signed in every header. Parameters, optimizer state and the gradient of the newest step are
signed after rounds 1, 2, 4, 8, 16 and every 16 from there on. Where signatures differ, each worker that has signed
writes its values to the board; the last one names the difference, and raises.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import is_
from typing import Any
from zlib import crc32

from torch import Tensor

from quorate.core.contracts import Wire
from quorate.core.errors import Diverged, WireTimeout
from quorate.core.fields import Fields
from quorate.core.telling import tell
from quorate.observe.digests import digest
from quorate.observe.signatures import LENGTH, Sample, differ, is_due, next_due, signature
from quorate.observe.step_times import StepTimer
from quorate.replica.plain_step import options_in_force
from quorate.replica.replica import Replica
from quorate.wire.failure import report_failure
from quorate.wire.naming import named, ranks_of_world

ALL_SIGNATURES = 4 * LENGTH
CLOCK, OPTIONS, NUMBERS, GRADIENT = (slice(at, at + LENGTH) for at in range(0, ALL_SIGNATURES, LENGTH))
"""Places among the signatures of a header: the time of signing, the options, samples of parameters and optimizer state,
and samples of the gradient of the newest step."""
_USUAL = frozenset(
    (
        *("lr", "weight_decay", "momentum", "dampening", "nesterov", "maximize", "amsgrad"),
        *("betas", "beta1", "beta2", "beta3", "eps", "alpha", "rho"),
    )
)
"""Options that no optimizer changes itself. Others may be measured by it, where replicas differ."""
_NAMED_AT_MOST = 3
_KEPT_VERSIONS = 4
"""Rounds whose checksums are kept for late workers."""
_FIRST = (-1, -1)
"""Stands for the round before the first contribution, with a term of no other round."""
_SECONDS = 10.0
"""The limit of a wait for the worker that compares values."""


@dataclass(frozen=True, slots=True)
class Values(Fields):
    """The values of one worker; all but the options as checksums."""

    options: Sequence[Mapping[str, Any]]  # open: of each parameter group, by name
    parameters: Sequence[int] | None = None
    state: Mapping[str, int] | None = None
    gradient: Sequence[int] | None = None  # after the step
    edited: bool | None = None  # whether it is another one than after the backward pass

    def header(self) -> dict[str, Any]:
        return self.header_without_none()


class LocalChanges:
    """Signs the values of this worker, and compares them with the signatures of all.

    Not `is_on`: it does neither. Where replicas may `differ` between means, only options are signed, with the clock:
    workers at other places of the training may have other options. With `tells`, where no step brings all workers
    together, a difference is written to stderr. Cost: in each step a comparison of every option with its old value; for
    samples, see `Sample`, after some rounds.
    """

    def __init__(
        self,
        replica: Replica,
        wire: Wire,
        strategy: str,
        *,
        timer: StepTimer,
        clock: Callable[[], str],
        is_on: bool,
        differ: bool,
        tells: bool,
        whole_state: bool,
    ) -> None:
        """`whole_state`: whether this worker holds the full optimizer state, and not a part that differs."""
        self._replica, self._wire, self._strategy = replica, wire, strategy
        self._timer, self._clock = timer, clock
        self.is_on, self._samples, self._tells, self._whole_state = is_on, is_on and not differ, tells, whole_state
        self._enters = wire.is_newcomer
        """Whether this worker is a newcomer that has made no step yet."""
        self._options: list[Any] = []
        self._tensors: list[tuple[Tensor, int]] = []
        """Options in tensors, with their versions."""
        self._signatures = [0.0] * ALL_SIGNATURES
        """The current signatures, without the clock."""
        self._sent = self._signatures
        """The signatures that this worker has sent to the newest sum."""
        self.round_due = 1
        """The next round after which `round_applied` is to be called."""
        self._due_at = 1
        """The next update after which samples are signed."""
        self.samples_step = self._samples
        """Whether the gradient of the current step is sampled."""
        self._sampled_at = 0
        """The number of updates at that time."""
        self._words = list[list[int]]()
        self._signs_contributions = False
        """Whether replicas are signed as they are when a contribution is made, and not after their round."""
        self._awaits_contribution: tuple[int, int] | None = None
        """Number and term of the round after which the next contribution is signed."""
        self._checksums: dict[tuple[int, int], dict[int, int]] = {}
        """Checksums of replicas after a round of this number and term, by rank."""
        self._gradients: tuple[Sample, Sample | None] | None = None
        """Samples of the agreed gradient after the backward pass, and at the step."""

    # -- what this worker signs

    def signed_gradient(self) -> list[float]:
        """Return the signatures for the header of a gradient."""
        if not self._samples:
            return self.signed_vector()
        self._sign_options()
        self._sent, updates = self._signatures, self._timer.rounds
        if updates >= self._due_at:
            self._due_at = next_due(updates)
            if is_due(updates):
                self._sent = list(self._signatures)
                self._sent[NUMBERS] = signature(self._sampled(), self._wire.max_size)
                if (step := self._newest_step()) is not None:
                    self._sent[GRADIENT] = signature(step[1].checksum, self._wire.max_size)
        self.samples_step = updates + 1 == self._due_at
        if self._enters:  # its schedules reach the place of the training in this step
            self._enters = False
            self._sent = [*self._sent[: OPTIONS.start], *[0.0] * LENGTH, *self._sent[OPTIONS.stop :]]
        return self._sent

    def signed_vector(self) -> list[float]:
        """Return the signatures for the header of another vector."""
        if self.is_on:
            self._sign_options()
            self._sent = [*signature(crc32(self._clock().encode()), self._wire.max_size), *self._signatures[LENGTH:]]
        return self._sent

    def _sign_options(self) -> None:
        groups = self._replica.optimizer.param_groups
        now = [value for group in groups for key, value in group.items() if key != "params"]
        are_same = len(now) == len(self._options) and all(map(is_, now, self._options))
        if are_same and not (self._tensors and any(x._version != version for x, version in self._tensors)):
            return
        self._options = now
        self._tensors = [(x, x._version) for x in now if isinstance(x, Tensor)]
        self._signatures = list(self._signatures)
        self._signatures[OPTIONS] = signature(crc32(repr(self._signed_options()).encode()), self._wire.max_size)

    def _signed_options(self) -> list[dict[str, Any]]:
        options = options_in_force(self._replica.optimizer)
        if self._samples:
            return options
        return [{key: value for key, value in group.items() if key in _USUAL} for group in options]

    def _sampled(self) -> int:
        """Return the checksum of samples of parameters and optimizer state."""
        return Sample([*self._replica.all_trained, *(x for _, x in self._state())]).checksum

    def _newest_step(self) -> tuple[Sample, Sample] | None:
        """Return samples of the gradient of the newest update; None if it was not sampled, or made elsewhere."""
        if self._gradients is None or self._sampled_at + 1 != self._timer.rounds:
            return None
        agreed, stepped = self._gradients
        return None if stepped is None else (agreed, stepped)

    def _state(self) -> list[tuple[str, Tensor]]:
        """Return the tensors of the optimizer's state of the trained parameters, in order."""
        if not self._whole_state or self._replica.momentum is not None:  # it is of this worker's own gradients
            return []
        tensors, state = [], self._replica.optimizer.state
        for name, p in zip(self._replica.all_names, self._replica.all_trained, strict=True):
            kept = state.get(p)
            if kept:
                tensors += [(f"{key} of {name}", x) for key, x in sorted(kept.items()) if isinstance(x, Tensor)]
        return tensors

    # -- the gradient between the backward pass and the step

    def gradient_agreed(self) -> None:
        """Sample the agreed gradient that the backward pass has left in `.grad`; called where `samples_step`."""
        self._gradients, self._sampled_at = (Sample(self._replica.all_gradients), None), self._timer.rounds

    def step_begins(self) -> None:
        """Sample the gradient at the step; called where `samples_step`."""
        if self._gradients is not None and self._gradients[1] is None:
            self._gradients = self._gradients[0], Sample(self._replica.all_gradients)

    # -- what all have signed

    def compare(self, sums: Sequence[float]) -> None:
        """Compare the summed signatures of all. Raises `Diverged` where workers differ, on the last one to write."""
        count = sums[OPTIONS.start]
        if sums == [count * x for x in self._sent]:
            return
        clock = sums[CLOCK]
        if not any(differ(sums[place]) for place in (OPTIONS, NUMBERS, GRADIENT)) or differ(clock):
            return
        if not clock[0] or clock[0] == count:
            self._write(f"{crc32(repr(sums).encode()):08x}", round(count), self._signed_options())

    # -- rounds

    def sign_contributions(self) -> None:
        """Sign the replica with the first contribution, and with those after a round that is due.

        Rounds wait for all workers, so that these contribute after the same round: edits since then are found before
        the next update.
        """
        self._signs_contributions = True
        self._awaits_contribution = None if self._enters or not self._samples else _FIRST

    def round_applied(self, number: int, term: int) -> None:
        """Sign the replica after round `number`, which was formed in `term`, if it is due."""
        self.round_due = next_due(number)
        if not self._samples or not is_due(number):
            return
        if self._signs_contributions:
            self._awaits_contribution = number, term
        else:
            self._words.append([number, term, self._sampled()])

    def take_words(self, version: int) -> list[list[int]]:
        """Return number, term and checksum of each compared round, for this worker's contribution after `version`."""
        awaited, self._awaits_contribution = self._awaits_contribution, None
        if awaited is not None and (awaited is _FIRST or awaited[0] == version):
            self._words.append([version, awaited[1], self._sampled()])
        words, self._words = self._words, []
        return words

    def compare_round(self, number: int, words: Mapping[int, Sequence[Any]]) -> None:
        """Compare the `words`, by rank, that came with the contributions to round `number`, before it is applied.

        Raises as `compare`. Options are not compared: a round applies those of one worker.
        """
        for rank, contributions in words.items():
            for signed in (word["signed"] for word in contributions if isinstance(word, dict)):
                for version, term, checksum in signed:
                    self._checksums.setdefault((version, term), {})[rank] = checksum
        if any(len(set(checksums.values())) > 1 for checksums in self._checksums.values()):
            self._checksums.clear()
            self._write(f"round {number}", len(self._wire.alive), [])
        for old in sorted(self._checksums)[:-_KEPT_VERSIONS]:
            del self._checksums[old]

    def _write(self, when: str, count: int, options: Sequence[Mapping[str, Any]]) -> None:
        """Write this worker's values to the board; the last of `count` workers compares."""
        wire, board = self._wire, self._wire.board
        key = f"changes/{wire.name}/{when}"
        board.set(f"{key}/{wire.rank}", self._values(options).to_bytes())
        if board.add(f"{key}/written") != count:
            if self._signs_contributions:  # no worker makes an update that another one refuses
                with suppress(WireTimeout):
                    board.wait([f"{key}/compared"], _SECONDS)
            return
        written = {rank: text for rank in range(wire.max_size) if (text := board.get(f"{key}/{rank}")) is not None}
        self._raise({rank: Values.from_bytes(text) for rank, text in written.items()})
        board.set(f"{key}/compared", b"1")

    def _values(self, options: Sequence[Mapping[str, Any]]) -> Values:
        if not self._samples:
            return Values(options)
        state = {name: digest(x) for name, x in self._state()}
        values = Values(options, [digest(x) for x in self._replica.all_trained], state)
        if (step := self._newest_step()) is None:
            return values
        before, after = (sample.checksums() for sample in step)
        return replace(values, gradient=after, edited=before != after)

    def _raise(self, written: Mapping[int, Values]) -> None:
        verdict = self._difference(written) if len(written) > 1 else None
        if verdict is None:
            return
        ranks, difference = verdict
        sentence = f"{difference}, found at update {self._timer.rounds + 1} of {self._strategy}"
        if self._tells:
            if self._wire.board.swap(f"changes/{self._wire.name}/told", None, b"1"):
                tell(f"quorate: {sentence}\n")
            return
        report_failure(self._wire.board, ranks[0], sentence, kind="diverged", ranks=ranks)
        raise Diverged(sentence, ranks)

    def _difference(self, written: Mapping[int, Values]) -> tuple[list[int], str] | None:
        """Return the ranks that differ, and a sentence; None if all workers have become equal since."""
        options = {rank: values.options for rank, values in written.items()}
        if not _are_equal(options):
            return self._parted(options), self._options_in_words(options)
        if not self._samples:
            return None
        gradient = {rank: values.gradient for rank, values in written.items() if values.gradient is not None}
        if not _are_equal(gradient):
            edited = [rank for rank, values in written.items() if values.edited]
            ranks = ranks_of_world(self._wire, edited) if edited else self._parted(gradient)
            return ranks, (
                f"the gradient was changed after the backward pass on {self._who(ranks)} otherwise than on the others, "
                f"first in {self._first(gradient)}.grad, where it is the mean of all workers. Change .grad on all "
                "workers alike, or before the backward pass ends"
            )
        parameters = {rank: values.parameters or () for rank, values in written.items()}
        state = {rank: values.state or {} for rank, values in written.items()}
        kinds = []
        if not _are_equal(parameters):
            kinds.append(f"the parameters differ, first in {self._first(parameters)}")
        if not _are_equal(state):
            kinds.append(f"the optimizer's state differs, first in {_first_key(state)}")
        if not kinds:
            return None
        ranks = self._parted({rank: [parameters[rank], state[rank]] for rank in written})
        who = f"the replicas of {self._who(ranks)} differ from each other"
        if len(ranks) < len(written):
            who = f"the replica{'s' * (len(ranks) > 1)} of {self._who(ranks)} parted from the others"
        return ranks, (
            f"{who}: {' and '.join(kinds)}; write into parameters and load states on all workers alike, or before "
            "quorate.distribute. To move weights and move them back (as SAM does), copy them back from a clone"
        )

    def _options_in_words(self, options: Mapping[int, Sequence[Mapping[str, Any]]]) -> str:
        differences = []
        for number in range(max(map(len, options.values()))):
            groups = {rank: own[number] if number < len(own) else {} for rank, own in options.items()}
            for name in dict.fromkeys(key for group in groups.values() for key in group):
                values = {rank: group.get(name) for rank, group in groups.items()}
                if not _are_equal(values):
                    differences.append(f"{name} of parameter group {number} is {self._by_rank(values)}")
        return (
            f"the optimizer's options differ between workers: {'; '.join(differences[:_NAMED_AT_MOST])}; set the same "
            "on all workers (a scheduler that looks at a loss is given world.mean(loss))"
        )

    def _by_rank(self, values: Mapping[int, Any]) -> str:
        ranks: dict[str, list[int]] = {}
        for rank, value in values.items():
            ranks.setdefault(json.dumps(value), []).append(rank)
        words = [f"{value} on {self._who(ranks_of_world(self._wire, own))}" for value, own in ranks.items()]
        return f"{', '.join(words[:-1])} and {words[-1]}"

    def _parted(self, values: Mapping[int, Any]) -> list[int]:
        """Return the ranks of the minority; all ranks where there is none."""
        texts = {rank: json.dumps(value, sort_keys=True) for rank, value in values.items()}
        (most, count), *rest = Counter(texts.values()).most_common()
        is_tie = any(other == count for _, other in rest)
        return ranks_of_world(self._wire, [rank for rank, text in texts.items() if is_tie or text != most])

    def _who(self, ranks: Sequence[int]) -> str:
        return named(self._wire.board, ranks)

    def _first(self, values: Mapping[int, Any]) -> str:
        """Return the name of the first tensor in which workers differ."""
        columns = enumerate(zip(*values.values(), strict=False))
        at = next((place for place, column in columns if len(set(column)) > 1), None)
        return "how many tensors there are" if at is None else self._replica.all_names[at]


def _are_equal(values: Mapping[int, Any]) -> bool:
    return len({json.dumps(value) for value in values.values()}) <= 1


def _first_key(states: Mapping[int, Mapping[str, int]]) -> str:
    keys = dict.fromkeys(key for state in states.values() for key in state)
    return next(key for key in keys if len({state.get(key) for state in states.values()}) > 1)
