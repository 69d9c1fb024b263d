"""`gcr restore`: bring a job back where it was."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import click
from msgspec.structs import replace

from gcr.api.reports import RestoreReport
from gcr.api.requests import RestoreRequest
from gcr.cli import completing, summaries
from gcr.cli.asking import asking
from gcr.cli.opening import opening
from gcr.cli.options import Options, Target, common_options, examples, parse_name, parse_targets, store_option
from gcr.cli.output import print_json, success
from gcr.cli.ready import WHEN_TOLD, await_word
from gcr.cli.revivable import Revivable
from gcr.cli.transfer import transfer
from gcr.errors import Interrupted, UsageError
from gcr.image.store.location import is_none, store_of, store_path
from gcr.imageerrors import WrongImage


def parse_moves(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """OLD=NEW, each OLD once; what they mean only the daemon knows."""
    moves: dict[str, str] = {}
    for value in values:
        old, equals, new = value.partition("=")
        if not (old and equals and new):
            raise click.BadParameter(f"{value!r} is not OLD=NEW", ctx, param)
        if old in moves:
            raise click.BadParameter(f"{old} is named twice", ctx, param)
        moves[old] = new
    return moves


@click.command(
    "restore",
    epilog=examples("gcr restore llm", "gcr restore llm --device 0=1 --device 1=0", "gcr restore --image warm"),
)
@click.argument("targets", metavar="[JOB|PID]...", nargs=-1, callback=parse_targets, shell_complete=completing.jobs)
@click.option(
    "--device",
    "devices",
    metavar="OLD=NEW",
    multiple=True,
    callback=parse_moves,
    shell_complete=completing.moves,
    help="Come back on device NEW instead of OLD, each a UUID or a number as `gcr devices` has them; again for more.",
)
@click.option(
    "--image",
    metavar="NAME",
    callback=parse_name,
    shell_complete=completing.images,
    help="The job of this image, with the image's bytes.",
)
@click.option(
    "--without",
    metavar="PID",
    multiple=True,
    type=click.IntRange(min=1),
    help="End this process, which the driver does not give back, and bring back the others; again for more.",
)
@click.option(
    "--attach",
    is_flag=True,
    help="Stay the parent of a job that was stopped, as `gcr run` does, and return its program's code.",
)
@click.option("--suspended", "held", metavar="JOB", hidden=True)  # asked by the daemon, for a part of a cut
@click.option(WHEN_TOLD, is_flag=True, hidden=True)  # asked by a migration, with --suspended: see ready.py
@store_option
@common_options
@click.pass_obj
def command(
    options: Options,
    targets: Sequence[Target],
    devices: dict[str, str],
    image: str | None,
    without: Sequence[int],
    attach: bool,
    held: str | None,
    when_told: bool,
    store: str | None,
) -> int:
    """Bring back JOB, or the process PID, in place: same process, same addresses, same bytes.

    With --image its bytes are read from disk and not from host memory, of which a few hundred MiB are enough. The
    process must still be suspended at the checkpoint that made the image, unless that was one with --stop: then the
    processes come back as well, under the same pids. The job runs detached, or with --attach in the foreground:
    then the report goes to stderr, but with --json to stdout.

    Several come back one after the other, each by itself: all are tried, and the exit code is the worst.
    """
    began = time.monotonic()
    if bool(targets) == bool(image):
        raise UsageError("either jobs, or --image NAME", hint="gcr restore llm, or gcr restore --image warm")
    if devices and len(targets) > 1:
        raise UsageError("--device is for one job: another may use other devices", hint=f"gcr restore {targets[0]}")
    if without and len(targets) > 1:
        raise UsageError("--without is for one job", hint=f"gcr restore {targets[0]}")
    if attach and not image:
        raise UsageError("--attach is for a job that was stopped, with --image NAME")
    if held and image:
        return _made(options, image, store, held, when_told)
    with ExitStack() as within:
        opened = within.enter_context(opening(image, partial(asking, options, store), _import_more)) if image else None
        found = opened.found if opened else None
        targets = (found.job,) if found else targets
        if attach and found and not found.bytes:
            raise UsageError(f"image {image} has no processes to attach to", hint=f"gcr restore --image {image}")
        request = RestoreRequest(
            target=targets[0],
            timeout=options.timeout,
            backend=options.backend,
            image=image,
            store=store_of(image, store),
            encrypted=options.key_named,
            devices=devices,
            without=tuple(without),
            container=(found.contained or None) if found else None,
        )
        all_of_them = [replace(request, target=each) for each in targets]
        restored = partial(transfer, all_of_them, options, RestoreReport, summaries.of_restore)
        if opened and found and _is_gone(found):
            from gcr.cli.reviving import Reviving

            reviving = Reviving(options, str(image), store, attach, began, in_place=not devices)
            told = lambda report: replace(report, processes_s=reviving.phases())  # noqa: E731
            return reviving.bring_back(opened, partial(restored, amended=told, beside=attach))
    return restored()


def _is_gone(found: Revivable) -> bool:
    """Returns whether the processes of the image have to be made again: no daemon knows the job."""
    if not found.bytes:
        return False
    from gcr.cli.reviving import is_here

    return not is_here(found.job)


def _import_more() -> None:
    """Imports what a job that was stopped needs, beside the child that finds out whether it was."""
    import gcr.cli.reviving
    import gcr.supervisor.process  # noqa: F401
    from gcr.cli.unparking import import_all

    import_all()


def _import_all() -> None:
    """Imports and reads all that the processes of any job need, before their image is there."""
    from gcr.criu import messages
    from gcr.declarations import declarations

    _import_more()
    declarations()
    messages.prepare()


def _made(options: Options, image: str, store: str | None, job: str, told: bool) -> int:
    """Makes the processes of a stopped job, and leaves it suspended. Raises WrongImage for an image of another job.

    told: once the image is there, as a line on the standard input says; where there is no store yet, nothing is read
    before. Raises Interrupted where that input ends.
    """
    began = time.monotonic()

    def await_image() -> None:
        nonlocal began
        try:
            await_word()
        except EOFError:
            raise Interrupted("the image did not come") from None
        began = time.monotonic()

    if told and is_none(store_path(store)):
        _import_all()
        await_image()
        told = False
    open = partial(asking, options, store)
    with opening(image, open, _import_all if told else _import_more, await_image if told else None) as opened:
        _refuse_other(opened.found, image, job)
        from gcr.cli.reviving import Reviving

        made = Reviving(options, image, store, False, began)
        return made.bring_back(opened, lambda: _say_made(made.phases()))


def _refuse_other(found: Revivable, image: str, job: str) -> None:
    if found.job != job:
        raise WrongImage(f"image {image} is of job {found.job}, and not of {job}", hint="gcr images")
    if not found.bytes:
        text = f"image {image} has no processes, and job {job} is not here: it has ended"
        raise WrongImage(text, hint="gcr ps --all")


def _say_made(phases: Mapping[str, float]) -> int:
    print_json(success("restore", {"processes_s": phases}))
    return 0
