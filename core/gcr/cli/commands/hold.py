"""`gcr hold`: stand in front of a job for as long as it is on its device."""

import click

from gcr.cli import completing
from gcr.cli.commands.run import FAILED_BEFORE_START
from gcr.cli.options import Options, common_options, examples, parse_job
from gcr.cli.output import print_json, say, success
from gcr.errors import GcrError, UsageError


@click.command(
    "hold",
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "gcr hold chat -- python serve.py --port 9001", "gcr hold --simulate nvidia chat -- python serve.py"
    ),
)
@click.option("--simulate", metavar="VENDOR", help="As of `gcr run`, for a job that is started.")
@click.argument("job", metavar="JOB", callback=parse_job, shell_complete=completing.jobs)
@click.argument("program", metavar="-- CMD...", nargs=-1, required=True)
@common_options
@click.pass_obj
def command(options: Options, simulate: str | None, job: str, program: tuple[str, ...]) -> int:
    """Start JOB as `gcr run -d` does, or bring it back if it is suspended, and stay until it is off its device.

    For programs that start and end others, such as llama-swap: to them JOB begins and ends, and it keeps its memory.
    Ends with 0 once JOB is suspended, and with CMD's code once CMD has ended. SIGTERM and Ctrl-C suspend JOB first. The
    code is 125 if gcr failed; then JOB is as it was before. What CMD prints from then on is shown, without --json.
    """
    from gcr.cli.holding import Front

    words = program[program[0] == "--" :]
    if not words:
        raise UsageError("there is no command behind --")
    flags = [
        word
        for flag, value in (("--simulate", simulate), ("--backend", options.backend))
        if value
        for word in (flag, value)
    ]
    try:
        held = Front(job, words, flags, options.timeout, shows=not options.json).hold()
    except UsageError:
        raise
    except GcrError as error:
        vars(error)["exit"] = FAILED_BEFORE_START
        raise
    report = {"job": job, "state": held.state, "exit_code": held.code}
    if options.json:
        print_json(success("hold", report))
    elif held.code is None:
        say(f"gcr: {job} is {held.state}; back with the same command, or: gcr restore {job}")
    return held.code or 0
