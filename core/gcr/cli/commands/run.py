"""`gcr run`: start a program as a job."""

import os
from typing import TYPE_CHECKING, Any

import click

from gcr.cli.options import ON_BEHALF, Options, common_options, examples, parse_name
from gcr.cli.output import NotWritten, print_json_behind, print_text, say, say_behind, say_stopped, success
from gcr.errors import GcrError, Interrupted, UsageError

if TYPE_CHECKING:
    from gcr.supervisor import JobSpec

FAILED_BEFORE_START = 125


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "gcr run --name llm -- python serve.py",
        "gcr run -d --name llm -- python serve.py",
        "gcr run --simulate nvidia -- python program.py",
    ),
)
@click.option("--name", callback=parse_name, metavar="JOB", help="Name of the job; else the program's and a number.")
@click.option("-d", "--detach", is_flag=True, help="Leave the program running and return at once.")
@click.option(
    "--simulate",
    metavar="VENDOR",
    help="Let the program see a SIMULATED device of VENDOR: nvidia, amd, ascend, or a plugin's.",
)
@click.option(
    "--share",
    type=click.Choice(["tickets", "driver"]),
    help="Give the program tickets, or the driver's own descriptors, when it exports device memory. Processes outside "
    "gcr import only the latter; gcr refuses a checkpoint then. Default: the setting `share`.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="At the end, write the job's last report to FILE.",
)
@click.option(ON_BEHALF, type=int, hidden=True)
@click.argument("program", metavar="-- CMD...", nargs=-1, required=True)
@common_options
@click.pass_context
def command(ctx: click.Context, /, program: tuple[str, ...], on_behalf: int | None, **chosen: Any) -> int:
    """Run CMD so that it can be checkpointed, in the foreground like any parent, and return its exit code.

    CMD sees the same devices, and behaves as it would without gcr. The code is 125 if gcr failed before CMD started.
    With --json one object is printed once CMD has ended, behind CMD's own output, or with -d once it runs. With -d
    CMD's output goes to a file, which `gcr logs` shows.
    """
    options = ctx.ensure_object(Options)
    if on_behalf is not None:
        from gcr.cli import onbehalf

        return onbehalf.run(on_behalf, lambda: _spec(options, program, **chosen))
    try:
        return _run(_spec(options, program, **chosen), options.json)
    except (UsageError, NotWritten, Interrupted):
        raise
    except GcrError as error:
        vars(error)["exit"] = FAILED_BEFORE_START
        raise


def _spec(
    options: Options,
    program: tuple[str, ...],
    name: str | None,
    detach: bool,
    simulate: str | None,
    share: str | None,
    report: str | None,
) -> "JobSpec":
    from gcr.cli import parts
    from gcr.cli.unparking import reviver
    from gcr.supervisor import JobSpec

    return JobSpec(
        program,
        name,
        detach=detach,
        backend=options.backend,
        simulate=simulate,
        simulator=parts.simulator_of(simulate) if simulate else None,
        shim=parts.shim_of(simulate or options.backend),
        environment={**os.environ, "GCR_SHARE": share} if share else None,
        report=report,
        reviver=reviver,
    )


def _run(spec: "JobSpec", as_json: bool) -> int:
    from gcr import supervisor

    done = supervisor.run(spec)
    if done.image:
        say_stopped(done.job, done.image, done.store)
    if done.unreported:
        say_behind(f"gcr: no report in {spec.report}: {done.unreported}", bool(done.image))
    code = None if spec.detach else done.code
    report = success("run", {"job": done.job, "detached": spec.detach, "exit_code": code, "log": done.log})
    if as_json:
        print_json_behind(report, bool(done.image))
    elif spec.detach:
        print_text(done.job, {"job": done.job, "state": "running"})
        say(f"its output goes to {done.log}: gcr logs {done.job}")
    return done.code
