"""`gcr verify`: whether images are what was written."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gcr.cli import completing
from gcr.cli.asking import asked
from gcr.cli.options import Options, common_options, examples, store_option
from gcr.cli.output import print_json, print_text, success
from gcr.image.store.location import is_named, store_path
from gcr.imageerrors import Damaged, NoSuchImage, StoreUnusable, WrongImage

if TYPE_CHECKING:
    from gcr.image.pack.format import Pack
    from gcr.image.store.store import Store


@click.command("verify", epilog=examples("gcr verify", "gcr verify warm --deep"))
@click.argument("names", metavar="[NAME...]", nargs=-1, shell_complete=completing.images)
@click.option("--deep", is_flag=True, help="Read every byte of every chunk; else all but the chunks.")
@store_option
@common_options
@click.pass_obj
def command(options: Options, store: str | None, names: tuple[str, ...], deep: bool) -> None:
    """Check that images can be restored from: these, or all. Exit code 6 where one cannot."""
    named = store_path(store) if is_named(store) else None
    found, unread = asked(options, store, lambda there: _all_checked(there, names, deep, named))
    if damaged := [each for each in found if each["damaged"]]:
        raise _damaged(damaged, len(found))
    if unread:
        raise WrongImage(unread[0])
    if options.json:
        print_json(success("verify", {"images": found, "deep": deep}))
    else:
        print_text("\n".join(f"{each['image']}: good" for each in found) or "no images")


def _damaged(damaged: Sequence[Mapping[str, Any]], of: int) -> Damaged:
    names = ", ".join(each["image"] for each in damaged)
    return Damaged.of(damaged[0]["image"], f"{damaged[0]['damaged']}; {len(damaged)} of {of} are damaged: {names}")


def _all_checked(
    store: "Store | None", names: Sequence[str], deep: bool, named: Path | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns a row for each image, and the reasons why images of a newer gcr cannot be read.

    named: the store's folder, if the caller named one
    """
    found: list[dict[str, Any]] = []
    unread: list[str] = []
    whole: set[Pack] = set()
    if store is None:
        if names:
            raise NoSuchImage(f"no image {names[0]!r}", hint="gcr images")
        if named:
            raise StoreUnusable(f"there is no store in {named}", hint="is its disk there?")
        return found, unread
    for name in names or store.images.names():
        try:
            found.append(_checked(store, name, deep, whole))
        except WrongImage as error:
            unread.append(error.message)
        except NoSuchImage:
            if names:
                raise  # else another command has just removed it
    return found, unread


def _checked(store: "Store", name: str, deep: bool, whole: "set[Pack]") -> dict[str, Any]:
    """`whole`: see ImageReader.check."""
    from gcr.image.read.reader import ImageReader

    looked = 0
    try:
        with ImageReader(store, name) as reader:
            if deep:
                looked = sum(reader.check(whole))
            else:
                reader.check_hashes()
    except Damaged as error:
        return {"image": name, "bytes": looked, "damaged": error.message}
    return {"image": name, "bytes": looked, "damaged": None}
