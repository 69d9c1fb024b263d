"""`gcr rm`: images go, and what no other image needs of theirs."""

import click

from gcr.cli import text
from gcr.cli.options import Options, common_options, examples, store_option
from gcr.cli.output import print_json, print_text, success
from gcr.errors import NoSuchImage
from gcr.image.place import opened


@click.command("rm", epilog=examples("gcr rm warm", "gcr rm warm warm2 --json"))
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@store_option
@common_options
@click.pass_obj
def command(options: Options, store: str | None, names: tuple[str, ...]) -> None:
    """Remove images. All of them are there, or none is removed."""
    there = opened(store, options.key())
    if there is None:
        raise NoSuchImage(f"no image {names[0]!r}", hint="gcr images")
    freed = there.remove(names)
    if options.json:
        print_json(success("rm", {"images": list(names), "bytes_freed": freed}))
    else:
        print_text(f"removed {text.plural(len(names), 'image')}, {text.size(freed)} free")
