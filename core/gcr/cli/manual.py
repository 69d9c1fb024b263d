"""The manual page gcr(1), made from the parser: `python -m gcr.cli.reference man` prints it."""

import re
from collections.abc import Iterator

import click

from gcr import config
from gcr.cli import environment
from gcr.cli.main import gcr

EXITS = (
    ("0", "done"),
    ("1", "gcr has a bug; the log has a traceback"),
    ("2", "the command line does not parse"),
    ("3", "refused, nothing was touched"),
    ("4", "failed and rolled back: the target runs on"),
    ("5", "the target cannot continue"),
    ("6", "an image is damaged"),
    ("125", "gcr run failed before the program started; else it returns the program's own code"),
    ("130", "interrupted, after rollback"),
)
_FILES = (
    ("$XDG_CONFIG_HOME/gcr/config.toml", "settings"),
    ("$XDG_RUNTIME_DIR/gcr/gcrd.sock", "the daemon's socket"),
    ("$XDG_STATE_HOME/gcr/log", "logs of the daemon and of bugs"),
    ("$XDG_DATA_HOME/gcr/store", "images, unless the setting store names another folder"),
)


def page() -> str:
    """Returns the man page in man macros, in ASCII except for other characters of help texts."""
    root = click.Context(gcr, info_name="gcr")
    lines = [
        '.TH GCR 1 "" "gcr" "User Commands"',
        ".SH NAME",
        "gcr \\- checkpoint and restore programs that use a GPU",
        ".SH SYNOPSIS",
        "\\fBgcr\\fR [\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGS\\fR]...",
        ".SH DESCRIPTION",
        *_text(gcr.help or ""),
        ".PP",
        *_text("These options may also stand after the command."),
        *_options(gcr, root),
        ".SH COMMANDS",
        *_commands(gcr, root),
        ".SH EXIT STATUS",
        *_list(EXITS),
        ".SH ENVIRONMENT",
        *_text("Each setting has a variable. docs/configuration.md has the defaults and bounds."),
        *_list((config.environment_name(name), meaning) for name, meaning in config.meanings()),
        *_list(environment.VARIABLES),
        ".SH FILES",
        *_list(_FILES),
    ]
    return "\n".join(lines) + "\n"


def _commands(group: click.Group, parent: click.Context) -> Iterator[str]:
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=parent)
        yield f".SS {_plain(_usage(command, context))}"
        yield from _text(command.help or "")
        yield from _options(command, context)
        yield from _examples(command)
        if isinstance(command, click.Group):
            yield from _commands(command, context)


def _usage(command: click.Command, context: click.Context) -> str:
    return " ".join([context.command_path, *command.collect_usage_pieces(context)])


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yields the options of a command; those that every command has appear once, at gcr itself."""
    told = set() if command is gcr else _everywhere()
    for param in command.get_params(context):
        record = param.get_help_record(context) if isinstance(param, click.Option) else None
        if record and param.name not in told:
            yield from (".TP", f"\\fB{_plain(record[0])}\\fR", *_text(record[1] or ""))


def _everywhere() -> set[str]:
    return {str(param.name) for param in gcr.get_params(click.Context(gcr))}


def _examples(command: click.Command) -> Iterator[str]:
    lines = [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("  ")]
    if lines:
        yield from (".PP", ".nf", ".RS", *map(_plain, lines), ".RE", ".fi")


def _list(rows: "Iterator[tuple[str, str]] | tuple[tuple[str, str], ...]") -> Iterator[str]:
    for name, meaning in rows:
        yield from (".TP", f"\\fB{_plain(name)}\\fR", *_text(meaning))


def _text(text: str) -> Iterator[str]:
    """Paragraphs, each sentence on a line of its own."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.replace("\b", "").strip())):
        if number:
            yield ".PP"
        words = _plain(" ".join(paragraph.split()))
        yield from re.split(r"(?<=[.:]) (?=[A-Z])", words) if words else ()


def _plain(text: str) -> str:
    """Returns the text without requests and escapes."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
