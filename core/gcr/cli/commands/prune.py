"""`gcr prune`: old images go."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import click

from gcr import units
from gcr.cli.asking import asked
from gcr.cli.needed import images_of_former_boots, needed_images
from gcr.cli.options import Options, common_options, examples, store_option
from gcr.cli.output import print_json, print_text, success
from gcr.cli.removals import Removal, told
from gcr.errors import UsageError
from gcr.image.store.location import store_path
from gcr.imageerrors import Damaged, StoreBusy, WrongImage

if TYPE_CHECKING:
    from gcr.image.files.manifest import Manifest
    from gcr.image.store.store import Store


@click.command("prune", epilog=examples("gcr prune --keep-last 5 --keep-daily 7 --dry-run", "gcr prune --keep-last 5"))
@click.option("--keep-last", type=click.IntRange(min=0), help="Keep the newest N images of each job.")
@click.option("--keep-daily", type=click.IntRange(min=0), help="Keep the newest image of each of the last N days.")
@click.option("--dry-run", is_flag=True, help="Say which images would go and how many bytes, and remove nothing.")
@store_option
@common_options
@click.pass_obj
def command(options: Options, store: str | None, keep_last: int | None, keep_daily: int | None, dry_run: bool) -> None:
    """Remove all images but those that a rule keeps.

    Only days with an image count. An image that cannot be read is kept, and so is a suspended job's only copy.
    """
    if keep_last is None and keep_daily is None:
        raise UsageError("nothing says what to keep", hint="gcr prune --keep-last 5")
    last, daily = keep_last or 0, keep_daily or 0
    with told("prune", store_path(store), Removal(quiet=dry_run)) as removal:
        names, freed = asked(options, store, lambda there: _pruned(there, last, daily, dry_run) if there else ([], 0))
        removal.done(names, freed)
    if options.json:
        print_json(success("prune", {"images": names, "bytes_freed": freed, "dry_run": dry_run}))
    else:
        print_text(_said(names, freed, dry_run))


def _said(names: "Sequence[str]", freed: int, dry_run: bool) -> str:
    if not names:
        return "nothing to remove"
    which = ", ".join(names)
    return f"would remove {which}: {units.size(freed)}" if dry_run else f"{units.size(freed)} free; removed {which}"


def _pruned(store: "Store", keep_last: int, keep_daily: int, dry_run: bool) -> tuple[list[str], int]:
    from gcr.image.store.retention import doomed, would_free

    going, needed = (
        doomed(store.images.readable(), keep_last, keep_daily),
        {**needed_images(store), **images_of_former_boots(store)},
    )
    going = [manifest for manifest in going if manifest.name not in needed]
    names = [manifest.name for manifest in going]
    if dry_run:
        return names, would_free(store, names)
    freed = _removed(store, going)
    kept = {*store.images.names()}.intersection(names)  # names that others have taken meanwhile
    return [name for name in names if name not in kept], freed


def _removed(store: "Store", going: "Sequence[Manifest]") -> int:
    """Bytes freed; also of what writers that died have left, where no image is to go."""
    if going:
        seals = {manifest.name: manifest.seal() for manifest in going}
        return store.remove([*seals], partial(needed_images, store), seals)
    with suppress(StoreBusy, Damaged, WrongImage):
        return store.clean()
    return 0
