"""`gcr doctor`: is this machine fit, and if not, what would mend it."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from gcr.cli.checks import Check
from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import failure, print_json, success
from gcr.errors import Refused


class NotReady(Refused):
    """Something gcr needs is missing on this machine."""

    code = "not_ready"


@click.command("doctor", epilog=examples("gcr doctor", "gcr doctor --strict --json"))
@click.option("--strict", is_flag=True, help="Exit with 3 if something needed is missing.")
@common_options
@click.pass_context
def command(ctx: click.Context, strict: bool) -> int:
    """Check what gcr needs on this machine; say for each thing that is missing what would mend it."""
    from gcr.cli import checks

    options = ctx.ensure_object(Options)
    found = checks.all_checks(options.backend)
    missing = [check.name for check in found if check.needed and not check.ok]
    error = NotReady(f"needed and missing: {', '.join(missing)}") if strict and missing else None
    if options.json:
        envelope = failure("doctor", error) if error else success("doctor", {})
        print_json({**envelope, "checks": [asdict(check) for check in found]})
    else:
        click.echo(_render(found))
    return error.exit if error else 0


def _render(checks: Sequence[Check]) -> str:
    return "\n".join(line for check in checks for line in _lines(check))


def _lines(check: Check) -> list[str]:
    mark = "ok" if check.ok else "MISSING" if check.needed else "note"
    lines = [f"{mark:<8} {check.name:<24} {check.detail}"]
    return lines if check.ok or not check.remedy else [*lines, f"{'':<8} {'':<24} try: {check.remedy}"]
