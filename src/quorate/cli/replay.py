"""`quorate replay`: repeat a training from its records, and compare every round with the recorded one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from quorate.cli.resume import folder_of, options_of, run_file
from quorate.cli.run import RunOptions, RunPlan, carry_out
from quorate.cli.scripts import check_module, check_script
from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell
from quorate.launch.local.newcomers import Room
from quorate.launch.run.folder import held, run_folder, write_run
from quorate.launch.run.overrides import Overrides
from quorate.launch.warm.request import RunRequest, VirtualRun
from quorate.records.rows import RoundRow
from quorate.records.tape import Tape, rounds_in, tape_of
from quorate.report.wording import counted


def replay(
    run: Annotated[str, typer.Argument(help="The folder of a run, or its name in runs/.", metavar="RUN")],
    name: Annotated[
        str | None, typer.Option(help="Keep the records in runs/NAME (default: RUN-replay).", metavar="NAME")
    ] = None,
    virtual: Annotated[
        bool, typer.Option("--virtual", help="Use virtual workers, also if the run had processes.")
    ] = False,
) -> int:
    """Train a run again exactly as its records say it went; for strategies with rounds.

    Every round receives the same gradients as before, and every worker applies it at the same step. The exit status is
    1 if the bits of any round differ.
    """
    folder = folder_of(run, "replay")
    tape = tape_of(folder)
    plan = _planned(folder, run_file(folder), tape, name or f"{folder.name}-replay", is_virtual=virtual)
    request = plan.request
    script = None if request.is_module else Path(request.script)
    write_run(request.folder, script, {"command": ["quorate", *sys.argv[1:]], **plan.as_json})
    with held(request.folder):
        status = carry_out(plan)
    held_against = compared(tape, request.folder)
    tell(f"quorate: {held_against.in_words(tape)}\n")
    if not held_against.is_equal:
        return status or 1
    return 0 if tape.dead else status  # who died has died again


def _planned(folder: Path, about: Mapping[str, Any], tape: Tape, name: str, *, is_virtual: bool) -> RunPlan:
    if about.get("seconds_limit") is not None:
        raise ConfigurationError(f"{folder} had a time limit, which cannot be replayed")
    learners = (about.get("settings") or {}).get("learners", "each")
    if learners != "each":
        raise ConfigurationError(f"{folder} had learners={learners}; learners of several workers cannot be replayed")
    said = options_of(folder, about, RunOptions)
    was_virtual = about.get("world") == "virtual"
    check_module(said["script"]) if said.get("is_module") else check_script(said["script"])
    if is_virtual and said.get("is_module"):
        raise ConfigurationError("--virtual runs a script, not a module; replay the run without --virtual")
    if tape.joined and not (was_virtual or is_virtual):
        raise ConfigurationError(f"workers joined {folder} during the run; replay it with --virtual")
    overrides = Overrides(
        strategy=about.get("strategy"),
        settings=about.get("settings") or {},
        seed=about.get("seed"),
        share=about.get("share"),
        learning_rate_factor=about.get("learning_rate_factor"),
        replay=str(folder.resolve()),
    )
    request = RunRequest(
        script=said["script"],
        arguments=said["arguments"],
        is_module=bool(said.get("is_module")),
        overrides=overrides,
        size=tape.size,
        folder=run_folder(name),
        virtual=VirtualRun(seed=about.get("seed") or 0, joiners=tape.joiners) if was_virtual or is_virtual else None,
    )
    return RunPlan(request=request, room=Room(0, 0))


@dataclass(frozen=True)
class Compared:
    """The rounds of a replay compared with the recorded ones."""

    equal: int
    unknown: int
    """Rounds without a digest: nothing was pending in them."""
    differs: tuple[str, RoundRow] | None = None
    """Optimizer and row of the first round that differs or is missing."""

    @property
    def is_equal(self) -> bool:
        """Whether no round differs."""
        return self.differs is None

    def in_words(self, tape: Tape) -> str:
        """Return `replayed 412 rounds of 4 workers: all have the bits they had in runs/x`."""
        if self.differs is not None:
            optimizer, row = self.differs
            of = f" of optimizer {optimizer}" if len(tape.rounds) > 1 else ""
            return f"round {row.number}{of} has other bits in the replay than in {tape.folder}, the first that has"
        beside = f", and {counted(self.unknown, 'round')} took in nothing" if self.unknown else ""
        workers = counted(tape.size, "worker")
        return (
            f"replayed {counted(self.equal, 'round')} of {workers}: all have the bits they had in {tape.folder}{beside}"
        )


def compared(tape: Tape, folder: Path) -> Compared:
    """Compare each round of `tape` with the records of its replay in `folder`."""
    replayed = rounds_in(folder)
    equal = unknown = 0
    for optimizer, rounds in tape.rounds.items():
        for number, row in sorted(rounds.items()):
            other = replayed.get(optimizer, {}).get(number)
            if other is None or other.digest != row.digest:
                return Compared(equal, unknown, (optimizer, row))
            equal, unknown = equal + (row.digest is not None), unknown + (row.digest is None)
    return Compared(equal, unknown)
