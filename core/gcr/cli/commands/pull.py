"""`gcr pull`: an image is copied from a store elsewhere."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gcr.cli.moving import move
from gcr.cli.options import Options, common_options, examples, store_option
from gcr.image.store.location import store_path

if TYPE_CHECKING:
    from gcr.image.crypto.key import KeySource
    from gcr.image.remote.push import Moved
    from gcr.image.remote.transfer import Transfer


@click.command("pull", epilog=examples("gcr pull warm s3://bucket/images", "gcr pull warm file:///mnt/backup --json"))
@click.argument("name")
@click.argument("url")
@store_option
@common_options
@click.pass_obj
def command(options: Options, name: str, url: str, store: str | None) -> None:
    """Copy an image from a store elsewhere: s3://BUCKET/PREFIX, gs://…, az://…, or file:///FOLDER.

    Every byte is compared with what the manifest says of it before the image is there. What the store has, also of a
    pull that was cut short, is not fetched again, but for what was found damaged. Needs the extra `remote`.
    """
    path, key = store_path(store), options.key()
    move("pull", options, path, name, url, lambda transfer: _pulled(path, key, name, url, transfer))


def _pulled(path: Path, key: "KeySource", name: str, url: str, transfer: "Transfer") -> "Moved":
    from gcr.image.crypto.ciphers import cipher_of
    from gcr.image.remote.pull import pull

    return pull(path, name, url, transfer, cipher_of(key.key()))
