"""Options every command takes, before or after its name, and the one syntax for naming a job or a process."""

import math
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from gcr.names import BACKEND_NAME, JOB_NAME

if TYPE_CHECKING:
    from gcr.image.crypto.key import KeySource

_PID = re.compile(r"[1-9][0-9]{0,9}\Z")
_RATE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMG]?)\Z")
_UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGT]?)(i?)B?\Z")
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)(%?)\Z")

ON_BEHALF = "--on-behalf"  # of `gcr run`: the library's socket
Target = str | int
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Options(Struct):
    """The options of every command. `timeout` is seconds; None leaves the configured deadlines."""

    json: bool = False
    timeout: float | None = None
    backend: str | None = None
    verbose: int = 0
    key_file: str | None = None
    key_command: str | None = None
    _key: "KeySource | None" = None

    @property
    def key_named(self) -> bool:
        """Returns whether the command line names a key."""
        return bool(self.key_file or self.key_command)

    def key(self) -> "KeySource":
        """Returns the source of the store's key. Raises UsageError."""
        from gcr.image.crypto.key import KeySource  # takes 10 ms, which most commands need not wait for

        if self._key is None:
            self._key = KeySource.chosen(self.key_file, self.key_command, self.timeout)
        return self._key


def parse_target(ctx: click.Context, param: click.Parameter, value: str) -> Target:
    """A job's name, or a pid: a number is always a pid."""
    if _PID.match(value):
        return int(value)
    if JOB_NAME.match(value):
        return value
    raise click.BadParameter(f"{value!r} is neither a job name ({_shown(JOB_NAME)}) nor a pid", ctx, param)


def parse_targets(ctx: click.Context, param: click.Parameter, values: Iterable[str]) -> tuple[Target, ...]:
    """Each once, in the order given."""
    return tuple(dict.fromkeys(parse_target(ctx, param, value) for value in values))


def parse_job(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if JOB_NAME.match(value):
        return value
    raise click.BadParameter(f"{value!r} is no job name ({_shown(JOB_NAME)})", ctx, param)


def parse_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None or JOB_NAME.match(value):
        return value
    raise click.BadParameter(f"{value!r} does not match {_shown(JOB_NAME)}", ctx, param)


def parse_rate(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Bytes a second, with a decimal unit or none: `200M`."""
    if value is None:
        return None
    match = _RATE.match(value)
    rate = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if rate < 1:
        raise click.BadParameter(f"{value!r} is no rate, such as 200M or 1.5G", ctx, param)
    return rate


def parse_size(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """Bytes, with a decimal unit, a binary one, or none: `16G`, `16GiB`."""
    match = _SIZE.match(value)
    size = round(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2] or " ")) if match else 0
    if size < 1:
        raise click.BadParameter(f"{value!r} is no size, such as 16G or 16GiB", ctx, param)
    return size


def parse_share(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """A part of the whole: `3%`, or `0.03`."""
    match = _SHARE.match(value)
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share < 1:
        raise click.BadParameter(f"{value!r} is no share, such as 3% or 0.03", ctx, param)
    return share


def _keep_timeout(ctx: click.Context, param: click.Parameter, value: float | None) -> None:
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is no time", ctx, param)
    _keep(ctx, param, value)


def _keep_backend(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None and not BACKEND_NAME.match(value):
        raise click.BadParameter(f"{value!r} does not match {_shown(BACKEND_NAME)}", ctx, param)
    _keep(ctx, param, value)


def _shown(pattern: re.Pattern[str]) -> str:
    return pattern.pattern.removesuffix(r"\Z")


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """The later, that is the inner, of two mentions wins; what was not mentioned changes nothing."""
    options = ctx.ensure_object(Options)
    if value not in (None, False, 0):
        setattr(options, str(param.name), value)
    if options.verbose:
        _log_to_stderr(options.verbose)


def _log_to_stderr(verbose: int) -> None:
    import logging

    level = logging.INFO if verbose == 1 else logging.DEBUG
    logging.basicConfig(level=level, format="%(name)s: %(message)s", force=True)


def common_options(command: Decorated) -> Decorated:
    """Add --json, --timeout, --backend and -v; their values go to the context's Options."""
    seconds = click.FloatRange(min=0, min_open=True, max=86400)
    for option in (
        click.option("-v", "--verbose", count=True, expose_value=False, callback=_keep, help="Say more on stderr."),
        click.option(
            "--backend",
            metavar="B",
            expose_value=False,
            callback=_keep_backend,
            help="Only this vendor: nvidia, amd, ascend, or an installed plugin's.",
        ),
        click.option(
            "--timeout",
            type=seconds,
            metavar="SECONDS",
            expose_value=False,
            callback=_keep_timeout,
            help="Give up, and undo, after this long.",
        ),
        click.option("--json", is_flag=True, expose_value=False, callback=_keep, help="One JSON object on stdout."),
    ):
        command = option(command)
    return command


def store_option(command: Decorated) -> Decorated:
    """Adds the parameter --store, and --key-file and --key-command, which set values of the context's Options."""
    for option in (
        click.option(
            "--key-command",
            metavar="COMMAND",
            expose_value=False,
            callback=_keep,
            help="The store is encrypted with the key that this prints, run without a shell.",
        ),
        click.option(
            "--key-file",
            metavar="FILE",
            expose_value=False,
            callback=_keep,
            help="The store is encrypted with the key in this file; '': it is not, in spite of the settings.",
        ),
        click.option("--store", metavar="DIR", help="Where images are kept, instead of the setting `store`."),
    ):
        command = option(command)
    return command


def examples(*lines: str) -> str:
    """An epilog for --help that keeps its lines."""
    return "\b\n" + "\n".join(["Example:", *(f"  {line}" for line in lines)])


def wants_json(arguments: Iterable[str]) -> bool:
    """Returns whether --json was given, for a command line that does not parse. Words after `--` are the program's."""
    for argument in arguments:
        if argument == "--":
            return False
        if argument == "--json":
            return True
    return False
