"""`gcr checkpoint`: take a job off its device."""

from collections import Counter
from collections.abc import Iterator

import click

from gcr.cli import text
from gcr.cli.options import Options, Target, common_options, examples, parse_target
from gcr.cli.transfer import Answer, transfer

MUCH_LEFT = 64 << 20  # bytes: the driver copies some 2 GB a second
MUCH_PINNED = 1 << 30  # bytes: it takes some 15 ms, and 35 to come back


@click.command(
    "checkpoint",
    epilog=examples("gcr checkpoint llm", "gcr checkpoint 4711 --timeout 60", "gcr --json checkpoint llm --data-only"),
)
@click.argument("target", metavar="JOB|PID", callback=parse_target)
@click.option("--data-only", is_flag=True, help="Free the device data only; the driver's context stays on the device.")
@common_options
@click.pass_obj
def command(options: Options, target: Target, data_only: bool) -> None:
    """Suspend JOB, or the process PID, and free the device memory it uses."""
    transfer("checkpoint", target, options, {"data_only": data_only}, _summary)


def _summary(report: Answer) -> str:
    return "\n".join([_what_was_done(report), *_what_took_the_driver_long(report)])


def _what_was_done(report: Answer) -> str:
    stays = report["vram_after_bytes"]
    what = f"VRAM free, but for {text.size(stays)} that the driver keeps," if stays else "VRAM free"
    freed = f"{what} in {text.seconds(report['vram_free_s'])} (stopped for {text.seconds(report['stop_s'])})"
    by_itself = ", copied by its own agent" if report["strategy"] == "copyout" else ""
    return f"{report['job']}: {freed}{by_itself}. Back with: gcr restore {report['job']}"


def _what_took_the_driver_long(report: Answer) -> Iterator[str]:
    """One line, if there is more than a context to say of."""
    rows, causes = report["processes"], []
    if (contexts := sum(row["contexts"] for row in rows)) > len({row["pid"] for row in rows}):
        causes.append(f"saved {contexts} contexts")
    if (pinned := sum(row["pinned_host_bytes"] for row in rows)) >= MUCH_PINNED:
        causes.append(f"unlocked {text.size(pinned)} of page-locked host memory")
    left = Counter[str]()
    for row in rows:
        left.update(row["uncovered"])
    if left.total() > MUCH_LEFT:
        causes.append(f"copied {text.size(left.total())} itself, which gcr cannot move ({', '.join(sorted(left))})")
    if causes and report["control_s"] is not None:
        yield f"  the driver took {text.seconds(report['control_s'])} of that: it {', '.join(causes)}"
