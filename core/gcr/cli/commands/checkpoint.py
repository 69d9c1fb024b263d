"""`gcr checkpoint`: take a job off its device."""

import click

from gcr.cli import text
from gcr.cli.options import Options, Target, common_options, examples, parse_target
from gcr.cli.transfer import Answer, transfer


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
    stays = report["vram_after_bytes"]
    what = f"VRAM free, but for {text.size(stays)} that the driver keeps," if stays else "VRAM free"
    freed = f"{what} in {text.seconds(report['vram_free_s'])} (stopped for {text.seconds(report['stop_s'])})"
    by_itself = ", copied by its own agent" if report["strategy"] == "copyout" else ""
    return f"{report['job']}: {freed}{by_itself}. Back with: gcr restore {report['job']}"
