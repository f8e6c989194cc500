"""Local changes: what one worker alone has changed of what has to be equal on all workers, found by signatures that
travel in the headers of sums (`observe.signatures`), and with contributions to rounds.

Options of the optimizer are signed in every header, parameters, optimizer state and the gradient that the newest step
was made on after rounds 1, 2, 4, 8, 16 and every 16 from there on. Where signatures differ, each worker that has signed
writes to the board what it has; the last one names the difference, and raises.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any
from zlib import crc32

from torch import Tensor

from quorate.core.contracts import Wire
from quorate.core.errors import Diverged
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
"""Places among the signatures of a header: when a worker signs, its options, samples of its parameters and optimizer
state, and of the gradient that the newest step was made on."""
_USUAL = frozenset(
    (
        *("lr", "weight_decay", "momentum", "dampening", "nesterov", "maximize", "amsgrad"),
        *("betas", "beta1", "beta2", "beta3", "eps", "alpha", "rho"),
    )
)
"""Options that no optimizer changes itself. Others may be measured by it, where replicas differ."""
_NAMED_AT_MOST = 3
_KEPT_VERSIONS = 4
"""Rounds whose checksums are kept for workers that are late."""


class LocalChanges:
    """Signs what this worker has, and compares with what the others have signed.

    Not `is_on`: it does neither. Where replicas may `differ` between means, only options are signed, with the clock:
    workers that have come to other places of the training may have other options. Such a difference is `told` on stderr
    where no step brings all workers together. Cost: in each step a comparison of every option with what it was; of the
    samples see `Sample`, after some rounds.
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
        told: bool,
        whole_state: bool,
    ) -> None:
        """`whole_state`: whether this worker holds all of the optimizer's state, and not a part that differs."""
        self._replica, self._wire, self._strategy = replica, wire, strategy
        self._timer, self._clock = timer, clock
        self.is_on, self._samples, self._tells, self._whole_state = is_on, is_on and not differ, told, whole_state
        self._enters = wire.is_newcomer
        """Whether this worker joins, and has made no step yet."""
        self._options: list[Any] = []
        self._tensors: list[tuple[Tensor, int]] = []
        """Options in tensors, with their versions."""
        self._mine = [0.0] * ALL_SIGNATURES
        """What is signed, without the clock."""
        self._given = self._mine
        """What this worker has given to the newest sum."""
        self.round_due = 1
        """The next round after which `round_applied` is to be called."""
        self._due_at = 1
        """The next update after which numbers are signed."""
        self.samples_step = self._samples
        """Whether the gradient of the step that is being made is sampled."""
        self._sampled_at = 0
        """How many updates had been made then."""
        self._words = list[list[int]]()
        self._checksums: dict[tuple[int, int], dict[int, int]] = {}
        """Checksums of replicas as after a round of this number and term, by rank."""
        self._gradients: tuple[Sample, Sample | None] | None = None
        """Samples of the agreed gradient as the backward pass has left it, and as a step was made on it."""

    # -- what this worker signs

    def signed_gradient(self) -> list[float]:
        """What goes into the header of a gradient."""
        if not self._samples:
            return self.signed_vector()
        self._sign_options()
        self._given, updates = self._mine, self._timer.rounds
        if updates >= self._due_at:
            self._due_at = next_due(updates)
            if is_due(updates):
                self._given = list(self._mine)
                self._given[NUMBERS] = signature(self._sampled(), self._wire.max_size)
                if (step := self._newest_step()) is not None:
                    self._given[GRADIENT] = signature(step[1].checksum, self._wire.max_size)
        self.samples_step = updates + 1 == self._due_at
        if self._enters:  # its schedules come to where the training is in this step
            self._enters = False
            self._given = [*self._given[: OPTIONS.start], *[0.0] * LENGTH, *self._given[OPTIONS.stop :]]
        return self._given

    def signed_vector(self) -> list[float]:
        """What goes into the header of another vector."""
        if self.is_on:
            self._sign_options()
            self._given = [*signature(crc32(self._clock().encode()), self._wire.max_size), *self._mine[LENGTH:]]
        return self._given

    def _sign_options(self) -> None:
        groups = self._replica.optimizer.param_groups
        now = [value for group in groups for key, value in group.items() if key != "params"]
        are_same = len(now) == len(self._options) and all(map(is_, now, self._options))
        if are_same and not (self._tensors and any(x._version != version for x, version in self._tensors)):
            return
        self._options = now
        self._tensors = [(x, x._version) for x in now if isinstance(x, Tensor)]
        self._mine = list(self._mine)
        self._mine[OPTIONS] = signature(crc32(repr(self._signed_options()).encode()), self._wire.max_size)

    def _signed_options(self) -> list[dict[str, Any]]:
        every = options_in_force(self._replica.optimizer)
        if self._samples:
            return every
        return [{key: value for key, value in group.items() if key in _USUAL} for group in every]

    def _sampled(self) -> int:
        """The checksum of samples of parameters and optimizer state."""
        return Sample([*self._replica.trained, *(x for _, x in self._state())]).checksum

    def _newest_step(self) -> tuple[Sample, Sample] | None:
        """Samples of the gradient of the newest update; None where it was not sampled, or made elsewhere."""
        if self._gradients is None or self._sampled_at + 1 != self._timer.rounds:
            return None
        agreed, stepped = self._gradients
        return None if stepped is None else (agreed, stepped)

    def _state(self) -> list[tuple[str, Tensor]]:
        """Tensors that the optimizer keeps of the parameters that are trained, in order."""
        if not self._whole_state or self._replica.momentum is not None:  # it is of this worker's own gradients
            return []
        found, state = [], self._replica.optimizer.state
        for name, p in zip(self._replica.names, self._replica.trained, strict=True):
            kept = state.get(p)
            if kept:
                found += [(f"{key} of {name}", x) for key, x in sorted(kept.items()) if isinstance(x, Tensor)]
        return found

    # -- the gradient between the backward pass and the step

    def gradient_agreed(self) -> None:
        """The backward pass has left the agreed gradient in `.grad`; called where `samples_step`."""
        self._gradients, self._sampled_at = (Sample(self._replica.gradients), None), self._timer.rounds

    def step_begins(self) -> None:
        """A step is made on the gradient as it stands; called where `samples_step`."""
        if self._gradients is not None and self._gradients[1] is None:
            self._gradients = self._gradients[0], Sample(self._replica.gradients)

    # -- what all have signed

    def compare(self, sums: Sequence[float]) -> None:
        """`sums` of what all have signed. Raises `Diverged` where workers differ, on the last one to say so."""
        count = sums[OPTIONS.start]
        if sums == [count * x for x in self._given]:
            return
        clock = sums[CLOCK]
        if not any(differ(sums[place]) for place in (OPTIONS, NUMBERS, GRADIENT)) or differ(clock):
            return
        if not clock[0] or clock[0] == count:
            self._write(f"{crc32(repr(sums).encode()):08x}", round(count), self._signed_options())

    # -- rounds

    def round_applied(self, number: int, term: int) -> None:
        """This worker has applied round `number`, which was formed in `term`."""
        self.round_due = next_due(number)
        if self._samples and is_due(number):
            self._words.append([number, term, self._sampled()])

    def take_words(self) -> list[list[int]]:
        """Number, term and checksum of each compared round; they go with this worker's next contribution."""
        words, self._words = self._words, []
        return words

    def compare_round(self, number: int, words: Mapping[int, Sequence[Any]]) -> None:
        """Round `number` is about to be applied on all workers; `words`, by rank, came with what it is made of.

        Raises as `compare`. Options are not compared: a round applies those of one worker.
        """
        for rank, every in words.items():
            for signed in (word["signed"] for word in every if isinstance(word, dict)):
                for version, term, checksum in signed:
                    self._checksums.setdefault((version, term), {})[rank] = checksum
        if any(len(set(found.values())) > 1 for found in self._checksums.values()):
            self._checksums.clear()
            self._write(f"round {number}", len(self._wire.alive), [])
        for old in sorted(self._checksums)[:-_KEPT_VERSIONS]:
            del self._checksums[old]

    def _write(self, when: str, count: int, options: Sequence[Mapping[str, Any]]) -> None:
        """Say what this worker has; the last of `count` workers compares."""
        wire, board = self._wire, self._wire.board
        key = f"changes/{wire.name}/{when}"
        board.set(f"{key}/{wire.rank}", json.dumps({"options": options, **self._details()}).encode())
        if board.add(f"{key}/written") != count:
            return
        written = {rank: found for rank in range(wire.max_size) if (found := board.get(f"{key}/{rank}")) is not None}
        self._raise({rank: json.loads(found) for rank, found in written.items()})

    def _details(self) -> dict[str, Any]:
        if not self._samples:
            return {}
        details: dict[str, Any] = {}
        state = self._state()
        details["parameters"] = [digest(x) for x in self._replica.trained]
        details["state"] = {name: digest(x) for name, x in state}
        if (step := self._newest_step()) is not None:
            before, after = (sample.checksums() for sample in step)
            details["gradient"], details["edited"] = after, before != after
        return details

    def _raise(self, written: Mapping[int, Mapping[str, Any]]) -> None:
        found = self._difference(written) if len(written) > 1 else None
        if found is None:
            return
        ranks, difference = found
        sentence = f"{difference}, found at update {self._timer.rounds + 1} of {self._strategy}"
        if self._tells:
            if self._wire.board.swap(f"changes/{self._wire.name}/told", None, b"1"):
                tell(f"quorate: {sentence}\n")
            return
        report_failure(self._wire.board, ranks[0], sentence, kind="diverged", ranks=ranks)
        raise Diverged(sentence, ranks)

    def _difference(self, written: Mapping[int, Mapping[str, Any]]) -> tuple[list[int], str] | None:
        """The ranks to blame, and a sentence; None where all workers have become equal since."""
        options = {rank: details["options"] for rank, details in written.items()}
        if not _are_equal(options):
            return self._parted(options), self._options_in_words(options)
        if not self._samples:
            return None
        gradient = {rank: details["gradient"] for rank, details in written.items() if "gradient" in details}
        if not _are_equal(gradient):
            edited = [rank for rank, details in written.items() if details.get("edited")]
            ranks = ranks_of_world(self._wire, edited) if edited else self._parted(gradient)
            return ranks, (
                f"the gradient was changed after the backward pass on {self._who(ranks)} otherwise than on the others, "
                f"first in {self._first(gradient)}.grad, where it is the mean of all workers; change .grad on all "
                "workers alike, or before the backward pass ends"
            )
        parameters = {rank: details["parameters"] for rank, details in written.items()}
        state = {rank: details["state"] for rank, details in written.items()}
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
            "quorate.distribute"
        )

    def _options_in_words(self, options: Mapping[int, Sequence[Mapping[str, Any]]]) -> str:
        found = []
        for number in range(max(map(len, options.values()))):
            groups = {rank: every[number] if number < len(every) else {} for rank, every in options.items()}
            for name in dict.fromkeys(key for group in groups.values() for key in group):
                values = {rank: group.get(name) for rank, group in groups.items()}
                if not _are_equal(values):
                    found.append(f"{name} of parameter group {number} is {self._by_rank(values)}")
        return (
            f"the optimizer's options differ between workers: {'; '.join(found[:_NAMED_AT_MOST])}; set the same on all "
            "workers (a scheduler that looks at a loss is given world.mean(loss))"
        )

    def _by_rank(self, values: Mapping[int, Any]) -> str:
        ranks: dict[str, list[int]] = {}
        for rank, value in values.items():
            ranks.setdefault(json.dumps(value), []).append(rank)
        words = [f"{value} on {self._who(ranks_of_world(self._wire, some))}" for value, some in ranks.items()]
        return f"{', '.join(words[:-1])} and {words[-1]}"

    def _parted(self, values: Mapping[int, Any]) -> list[int]:
        """The ranks of the minority; all where there is none."""
        texts = {rank: json.dumps(value, sort_keys=True) for rank, value in values.items()}
        (most, count), *rest = Counter(texts.values()).most_common()
        is_tie = any(other == count for _, other in rest)
        return ranks_of_world(self._wire, [rank for rank, text in texts.items() if is_tie or text != most])

    def _who(self, ranks: Sequence[int]) -> str:
        return named(self._wire.board, ranks)

    def _first(self, values: Mapping[int, Any]) -> str:
        """The first tensor in which workers differ."""
        columns = enumerate(zip(*values.values(), strict=False))
        at = next((place for place, column in columns if len(set(column)) > 1), None)
        return "how many tensors there are" if at is None else self._replica.names[at]


def _are_equal(values: Mapping[int, Any]) -> bool:
    return len({json.dumps(value) for value in values.values()}) <= 1


def _first_key(states: Mapping[int, Mapping[str, int]]) -> str:
    keys = dict.fromkeys(key for state in states.values() for key in state)
    return next(key for key in keys if len({state.get(key) for state in states.values()}) > 1)
