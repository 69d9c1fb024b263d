"""Entry point: finds the subcommand, and is the only place where an error becomes an exit code.

Nothing here imports a vendor library, and rich only when something is drawn: `gcr --help` and `gcr ps` stay quick.
"""

import importlib
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import click

from gcr.cli.environment import misnamed
from gcr.cli.options import ON_BEHALF, Options, common_options, examples, wants_json
from gcr.cli.output import NotWritten, failure, print_failure, print_json, say, unwritten
from gcr.errors import GcrError, Interrupted, UsageError
from gcr.exits import leave
from gcr.names import meant
from gcr.version import __version__

SUBCOMMANDS = (
    "run",
    "hold",
    "ps",
    "logs",
    "wait",
    "events",
    "top",
    "checkpoint",
    "restore",
    "swap",
    "migrate",
    "backends",
    "devices",
    "images",
    "inspect",
    "verify",
    "push",
    "pull",
    "exchange",
    "rm",
    "prune",
    "tune",
    "inspect-kernels",
    "doctor",
    "daemon",
    "recover",
    "serve",
    "cluster",
    "demo",
    "completion",
)


_GROUPS = ("daemon", "cluster")  # commands that have commands


class LazyGroup(click.Group):
    """Imports a subcommand's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        found = importlib.import_module(f"gcr.cli.commands.{cmd_name.replace('-', '_')}").command
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Names the command that was meant. click looks only at commands that are loaded already."""
        if ctx.params.get("cluster"):
            args = ["cluster", *args]
        if args and args[0] not in SUBCOMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}{meant(args[0], SUBCOMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(
    "gcr",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples("gcr run --name llm -- python serve.py", "gcr checkpoint llm", "gcr restore llm"),
)
@click.version_option(__version__, prog_name="gcr")
@click.option("--cluster", is_flag=True, help="Over the nodes of a cluster: gcr --cluster run is gcr cluster run.")
@common_options
def gcr(cluster: bool) -> None:
    """Checkpoint and restore programs that use a GPU, without changing them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is the one of the error, if any."""
    _open_closed_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    options, log, nowhere = Options(), logging.getLogger("gcr"), logging.NullHandler()
    log.addHandler(nowhere)  # else a terminal has what is for -v alone
    try:
        if ON_BEHALF not in given:  # else stderr belongs to the program
            _warn_of_misnamed()
        return _guarded(given, options, lambda: _invoke(given, options))
    finally:
        log.removeHandler(nowhere)


def _open_closed_streams() -> None:
    """Python has None for a stream that was closed at the start, as by `2>&-`. Text for it goes nowhere."""
    sys.stdout = sys.stdout or io.StringIO()
    sys.stderr = sys.stderr or io.StringIO()


def _warn_of_misnamed() -> None:
    for line in misnamed(os.environ):
        say(f"gcr: {line}")


def program() -> NoReturn:
    """The command `gcr`, as a process of its own."""
    leave(main())


def _invoke(given: list[str], options: Options) -> int:
    code = gcr.main(args=given, prog_name="gcr", standalone_mode=False, obj=options)
    return code if isinstance(code, int) else 0


def _guarded(given: list[str], options: Options, command: Callable[[], int]) -> int:
    try:
        return command()
    except click.ClickException as error:
        return _usage(given, error)
    except GcrError as error:
        return _failed(given, options.json, error)
    except (KeyboardInterrupt, click.Abort):
        return _failed(given, options.json, Interrupted("interrupted"))
    except OSError as error:  # --help and --version are written by click
        return _failed(given, options.json, unwritten(error) or _internal(error))
    except Exception as error:
        return _failed(given, options.json, _internal(error))


def _usage(given: list[str], error: click.ClickException) -> int:
    if wants_json(given):
        return _failed(given, True, UsageError(error.format_message()))
    error.show()
    return UsageError.exit


def _failed(given: list[str], as_json: bool, error: GcrError) -> int:
    if as_json and not isinstance(error, NotWritten):
        try:
            print_json(failure(command_name(given), error))
            return error.exit
        except NotWritten as unwritten:
            print_failure(unwritten)
    print_failure(error)
    return error.exit


def _internal(error: Exception) -> GcrError:
    from gcr.cli.logfile import bug

    return bug(error)


def command_name(given: Sequence[str]) -> str:
    """`checkpoint`, `daemon status`: what the words of a command line ask for, even one that does not parse."""
    words = [word for word in given if not word.startswith("-") or word == "--cluster"]
    words = [word.lstrip("-") for word in words]
    for index, word in enumerate(words):
        if word in _GROUPS and index + 1 < len(words):
            return f"{word} {words[index + 1]}"
        if word in SUBCOMMANDS:
            return word
    return "gcr"
