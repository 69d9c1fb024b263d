"""`gcr images`: what the store has."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from gcr import units
from gcr.api.listings import ImageInfo, ImageList, PartInfo, PartOf
from gcr.cli import text
from gcr.cli.asking import asked
from gcr.cli.options import Options, common_options, examples, store_option
from gcr.cli.output import print_json, print_text, success
from gcr.imageerrors import Damaged, NoSuchImage, WrongImage

if TYPE_CHECKING:
    from gcr.image.files.manifest import Manifest
    from gcr.image.store.store import Store

_HEAD = ("IMAGE", "JOB", "CUT", "MADE", "SIZE", "ZERO", "WRITTEN", "NOTES")


@click.command("images", epilog=examples("gcr images", "gcr images --json"))
@store_option
@common_options
@click.pass_obj
def command(options: Options, store: str | None) -> None:
    """List saved images: of which job, when, how large, and what they cost on disk."""
    found = asked(options, store, lambda there: _rows(there) if there else [])
    if options.json:
        print_json(success("images", ImageList(images=tuple(found)).to_json()))
    else:
        print_text(render(found))


def _rows(store: "Store") -> list[ImageInfo]:
    found = []
    for name in store.images.names():
        with suppress(NoSuchImage):  # another command has just removed it
            found.append(_row(store, name))
    return found


def _row(store: "Store", name: str) -> ImageInfo:
    try:
        return placed(store, store.images.manifest(name))
    except (Damaged, WrongImage) as error:  # one bad image hides no other
        return ImageInfo(image=name, damaged=error.message)


def placed(store: "Store", manifest: "Manifest") -> ImageInfo:
    """Returns the facts of one image, and which part it is where it is a part of an image over nodes."""
    root = store.roots.of(manifest)
    rank = root.rank_of(manifest.seal().hex()) if root else None
    if root is None or rank is None:
        return info(manifest)
    part = PartOf(image=root.image, cut=root.cut, rank=rank, nodes=len(root.parts), node=root.parts[rank].node)
    return PartInfo(**asdict(info(manifest)), part=part)


def info(manifest: "Manifest") -> ImageInfo:
    """Returns the facts of one image."""
    return ImageInfo(
        image=manifest.name,
        job=manifest.source.job,
        cut=manifest.cut.value,
        created=manifest.created,
        backend=manifest.source.backend,
        simulated=manifest.source.simulated,
        processes=len(manifest.processes),
        bytes_total=manifest.costs.bytes_total,
        bytes_zero=manifest.costs.bytes_zero,
        bytes_written=manifest.costs.bytes_written,
        parent=manifest.costs.parent,
        damaged=None,
    )


def render(images: Sequence[ImageInfo]) -> str:
    return text.table(_HEAD, [_cells(image) for image in images]) if images else "no images"


def _cells(image: ImageInfo) -> tuple[str, ...]:
    if image.created is None:
        return (image.image, "-", "-", "-", "-", "-", "-", "DAMAGED")
    made = datetime.fromtimestamp(image.created).strftime("%Y-%m-%d %H:%M:%S")
    sizes = (units.size(each or 0) for each in (image.bytes_total, image.bytes_zero, image.bytes_written))
    notes = ["SIMULATED"] if image.simulated else []
    notes += [said_of(image.part)] if isinstance(image, PartInfo) else []
    return (image.image, str(image.job), str(image.cut), made, *sizes, ", ".join(notes))


def said_of(part: PartOf) -> str:
    """Returns which part it is, in words."""
    return f"part {part.rank + 1} of {part.nodes} of {part.image}"
