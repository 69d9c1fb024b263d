"""`gcr rm`: images go, and what no other image needs of theirs."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from gcr import units
from gcr.cli import completing, text
from gcr.cli.asking import asked
from gcr.cli.needed import needed_images
from gcr.cli.options import Options, common_options, examples, store_option
from gcr.cli.output import print_json, print_text, success
from gcr.cli.removals import Removal, told
from gcr.image.store.location import store_path
from gcr.imageerrors import NoSuchImage
from gcr.rendezvous import former

if TYPE_CHECKING:
    from gcr.image.store.store import Store


@click.command("rm", epilog=examples("gcr rm warm", "gcr rm warm warm2 --json"))
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=completing.images)
@store_option
@common_options
@click.pass_obj
def command(options: Options, store: str | None, names: tuple[str, ...]) -> None:
    """Remove images. All of them are there, or none is removed.

    One that a suspended job has nothing else than is refused.
    """
    with told("rm", store_path(store), Removal(names)) as removal:
        freed = asked(options, store, lambda there: _removed(there, names))
        removal.done(names, freed)
    former.forget(store_path(store), names)
    if options.json:
        print_json(success("rm", {"images": list(names), "bytes_freed": freed}))
    else:
        print_text(f"removed {text.plural(len(names), 'image')}, {units.size(freed)} free")


def _removed(store: "Store | None", names: Sequence[str]) -> int:
    if store is None:
        raise NoSuchImage(f"no image {names[0]!r}", hint="gcr images")
    return store.remove(names, partial(needed_images, store))
