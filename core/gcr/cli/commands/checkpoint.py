"""`gcr checkpoint`: take a job off its device."""

from collections import Counter
from collections.abc import Iterator

import click

from gcr import units
from gcr.cli import text
from gcr.cli.options import (
    Options,
    Target,
    common_options,
    examples,
    parse_name,
    parse_rate,
    parse_target,
    store_option,
)
from gcr.cli.transfer import Answer, transfer
from gcr.errors import UsageError
from gcr.image.place import store_path

MUCH_LEFT = 64 << 20  # bytes: the driver copies some 2 GB a second
MUCH_PINNED = 1 << 30  # bytes: it takes some 15 ms, and 35 to come back


@click.command(
    "checkpoint",
    epilog=examples(
        "gcr checkpoint llm",
        "gcr checkpoint 4711 --timeout 60",
        "gcr checkpoint llm --image warm --wait durable",
        "gcr --json checkpoint llm --data-only",
    ),
)
@click.argument("target", metavar="JOB|PID", callback=parse_target)
@click.option("--data-only", is_flag=True, help="Free the device data only; the driver's context stays on the device.")
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
@click.option(
    "--stop", is_flag=True, help="End the program once its image is written. Refused: no image survives it yet."
)
@click.option("--paranoid", is_flag=True, help="Compare bytes, not hashes alone: it stops for a copy of everything.")
@store_option
@common_options
@click.pass_obj
def command(
    options: Options,
    target: Target,
    data_only: bool,
    image: str | None,
    max_rate: float | None,
    wait: str,
    live: bool,
    leave_running: bool,
    stop: bool,
    paranoid: bool,
    store: str | None,
) -> None:
    """Suspend JOB, or the process PID, and free the device memory it uses.

    With --image what was in it is also written to disk, in the background: the job may be restored meanwhile. Where
    host memory has no room for it, it goes straight to the image, and the device is free once that is on disk.
    """
    alone = wait != "vram" or store or live or leave_running or stop or paranoid or max_rate or options.key_named
    if image is None and alone:
        flags = "--live, --leave-running, --stop, --paranoid, --wait, --max-rate, --store and a key"
        raise UsageError(f"{flags} are for a checkpoint with --image")
    if leave_running and data_only:
        raise UsageError("--data-only takes a job off its device, --leave-running does not: choose one")
    if leave_running and stop:
        raise UsageError("--stop ends the program, --leave-running lets it go on: choose one")
    body: dict[str, object] = {"data_only": data_only}
    if image:
        body |= {"image": image, "wait": wait, "live": live, "leave_running": leave_running, "paranoid": paranoid}
        body |= {"stop": stop, "store": str(store_path(store)), "max_bytes_per_s": max_rate}
    transfer("checkpoint", target, options, body, _summary)


def _summary(report: Answer) -> str:
    return "\n".join([_what_was_done(report), *_what_took_the_driver_long(report), *_what_became_of_the_image(report)])


def _what_became_of_the_image(report: Answer) -> Iterator[str]:
    if not report.get("image"):
        return
    if report["parent_refused"]:
        yield f"  image {report['image']} is not built upon the newest one: {report['parent_refused']}"
    if report["durable_s"] is None:
        yield f"  image {report['image']} is being written: gcr images lists it when it is durable"
        return
    cost = f"{units.size(report['bytes_written'])} written of {units.size(report['bytes_total'])}"
    yield f"  image {report['image']} durable in {text.seconds(report['durable_s'])} ({cost})"
    if report["streamed"]:
        yield "  it alone has the bytes, for which the host had no room: keep it until the job is back"


def _what_was_done(report: Answer) -> str:
    if report["vram_free_s"] is None:
        return f"{report['job']} runs on, stopped for {text.seconds(report['stop_s'])}"
    stays = report["vram_after_bytes"]
    what = f"VRAM free, but for {units.size(stays)} that the driver keeps," if stays else "VRAM free"
    freed = f"{what} in {text.seconds(report['vram_free_s'])} (stopped for {text.seconds(report['stop_s'])})"
    by_itself = ", copied by its own agent" if report["strategy"] == "copyout" else ""
    return f"{report['job']}: {freed}{by_itself}. Back with: gcr restore {report['job']}"


def _what_took_the_driver_long(report: Answer) -> Iterator[str]:
    """One line, if there is more than a context to say of."""
    rows, causes = report["processes"], []
    if (contexts := sum(row["contexts"] for row in rows)) > len({row["pid"] for row in rows}):
        causes.append(f"saved {contexts} contexts")
    if (pinned := sum(row["pinned_host_bytes"] for row in rows)) >= MUCH_PINNED:
        causes.append(f"unlocked {units.size(pinned)} of page-locked host memory")
    left = Counter[str]()
    for row in rows:
        left.update(row["uncovered"])
    if left.total() > MUCH_LEFT:
        causes.append(f"copied {units.size(left.total())} itself, which gcr cannot move ({', '.join(sorted(left))})")
    if causes and report["control_s"] is not None:
        yield f"  the driver took {text.seconds(report['control_s'])} of that: it {', '.join(causes)}"
