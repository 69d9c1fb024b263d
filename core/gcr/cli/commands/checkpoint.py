"""`gcr checkpoint`: take a job off its device."""

from collections.abc import Sequence
from functools import partial

import click
from msgspec.structs import replace

from gcr.api.checks import ALLOWED
from gcr.api.reports import CheckpointReport
from gcr.api.requests import CheckpointRequest
from gcr.cli import completing, summaries
from gcr.cli.options import (
    Options,
    Target,
    common_options,
    examples,
    parse_name,
    parse_rate,
    parse_targets,
    store_option,
)
from gcr.cli.transfer import transfer
from gcr.errors import UsageError
from gcr.image.store.location import store_of


@click.command(
    "checkpoint",
    epilog=examples(
        "gcr checkpoint llm",
        "gcr checkpoint llm train",
        "gcr checkpoint 4711 --timeout 60",
        "gcr checkpoint llm --resident",
        "gcr checkpoint llm --resident --data-only",
        "gcr checkpoint llm --image warm --wait durable",
        "gcr --json checkpoint llm --data-only",
    ),
)
@click.argument(
    "targets", metavar="JOB|PID...", nargs=-1, required=True, callback=parse_targets, shell_complete=completing.jobs
)
@click.option("--data-only", is_flag=True, help="Free the device data only; the driver's context stays on the device.")
@click.option(
    "--resident",
    is_flag=True,
    help="Leave the memory on the device, beside its copy on the host, until another program needs the room.",
)
@click.option("--image", metavar="NAME", callback=parse_name, help="Write an image of its device memory, too.")
@click.option(
    "--max-rate",
    metavar="BYTES/S",
    callback=parse_rate,
    help="Write the image no faster than this: 200M, 1.5G.",
)
@click.option(
    "--wait",
    type=click.Choice(["vram", "durable"]),
    default="vram",
    show_default=True,
    help="Return once VRAM is free, or once the image is on disk.",
)
@click.option("--live", is_flag=True, help="Copy while the program runs; it stops only for what changed meanwhile.")
@click.option("--leave-running", is_flag=True, help="Write the image, and let the program go on at once.")
@click.option("--processes", is_flag=True, help="Save the processes in the image as well, with CRIU.")
@click.option("--stop", is_flag=True, help="The same, and end them: `gcr restore --image NAME` brings them back.")
@click.option(
    "--container",
    is_flag=True,
    help="Before the checkpoint of its container by runc, Podman or a kubelet: let the runtime save its processes.",
)
@click.option(
    "--allow",
    type=click.Choice(ALLOWED),
    multiple=True,
    help="With --processes or --stop: let CRIU save what it refuses otherwise, in this way; again for more.",
)
@click.option("--paranoid", is_flag=True, help="Compare bytes, not hashes alone: it stops until all are read.")
@store_option
@common_options
@click.pass_obj
def command(
    options: Options,
    targets: Sequence[Target],
    data_only: bool,
    resident: bool,
    image: str | None,
    max_rate: float | None,
    wait: str,
    live: bool,
    leave_running: bool,
    stop: bool,
    processes: bool,
    container: bool,
    allow: tuple[str, ...],
    paranoid: bool,
    store: str | None,
) -> int:
    """Suspend JOB, or the process PID, and free the device memory it uses.

    With --image what was in it is also written to disk, in the background: the job may be restored meanwhile. Where
    host memory has no room for it, it goes straight to the image, and the device is free once that is on disk.

    With --resident it can come back by mapping its memory again, without a copy. The same command without --resident
    then frees that memory. A program that finds no room frees it, too: of several jobs, the one suspended first.

    With --data-only the driver's context stays, so the job comes back without the driver. The same command without
    --data-only then has the context leave as well.

    Several are suspended one after the other, each by itself: all are tried, and the exit code is the worst.
    """
    if image and len(targets) > 1:
        raise UsageError("an image is of one job", hint=f"gcr checkpoint {targets[0]} --image {image}")
    request = CheckpointRequest(
        target=targets[0],
        timeout=options.timeout,
        backend=options.backend,
        image=image,
        store=store_of(image, store),
        encrypted=options.key_named,
        data_only=data_only,
        resident=resident,
        wait=wait,
        live=live,
        leave_running=leave_running,
        stop=stop,
        processes=processes,
        container=container,
        allow=allow,
        paranoid=paranoid,
        max_bytes_per_s=max_rate,
    )
    summary = partial(summaries.of_checkpoint, store=store)
    return transfer([replace(request, target=each) for each in targets], options, CheckpointReport, summary)
