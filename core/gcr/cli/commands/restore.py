"""`gcr restore`: bring a job back where it was."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gcr import units
from gcr.cli import text
from gcr.cli.asking import asked
from gcr.cli.options import Options, Target, common_options, examples, parse_name, parse_target, store_option
from gcr.cli.transfer import Answer, transfer
from gcr.errors import NoSuchImage, UsageError
from gcr.image.place import store_path

if TYPE_CHECKING:
    from gcr.image.store import Store


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


def _target(ctx: click.Context, param: click.Parameter, value: str | None) -> Target | None:
    return None if value is None else parse_target(ctx, param, value)


def _job_of(image: str, store: "Store | None") -> str:
    if store is None:
        raise NoSuchImage(f"no image {image!r}", hint="gcr images")
    return store.manifest(image).job


@click.command(
    "restore",
    epilog=examples("gcr restore llm", "gcr restore llm --device 0=1 --device 1=0", "gcr restore --image warm"),
)
@click.argument("target", metavar="[JOB|PID]", required=False, callback=_target)
@click.option(
    "--device",
    "devices",
    metavar="OLD=NEW",
    multiple=True,
    callback=parse_moves,
    help="Come back on device NEW instead of OLD, each a UUID or a number as `gcr devices` has them; again for more.",
)
@click.option("--image", metavar="NAME", callback=parse_name, help="The job of this image, with the image's bytes.")
@store_option
@common_options
@click.pass_obj
def command(
    options: Options, target: Target | None, devices: dict[str, str], image: str | None, store: str | None
) -> None:
    """Bring back JOB, or the process PID, in place: same process, same addresses, same bytes.

    With --image its bytes are read from disk and not from host memory, of which a few hundred MiB are enough. An image
    holds device memory alone, so the process must still be suspended at the checkpoint that made it.
    """
    if (target is None) == (image is None) or ((store or options.key_named) and not image):
        raise UsageError("either a job, or --image NAME", hint="gcr restore llm, or gcr restore --image warm")
    body: dict[str, object] = {"devices": devices}
    if image:
        target = asked(options, store, lambda there: _job_of(image, there))
        body |= {"image": image, "store": str(store_path(store))}
    assert target is not None
    transfer("restore", target, options, body, _summary)


def _summary(report: Answer) -> str:
    cold = ", the worker's context made anew" if report["cold"] else ""
    where = "".join(f", {old} ▸ {new}" for old, new in report["moved"].items())
    amount = units.size(report["bytes"])
    return f"{report['job']} runs again after {text.seconds(report['total_s'])} ({amount}{cold}{where})"
