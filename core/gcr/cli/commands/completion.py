"""`gcr completion`: a script that completes commands and options."""

import click
from click.shell_completion import get_completion_class

from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import print_json, print_text, success

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", epilog=examples("gcr completion bash > ~/.local/share/bash-completion/completions/gcr"))
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
@common_options
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL: bash, zsh or fish."""
    script = _script(ctx.find_root().command, shell)
    if ctx.ensure_object(Options).json:
        print_json(success("completion", {"shell": shell, "script": script}))
    else:
        print_text(script)


def _script(root: click.Command, shell: str) -> str:
    kind = get_completion_class(shell)
    assert kind is not None
    # What source() would do, without the version check that runs the shell.
    maker = kind(root, {}, "gcr", "_GCR_COMPLETE")
    return maker.source_template % maker.source_vars()
