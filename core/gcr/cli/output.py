"""Output on stdout and stderr: one JSON object, or text for people. Only this module shapes either."""

import errno
import fcntl
import io
import json
import os
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import click

from gcr.errors import EndUnknown, GcrError, Lost, NoRecord, Refused, RolledBack, StillRuns
from gcr.imageerrors import ImageFailed
from gcr.losterrors import DaemonDied
from gcr.protocol.jsonbody import error_to_json

SCHEMA = 1

_HEADLINES: tuple[tuple[type[GcrError], str], ...] = (
    (StillRuns, ""),  # these asked for nothing to be done
    (EndUnknown, ""),
    (NoRecord, ""),
    (DaemonDied, ""),  # the next daemon may have left the job suspended
    (Refused, "refused, nothing was touched"),
    (RolledBack, "failed and rolled back"),
    (Lost, "the program cannot continue"),
)
_OUTPUT, _ERRORS = 1, 2  # the descriptors of the streams
_NOTHING: Mapping[str, object] = MappingProxyType({})


class NotWritten(GcrError):
    """The command is done, and stdout took no report of it (a full disk): the message says why, and where the job
    stands; `gcr ps` says it again.
    """

    code = "not_written"


def success(command: str, fields: Mapping[str, object]) -> dict[str, object]:
    """The object a command prints under --json when it did what was asked."""
    return {"schema": SCHEMA, "command": command, "ok": True, **fields}


def failure(command: str, error: GcrError) -> dict[str, object]:
    """The object any command prints under --json when it did not."""
    return {"schema": SCHEMA, "command": command, "ok": False, "error": error_to_json(error)}


def print_json(document: Mapping[str, object]) -> bool:
    """Exactly one object on stdout; False: the reader went away. Raises NotWritten."""
    return print_text(json.dumps(document), document)


def print_text(text: str | bytes, fields: Mapping[str, object] = _NOTHING) -> bool:
    """Text for people on stdout, or bytes as they are; False: the reader went away.

    Raises NotWritten, which tells of the job in `fields`.
    """
    try:
        click.echo(text, nl=isinstance(text, str))
    except BrokenPipeError:
        _discard_stdout()  # the reader has left, and has seen enough
        return False
    except OSError as error:
        _discard_stdout()
        raise _not_written(error, fields) from error
    return True


def unwritten(error: OSError) -> NotWritten | None:
    """Returns the error of a stdout that still refuses what click has written to it, as --help is; else None."""
    try:
        sys.stdout.flush()
    except OSError as again:
        _discard_stdout()
        return _not_written(again, _NOTHING) if again.errno == error.errno else None
    return None


def _discard_stdout() -> None:
    """The interpreter flushes it when it ends: what is still buffered would fail again."""
    sys.stdout = io.StringIO()


def _not_written(error: OSError, fields: Mapping[str, object]) -> NotWritten:
    name = errno.errorcode.get(error.errno or 0, "no error code")
    told = f"the report could not be written: {error.strerror or error} ({name})"
    job, state = fields.get("job"), fields.get("state")
    standing = f"; {job} is {state}" if job and state else ""
    return NotWritten(told + standing, state=str(state) if state else None)


def print_failure(error: GcrError, about: str = "") -> None:
    """The headline says whether the target was touched; then what happened, then what to do.

    `about`: a job, where the command is about several.
    """
    headline = next((text for kind, text in _HEADLINES if isinstance(error, kind)), "")
    if isinstance(error, ImageFailed) and error.state == "running":
        headline = "failed and rolled back"
    lines = [error.message, *getattr(error, "__notes__", [])]
    if error.hint:
        lines.append(f"try: {error.hint}")
    if not headline:
        headline = lines.pop(0)
    of = f"{about}: " if about else ""
    say("\n".join([f"gcr: {of}{headline}", *(f"  {line}" for line in lines)]))


def say_stopped(job: str, image: str, store: str | None) -> None:
    """Says where a job is that ended in the foreground, as an image has it. `store`: as of `store_option`."""
    from gcr.job.roundimages import is_of_migration

    if is_of_migration(image):
        say_behind(f"gcr: {job} was stopped to move to another node: gcr ps", stopped=True)
    else:
        back = f"gcr restore --image {image}{store_option(store)}"
        say_behind(f"gcr: {job} was stopped into image {image}; back with: {back}", stopped=True)


def store_option(store: str | None) -> str:
    """Returns the option that names an image's store, with a space before it; nothing for the user's own store."""
    import shlex

    from gcr.image.store.location import store_path

    if store is None:
        return ""
    with suppress(GcrError, OSError):
        if Path(store) == store_path():
            return ""
    return f" --store {shlex.quote(store)}"


def say_behind(text: str, stopped: bool) -> None:
    """Prints a text on stderr behind a program that has ended in the foreground.

    stopped: an image has it. Then nothing goes into a file that may be its output: a restore compares the size.
    """
    if not (stopped and _grows_by_hand(_ERRORS)):
        say(text)


def print_json_behind(report: Mapping[str, object], stopped: bool) -> None:
    """Prints an object on stdout behind a program that has ended in the foreground. `stopped`: as of `say_behind`."""
    if not (stopped and _grows_by_hand(_OUTPUT)):
        print_json(report)


def _grows_by_hand(stream: int) -> bool:
    """Returns whether a stream is a file that is not appended to. One that is may have grown at a restore."""
    try:
        is_file = stat.S_ISREG(os.fstat(stream).st_mode)
        return is_file and not fcntl.fcntl(stream, fcntl.F_GETFL) & os.O_APPEND
    except OSError:
        return False


def say(text: str) -> None:
    """Prints a text for people on stderr. A stderr that cannot be written stops nothing, least of all a checkpoint."""
    try:
        click.echo(text, err=True)
    except OSError:
        sys.stderr = io.StringIO()  # what is buffered would fail again when the interpreter ends
