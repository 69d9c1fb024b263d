"""`gcr verify`: whether images are what was written."""

from typing import Any

import click

from gcr.cli.options import Options, common_options, examples, store_option
from gcr.cli.output import print_json, print_text, success
from gcr.errors import Damaged, NoSuchImage
from gcr.image.place import opened
from gcr.image.reader import ImageReader
from gcr.image.store import Store


@click.command("verify", epilog=examples("gcr verify", "gcr verify warm --deep"))
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option("--deep", is_flag=True, help="Read every byte of every chunk; else all but the chunks.")
@store_option
@common_options
@click.pass_obj
def command(options: Options, store: str | None, names: tuple[str, ...], deep: bool) -> None:
    """Check that images can be restored from: these, or all. Exit code 6 where one cannot."""
    there = opened(store, options.key())
    if there is None and names:
        raise NoSuchImage(f"no image {names[0]!r}", hint="gcr images")
    found = [_checked(there, name, deep) for name in (names or there.names())] if there else []
    damaged = [each for each in found if each["damaged"]]
    if damaged:
        raise Damaged.of(damaged[0]["image"], f"{damaged[0]['damaged']}; {len(damaged)} of {len(found)} are damaged")
    if options.json:
        print_json(success("verify", {"images": found, "deep": deep}))
    else:
        print_text("\n".join(f"{each['image']}: good" for each in found) or "no images")


def _checked(store: Store, name: str, deep: bool) -> dict[str, Any]:
    looked = 0
    try:
        with ImageReader(store, name) as reader:
            if deep:
                looked = sum(reader.check())
            else:
                reader.check_hashes()
    except Damaged as error:
        return {"image": name, "bytes": looked, "damaged": error.message}
    return {"image": name, "bytes": looked, "damaged": None}
