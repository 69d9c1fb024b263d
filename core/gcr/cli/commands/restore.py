"""`gcr restore`: bring a job back where it was."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from gcr.api.reports import RestoreReport
from gcr.api.requests import RestoreRequest
from gcr.cli import completing, summaries
from gcr.cli.asking import asked
from gcr.cli.options import Options, Target, common_options, examples, parse_name, parse_targets, store_option
from gcr.cli.transfer import transfer
from gcr.errors import UsageError
from gcr.image.store.location import store_of
from gcr.imageerrors import NoSuchImage

if TYPE_CHECKING:
    from gcr.image.store.store import Store


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


def _job_of(image: str, store: "Store | None") -> str:
    if store is None:
        raise NoSuchImage(f"no image {image!r}", hint="gcr images")
    return store.images.manifest(image).source.job


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
@store_option
@common_options
@click.pass_obj
def command(
    options: Options, targets: Sequence[Target], devices: dict[str, str], image: str | None, store: str | None
) -> int:
    """Bring back JOB, or the process PID, in place: same process, same addresses, same bytes.

    With --image its bytes are read from disk and not from host memory, of which a few hundred MiB are enough. An image
    holds device memory alone, so the process must still be suspended at the checkpoint that made it.

    Several come back one after the other, each by itself: all are tried, and the exit code is the worst.
    """
    if bool(targets) == bool(image):
        raise UsageError("either jobs, or --image NAME", hint="gcr restore llm, or gcr restore --image warm")
    if devices and len(targets) > 1:
        raise UsageError("--device is for one job: another may use other devices", hint=f"gcr restore {targets[0]}")
    if image:
        targets = (asked(options, store, lambda there: _job_of(image, there)),)
    request = RestoreRequest(
        target=targets[0],
        timeout=options.timeout,
        backend=options.backend,
        image=image,
        store=store_of(image, store),
        encrypted=options.key_named,
        devices=devices,
    )
    return transfer([replace(request, target=each) for each in targets], options, RestoreReport, summaries.of_restore)
