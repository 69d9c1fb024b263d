"""`gcr doctor`: is this machine fit, and if not, what would mend it."""

import click
from msgspec import to_builtins

from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import failure, print_json, print_text, success
from gcr.errors import Refused


class NotReady(Refused):
    """`gcr doctor --strict` found something missing; each line has its remedy."""

    code = "not_ready"


@click.command("doctor", epilog=examples("gcr doctor", "gcr --backend amd doctor", "gcr doctor --strict --json"))
@click.option("--strict", is_flag=True, help="Exit with 3 if something needed is missing.")
@common_options
@click.pass_context
def command(ctx: click.Context, strict: bool) -> int:
    """Check what gcr needs on this machine; say what is missing, whether it matters, and what would mend it.

    A vendor without a device here is not missed, unless it was asked for with --backend. -v lists every check.
    """
    from gcr.cli import checks, parts
    from gcr.cli.page import page
    from gcr.demo import cycle

    options = ctx.ensure_object(Options)
    found = checks.look(options.backend)
    missing = found.missing()
    error = NotReady(f"needed and missing: {', '.join(missing)}") if strict and missing else None
    if options.json:
        envelope = failure("doctor", error) if error else success("doctor", {})
        print_json({**envelope, "checks": [to_builtins(check) for check in found.checks()]})
    else:
        built = parts.simulators_built()
        demos = {vendor: cycle.command_line(vendor) for vendor in cycle.VENDORS if vendor in built}
        every = options.verbose > 0
        print_text(page(found, simulators=built, demos=demos, asked=options.backend, every=every))
    return error.exit if error else 0
