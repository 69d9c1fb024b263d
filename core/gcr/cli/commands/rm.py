"""`gcr rm`: images go, and what no other image needs of theirs."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import click

from gcr import units
from gcr.api.listings import PartInfo, PartOf
from gcr.cli import completing, text
from gcr.cli.asking import asked
from gcr.cli.commands.images import placed, said_of
from gcr.cli.needed import needed_images
from gcr.cli.options import Options, common_options, examples, store_option
from gcr.cli.output import print_json, print_text, say, success
from gcr.cli.removals import Removal, told
from gcr.image.store.location import store_path
from gcr.imageerrors import Damaged, NoSuchImage, WrongImage
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

    One that a suspended job has nothing else than is refused. With a node's part of an image over nodes the whole is
    gone, and the command says so.
    """
    with told("rm", store_path(store), Removal(names)) as removal:
        freed, parts = asked(options, store, lambda there: _removed(there, names))
        removal.done(names, freed)
    former.forget(store_path(store), names)
    if options.json:
        rows = [part.to_json() for part in parts]
        print_json(success("rm", {"images": list(names), "bytes_freed": freed, "parts": rows}))
    else:
        print_text(f"removed {text.plural(len(names), 'image')}, {units.size(freed)} free")
    for part in parts:
        say(f"{part.image} is not whole any more: this was {said_of(part)}")


def _removed(store: "Store | None", names: Sequence[str]) -> tuple[int, Sequence[PartOf]]:
    """Returns the bytes freed, and those images that were parts of images over nodes."""
    if store is None:
        raise NoSuchImage(f"no image {names[0]!r}", hint="gcr images")
    parts = [part for name in names for part in _part_of(store, name)]
    return store.remove(names, partial(needed_images, store)), parts


def _part_of(store: "Store", name: str) -> Iterator[PartOf]:
    with suppress(Damaged, WrongImage, NoSuchImage):  # to remove them is right, too
        found = placed(store, store.images.manifest(name))
        if isinstance(found, PartInfo):
            yield found.part
