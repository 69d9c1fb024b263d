"""`gcr push`: an image is copied to a store elsewhere."""

import click

from gcr.cli.moving import move
from gcr.cli.options import Options, common_options, examples, store_option
from gcr.errors import NoSuchImage
from gcr.image.place import opened


@click.command("push", epilog=examples("gcr push warm s3://bucket/images", "gcr push warm file:///mnt/backup --json"))
@click.argument("name")
@click.argument("url")
@store_option
@common_options
@click.pass_obj
def command(options: Options, name: str, url: str, store: str | None) -> None:
    """Copy an image to a store elsewhere: s3://BUCKET/PREFIX, gs://…, az://…, or file:///FOLDER.

    What is there already is not sent again; credentials come from the environment. Needs the extra `remote`.
    """
    there = opened(store, options.key())
    if there is None:
        raise NoSuchImage(f"no image {name!r}", hint="gcr images")
    from gcr.image.push import push

    move("push", options, name, url, lambda transfer: push(there, name, url, transfer))
