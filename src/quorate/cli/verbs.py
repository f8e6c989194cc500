"""The verbs of `quorate`, and what they have in common: one sentence for wrong input, and the exit statuses.

0 ok, 1 a run failed, 2 wrong input, 3 the environment lacks something, 75 it may well be tried
again, 130 interrupted. Verbs are imported when they are called, as each needs other modules: `quorate --help` imports
none of them, and a wrong argument only its own verb.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from quorate.core.errors import ConfigurationError, MissingExtra, QuorateError
from quorate.core.settings import wanted_in_words
from quorate.core.telling import tell

FAILED, WRONG_INPUT, LACKING, INTERRUPTED = 1, 2, 3, 130
_LONGEST_SENTENCE = 1500

# The root of what typer raises about an argument; its own name has moved between versions.
_ArgumentError: type[Exception] = typer.BadParameter.__mro__[2]

_HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
_PLAIN, _CONFIGURED = "quorate.cli.command:PlainCommand", "quorate.cli.config:ConfiguredCommand"


@dataclass(frozen=True)
class Verb:
    """One verb: `module:name` of its function and of its command's class; `--help` shows `summary`."""

    function: str
    command: str
    summary: str
    has_script: bool = False
    """Whether words after the script are arguments of the script."""

    def made(self, name: str) -> Any:
        """Return the command of this verb."""
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        settings: Any = {**_HELP, "allow_interspersed_args": not self.has_script}
        add = app.command(name, cls=_imported(self.command), short_help=self.summary, context_settings=settings)
        add(_imported(self.function))
        return typer.main.get_command(app)


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


class _Commands(Mapping[str, Any]):
    def __init__(self, verbs: Mapping[str, Verb]) -> None:
        self._verbs = verbs
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._verbs[name].made(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._verbs)

    def __len__(self) -> int:
        return len(self._verbs)


def group_of(verbs: Mapping[str, Verb]) -> type[TyperGroup]:
    """Return a group of these verbs."""

    class Verbs(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands: Any = _Commands(verbs)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, verb.summary) for name, verb in verbs.items()])

    return Verbs


VERBS = {
    "run": Verb("quorate.cli.run:run", _CONFIGURED, "Run a training script with several workers.", True),
    "join": Verb("quorate.cli.join:join", _PLAIN, "Let more workers join a run that is running."),
    "compare": Verb(
        "quorate.cli.compare.verb:compare",
        "quorate.cli.compare.verb:CompareCommand",
        "Compare strategies, and write a report about them.",
        True,
    ),
    "simulate": Verb(
        "quorate.cli.simulate.verb:simulate", _CONFIGURED, "Simulate strategies with up to 100,000 workers."
    ),
    "plan": Verb("quorate.cli.planner.verb:plan", _PLAIN, "Find the fastest layouts of a model that fit.", True),
    "replay": Verb("quorate.cli.replay:replay", _PLAIN, "Train a recorded run again, exactly as it went."),
    "report": Verb("quorate.cli.report:report", _PLAIN, "Write the report of a run or a comparison."),
    "list": Verb("quorate.cli.listing:list_names", _PLAIN, "List the names of strategies, workloads, codecs and more."),
    "explain": Verb("quorate.cli.explain:explain", _PLAIN, "Explain a strategy or another name in full."),
    "trace": Verb("quorate.cli.trace:trace", _PLAIN, "Write the timeline of a run for a trace viewer."),
    "watch": Verb("quorate.cli.watch:watch", _PLAIN, "Watch a run in the browser or on the terminal."),
    "migrate": Verb("quorate.cli.migrate:migrate", _PLAIN, "Say what a DeepSpeed configuration is here."),
    "bench": Verb("quorate.cli.bench:bench", _PLAIN, "Measure collectives and rounds beside those of torch."),
    "tune": Verb("quorate.cli.tune:tune", _PLAIN, "Find the fastest way to send gradients, while training.", True),
    "pack": Verb("quorate.cli.packing:pack", _PLAIN, "Write a pruned or clustered model in a small file."),
    "unpack": Verb("quorate.cli.packing:unpack", _PLAIN, "Write the tensors of a packed model as they were."),
    "doctor": Verb("quorate.cli.doctor.verb:doctor", _PLAIN, "Check this machine, and say how to fix problems.", True),
}
"""The verbs by name. `quorate --help` shows their summaries, and would cut longer ones."""


app = typer.Typer(cls=group_of(VERBS), pretty_exceptions_enable=False, rich_markup_mode=None, context_settings=_HELP)


def _show_version(wanted: bool) -> None:
    if wanted:
        from quorate.core.installed import version_of

        typer.echo(f"quorate {version_of('quorate') or '(not installed)'}")
        raise typer.Exit


@app.callback()
def quorate(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Distributed training for PyTorch: how workers agree is one argument."""


def status_of(arguments: Sequence[str] | None) -> int:
    """Return the exit status of the command line with these arguments (None: those of this process)."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if words[0] == "help":
        words = [*words[1:2], "--help"]
    elif words[0] == "version":
        words = ["--version"]
    try:
        status = app(args=words, prog_name="quorate", standalone_mode=False)
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
    path = getattr(getattr(error, "ctx", None), "command_path", "quorate")
    if getattr(error, "option_name", None) and hasattr(error, "possibilities"):
        message = _unknown_option(error)
    else:
        message = str(getattr(error, "format_message", error.__str__)())
    place, of_type, wanted = message.partition(": Input should be ")
    if of_type:
        option = place.removeprefix("Invalid value for ").strip("'").partition("' / '")[0]
        words = wanted_in_words(wanted.rstrip("."))
        verb = "must be" if words.startswith(("at ", "above ", "below ")) else "takes"
        message = f"{option} {verb} {words}"
    message = f"{message[:1].lower()}{message[1:].rstrip('.')}".replace(". Did you mean", "; did you mean")
    return f"{message} See {path} --help" if message.endswith("?") else f"{message}; see {path} --help"


def _unknown_option(error: Any) -> str:
    from quorate.cli.other_launchers import answer_to, flags_of_command

    flags = set() if error.ctx is None else flags_of_command(error.ctx.command)
    answer = answer_to(error.option_name, flags)
    if answer is None:
        words = {flag.lstrip("-"): flag for flag in sorted(flags)}  # dashes would make all flags alike
        near = difflib.get_close_matches(error.option_name.lstrip("-"), words, n=1)
        answer = f"did you mean {words[near[0]]}?" if near else ""
    return f"no such option: {error.option_name}{'; ' * bool(answer)}{answer}"


def _say(sentence: str, status: int) -> int:
    """Print one line and return `status`; unprintable characters are escaped, and long sentences cut in the middle."""
    line = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in sentence)
    if len(line) > _LONGEST_SENTENCE:
        line = f"{line[: _LONGEST_SENTENCE // 2]} … {line[-_LONGEST_SENTENCE // 2 :]}"
    tell(f"quorate: {line}\n")
    return status
