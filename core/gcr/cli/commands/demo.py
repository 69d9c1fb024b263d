"""`gcr demo`: a whole cycle on a SIMULATED device."""

import time

import click

from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import print_json, print_text, say, success
from gcr.errors import UsageError


@click.command("demo", epilog=examples("gcr demo", "gcr --backend amd demo", "gcr demo --json"))
@common_options
@click.pass_obj
def command(options: Options) -> None:
    """Checkpoint and restore a small program on a SIMULATED device; needs no GPU and shows nothing about speed.

    The device is NVIDIA's, or that of --backend: amd, ascend. NVIDIA's and AMD's need gcr's extra of that name; without
    it and without --backend the device is the first that needs none.
    """
    from gcr.demo import cycle

    vendor = options.backend or cycle.first_vendor()
    if vendor not in cycle.VENDORS:
        raise UsageError(f"there is no demonstration for {vendor}, only for {', '.join(cycle.VENDORS)}")
    if vendor not in (options.backend, cycle.VENDORS[0]):
        say(f"SIMULATED  {_instead(vendor, cycle.install_hint(cycle.VENDORS[0]))}")
    began = time.monotonic()
    steps: list[cycle.Step] = []
    for step in cycle.steps(options.timeout or cycle.TIMEOUT, vendor):
        steps.append(step)
        if not step.ok:
            raise cycle.Failed(f"SIMULATED: {step.name}: {step.detail}")
        if not options.json:
            print_text(f"SIMULATED  ok    {step.name:<34} {step.detail}")
    if options.json:
        rows = [{"name": step.name, "ok": step.ok, "detail": step.detail} for step in steps]
        print_json(
            success("demo", {"simulated": True, "vendor": vendor, "steps": rows, "seconds": time.monotonic() - began})
        )


def _instead(vendor: str, install: str) -> str:
    return f"the device of {vendor}, which needs no package; for NVIDIA's: {install}, then gcr demo"
