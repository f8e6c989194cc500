"""The verbs of `quorate`, and what they have in common: one sentence for wrong input, and the exit statuses.

0 ok, 1 a run failed, 2 wrong input, 3 the environment lacks something, 75 it may well be tried
again, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from quorate.cli.compare.command import CompareCommand
from quorate.cli.compare.verb import compare
from quorate.cli.config import ConfiguredCommand
from quorate.cli.doctor.verb import doctor
from quorate.cli.explain import explain
from quorate.cli.join import join
from quorate.cli.listing import list_names
from quorate.cli.planner.verb import plan
from quorate.cli.replay import replay
from quorate.cli.report import report
from quorate.cli.run import run
from quorate.cli.simulate.verb import simulate
from quorate.cli.trace import trace
from quorate.cli.watch import watch
from quorate.core.errors import ConfigurationError, MissingExtra, QuorateError
from quorate.core.telling import tell
from quorate.core.wanted import wanted_in_words
from quorate.launch.run.folder import version_of

FAILED, WRONG_INPUT, LACKING, INTERRUPTED = 1, 2, 3, 130
_LONGEST_SENTENCE = 1500

# The root of what typer raises about an argument; its own name has moved between versions.
_ArgumentError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
app.command("run", cls=ConfiguredCommand, context_settings={"allow_interspersed_args": False})(run)
app.command("join")(join)
app.command("compare", cls=CompareCommand, context_settings={"allow_interspersed_args": False})(compare)
app.command("simulate", cls=ConfiguredCommand)(simulate)
app.command("plan", context_settings={"allow_interspersed_args": False})(plan)
app.command("replay")(replay)
app.command("report")(report)
app.command("list")(list_names)
app.command("explain")(explain)
app.command("trace")(trace)
app.command("watch")(watch)
app.command("doctor", context_settings={"allow_interspersed_args": False})(doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quorate {version_of('quorate') or '(not installed)'}")
        raise typer.Exit


@app.callback()
def quorate(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Distributed training in PyTorch in which how workers agree is one argument."""


def status_of(arguments: Sequence[str] | None) -> int:
    """The exit status of the command line with these arguments (None: those of this process)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = app(args=given or ["--help"], prog_name="quorate", standalone_mode=False)
    except typer.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", INTERRUPTED)
    except MissingExtra as error:
        return _say(str(error), LACKING)
    except ConfigurationError as error:
        return _say(str(error), WRONG_INPUT)
    except (QuorateError, OSError) as error:
        return _say(str(error), FAILED)
    except _ArgumentError as error:
        return _say(_sentence_of(error), WRONG_INPUT)
    return status if isinstance(status, int) else 0


def _sentence_of(error: BaseException) -> str:
    told = str(getattr(error, "format_message", error.__str__)())
    place, of_type, wanted = told.partition(": Input should be ")
    if of_type:
        told = f"{place}; it is {wanted_in_words(wanted.rstrip('.'))}"
    return f"{told[:1].lower()}{told[1:].rstrip('.')}; see quorate --help"


def _say(sentence: str, status: int) -> int:
    """One line, whatever was given: what cannot be shown as Python writes it, and of very much the middle left out."""
    line = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in sentence)
    if len(line) > _LONGEST_SENTENCE:
        line = f"{line[: _LONGEST_SENTENCE // 2]} … {line[-_LONGEST_SENTENCE // 2 :]}"
    tell(f"quorate: {line}\n")
    return status
