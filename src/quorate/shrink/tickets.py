"""Lottery tickets: a net is trained, pruned, rewound to an early step and trained again, round after round."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.checkpoint.tensor_file import read_tensors, write_tensors
from quorate.core.errors import ConfigurationError
from quorate.data.context import DataContext
from quorate.replica.masks import masks_of
from quorate.shrink.masks import Scope
from quorate.shrink.pruning import Pruning, prune
from quorate.train.loop import Loop
from quorate.train.pauses import at_the_mean, pause
from quorate.wire import current
from quorate.wire.current import Place

_MASK = ".mask"
Redraw = Literal["each", "last", "none"]


@dataclass(frozen=True)
class Ticket:
    """A pruned net at the step to which it is rewound, and its quality after training from there."""

    round: int
    """0: the full net."""
    density: float
    """The share of numbers that are kept, of the parameters that are pruned."""
    quality: float
    redraw: float | None
    """The quality of the same masks, trained from new draws; None: not trained."""
    path: Path | None
    """The file of the ticket: see `read`."""


@dataclass
class Tickets:
    """The tickets of one lottery, by round."""

    all: list[Ticket] = field(default_factory=list)

    def table(self) -> str:
        """Return one row for each round: the share of kept numbers, the quality, and that of a random redraw."""
        rows = ["round   kept  quality  redraw"]
        for ticket in self.all:
            redraw = "" if ticket.redraw is None else f"{ticket.redraw:.4g}"
            rows.append(f"{ticket.round:5d}  {ticket.density:5.1%}  {ticket.quality:7.4g}  {redraw:>6}".rstrip())
        return "\n".join(rows)


class Training:
    """One training of a lottery: the argument of its `train`."""

    def __init__(self, lottery: _Lottery, begin: int) -> None:
        self._lottery = lottery
        self.begin = begin
        """The step of the schedule at which this training begins: 0, or that of `rewind`."""
        self.steps = begin
        """The steps that were made, `begin` included."""

    def step(self) -> None:
        """Count a step: called after each `optimizer.step()`, by all workers after the same step."""
        self.steps += 1
        self._lottery.stepped(self.steps)


def lottery(
    train: Callable[[Training], float | Tensor],
    optimizer: Optimizer,
    *,
    rounds: int,
    share: float = 0.2,
    rewind: str = "step 500",
    scope: Scope = "layer",
    redraw: Redraw = "each",
    folder: str | Path | None = None,
) -> Tickets:
    """Look for small nets that train as well as the full one, by pruning, rewinding and training again.

    In each round `train` trains the net to its end. Then `share` of the kept numbers are pruned, those of the smallest
    magnitude in the consensus. The others are rewound to the step of `rewind` of the first round, and the state of the
    optimizer is emptied. Source: Frankle and Carbin, "The lottery ticket hypothesis", ICLR 2019; rewinding to an
    early step: Frankle, Dziugaite, Roy and Carbin, "Linear mode connectivity and the lottery ticket hypothesis", 2020.

    Args:
        train: Trains the optimizer's model from where it is, calls `step()` of its argument after each
            `optimizer.step()`, and returns a quality, the higher the better. Under strategies whose replicas differ it
            evaluates inside `world.evaluate()`. It does not call `optimizer.finish()`.
        optimizer: An optimizer of `quorate.distribute`.
        rounds: The number of prunings; 1 - (1 - share)^rounds is pruned in the end.
        share: The share of kept numbers that each round prunes.
        rewind: "start", or "step N" for the numbers after N steps of the first round.
        scope: See `prune`.
        redraw: Which tickets are compared with new draws by `reset_parameters()` of each layer under the same masks.
        folder: Where rank 0 writes `ticket-ROUND.safetensors`; None: no files.

    Returns:
        The tickets, the full net first. The optimizer has the last one, rewound and not trained.

    Raises:
        ConfigurationError: An argument is not as above, or the first round made fewer steps than `rewind` says. Also as
            `prune`.

    Cost: `rounds` + 1 trainings, twice as many with redraw="each", and a copy of the parameters.

    Example:
        >>> optimizer = quorate.distribute(optimizer, model)
        >>> def train(training):
        ...     for _ in range(4):
        ...         model(inputs).square().mean().backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        ...         training.step()
        ...     return -model(inputs).square().mean().item()
        >>> _ = quorate.shrink.lottery(train, optimizer, rounds=1, rewind="step 2", redraw="none")
    """
    step = _step_in(rewind)
    if type(rounds) is not int or rounds < 1:
        raise ConfigurationError(f"rounds is {rounds!r}; it must be a number of prunings, at least 1")
    if not 0 < share < 1:
        raise ConfigurationError(f"share is {share}; it must be above 0 and below 1")
    if redraw not in ("each", "last", "none"):
        raise ConfigurationError(f"redraw={redraw!r} is unknown; known: each, last, none")
    pruning = prune(optimizer, amount=0.0, scope=scope)
    running = _Lottery(pruning, optimizer, step, None if folder is None else Path(folder))
    tickets, first = Tickets(), Training(running, 0)
    running.stepped(0)
    quality = float(train(first))
    if running.rewound is None:
        raise ConfigurationError(f'rewind="{rewind}", and the first round made only {first.steps} steps')
    tickets.all.append(Ticket(0, pruning.density, quality, None, running.write(0)))
    for number in range(1, rounds + 1):
        pruning.again(1 - (1 - share) ** number)
        other = None
        if redraw == "each" or (redraw == "last" and number == rounds):
            trained = running.numbers()
            running.put(running.drawn(number))
            other = float(train(Training(running, 0)))
            running.put(trained)
        running.put(running.rewound)
        path = running.write(number)
        quality = float(train(Training(running, step)))
        tickets.all.append(Ticket(number, pruning.density, quality, other, path))
    running.put(running.rewound)
    return tickets


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the numbers and the masks in the file of a ticket, by the names of parameters."""
    tensors, _ = read_tensors(Path(path))
    masks = {name.removesuffix(_MASK): x.bool() for name, x in tensors.items() if name.endswith(_MASK)}
    return {name: x for name, x in tensors.items() if not name.endswith(_MASK)}, masks


def _step_in(rewind: str) -> int:
    match = re.fullmatch(r"step (\d+)", rewind)
    if rewind != "start" and match is None:
        raise ConfigurationError(f'rewind="{rewind}" is unknown; write "start", or "step 500"')
    return 0 if match is None else int(match[1])


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


class _Lottery:
    """The numbers to which the net is rewound, and how all workers write them."""

    def __init__(self, pruning: Pruning, optimizer: Optimizer, step: int, folder: Path | None) -> None:
        self._pruning, self._optimizer, self._step, self._folder = pruning, optimizer, step, folder
        self._place: Place = current.here()
        self.rewound: dict[Tensor, Tensor] | None = None

    def stepped(self, steps: int) -> None:
        """Note the consensus after the step to which the net is rewound."""
        if self.rewound is None and steps == self._step:
            self.rewound = self.numbers()

    def numbers(self) -> dict[Tensor, Tensor]:
        """Return the parameters of the consensus. Cost: a pause of all workers, and a copy."""
        pause(self._place)
        with at_the_mean(self._place):
            return {p: p.detach().clone() for p in _parameters(self._optimizer)}

    def put(self, numbers: Mapping[Tensor, Tensor]) -> None:
        """Write these parameters on all workers, under the masks, and empty the state of the optimizer."""

        def write(loop: Loop | None) -> None:
            with torch.no_grad():
                for p, x in numbers.items():
                    p.copy_(x)
            self._optimizer.state.clear()
            if loop is not None and loop.replica.momentum is not None:
                loop.replica.momentum.own.clear()
            masks_of(self._optimizer).apply()

        self._pruning.paused(write)

    def drawn(self, number: int) -> dict[Tensor, Tensor]:
        """Return new draws, which are the same on all workers."""
        before = {p: p.detach().clone() for p in _parameters(self._optimizer)}
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(self._place.context(DataContext).seed * 1_000_003 + number)
            for module in self._pruning.model.modules():
                reset: Any = getattr(module, "reset_parameters", None)
                if callable(reset):
                    reset()
            drawn = {p: p.detach().clone() for p in before}
            for p, x in before.items():
                p.copy_(x)
        return drawn

    def write(self, number: int) -> Path | None:
        """Write the ticket of a round on rank 0, and return its path."""
        if self._folder is None or self.rewound is None:
            return None
        path = self._folder / f"ticket-{number}.safetensors"
        if self._place.wire.rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            masks, tensors = masks_of(self._optimizer).by_tensor, dict[str, Tensor]()
            for name, p in self._pruning.model.named_parameters():
                x = tensors[name] = self.rewound[p].clone() if p in self.rewound else p.detach().clone()
                if p in masks:
                    masks[p].apply_(x)
                    tensors[name + _MASK] = masks[p].kept.to(torch.uint8)
            write_tensors(path, {name: x.cpu().contiguous() for name, x in tensors.items()}, {})
        return path
