"""`gcr swap`: one job leaves its device, another comes back to it."""

import time

import click

from gcr.api.reports import SwapReport
from gcr.api.requests import SwapRequest
from gcr.cli import completing, summaries
from gcr.cli.commands.restore import parse_moves
from gcr.cli.options import Options, Target, common_options, examples, parse_target
from gcr.cli.output import print_json, print_text, success
from gcr.cli.standing import Left, daemon_died, interrupted
from gcr.cli.transfer import ask


@click.command("swap", epilog=examples("gcr swap llm train", "gcr swap llm train --timeout 60"))
@click.argument("out", metavar="OUT", callback=parse_target, shell_complete=completing.jobs)
@click.argument("back", metavar="IN", callback=parse_target, shell_complete=completing.jobs)
@click.option("--data-only", is_flag=True, help="Free the device data of OUT only; its context stays on the device.")
@click.option(
    "--device",
    "devices",
    metavar="OLD=NEW",
    multiple=True,
    callback=parse_moves,
    shell_complete=completing.moves,
    help="IN comes back on device NEW.",
)
@common_options
@click.pass_obj
def command(options: Options, out: Target, back: Target, data_only: bool, devices: dict[str, str]) -> None:
    """Suspend the job OUT and bring back the job IN, which is suspended, in its place.

    One after the other: IN may need the room that OUT has. If IN cannot come back OUT is restored in place, and the
    exit code is 4. --timeout is for both together.
    """
    request = SwapRequest(
        out=out, back=back, timeout=options.timeout, backend=options.backend, data_only=data_only, devices=devices
    )
    began = time.monotonic()
    try:
        done = ask(request, SwapReport, options).timed(time.monotonic() - began)
    except KeyboardInterrupt:
        raise interrupted([out, back]) from None
    except Left:
        raise daemon_died([out, back]) from None
    if options.json:
        print_json(success("swap", done.to_json()))
        return
    simulated = "SIMULATED " if done.back.simulated else ""
    lines = [summaries.of_checkpoint(done.out), summaries.of_restore(done.back)]
    print_text("\n".join(simulated + line for line in lines), done.back.to_json())
