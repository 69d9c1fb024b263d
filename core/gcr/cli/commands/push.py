"""`gcr push`: an image is copied to a store elsewhere."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gcr.cli import completing
from gcr.cli.moving import move
from gcr.cli.options import Options, common_options, examples, store_option
from gcr.image.store.location import opened, store_path
from gcr.imageerrors import NoSuchImage

if TYPE_CHECKING:
    from gcr.image.crypto.key import KeySource
    from gcr.image.remote.push import Moved
    from gcr.image.remote.transfer import Transfer


@click.command("push", epilog=examples("gcr push warm s3://bucket/images", "gcr push warm file:///mnt/backup --json"))
@click.argument("name", shell_complete=completing.images)
@click.argument("url")
@store_option
@common_options
@click.pass_obj
def command(options: Options, name: str, url: str, store: str | None) -> None:
    """Copy an image to a store elsewhere: s3://BUCKET/PREFIX, gs://…, az://…, or file:///FOLDER.

    What is there already is not sent again; credentials come from the environment. Needs the extra `remote`.
    """
    path, key = store_path(store), options.key()
    move("push", options, path, name, url, lambda transfer: _pushed(path, key, name, url, transfer))


def _pushed(path: Path, key: "KeySource", name: str, url: str, transfer: "Transfer") -> "Moved":
    from gcr.image.remote.push import push

    store = opened(path, key, transfer.pulse)
    if store is None:
        raise NoSuchImage(f"no image {name!r}", hint="gcr images")
    return push(store, name, url, transfer)
