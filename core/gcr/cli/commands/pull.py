"""`gcr pull`: an image is copied from a store elsewhere."""

import click

from gcr.cli.moving import move
from gcr.cli.options import Options, common_options, examples, store_option
from gcr.image.place import store_path


@click.command("pull", epilog=examples("gcr pull warm s3://bucket/images", "gcr pull warm file:///mnt/backup --json"))
@click.argument("name")
@click.argument("url")
@store_option
@common_options
@click.pass_obj
def command(options: Options, name: str, url: str, store: str | None) -> None:
    """Copy an image from a store elsewhere: s3://BUCKET/PREFIX, gs://…, az://…, or file:///FOLDER.

    Every byte is compared with what the manifest says of it before the image is there. What the store has, also of a
    pull that was cut short, is not fetched again. Needs the extra `remote`.
    """
    from gcr.image.cipher import cipher_of
    from gcr.image.pull import pull

    cipher = cipher_of(options.key().key())
    move("pull", options, name, url, lambda transfer: pull(store_path(store), name, url, transfer, cipher))
