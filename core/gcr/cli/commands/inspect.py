"""`gcr inspect`: what an image consists of, or a run of training checkpoints."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from gcr.api.listings import PartInfo
from gcr.cli import completing
from gcr.cli.asking import asked
from gcr.cli.commands.images import placed, said_of
from gcr.cli.options import Options, common_options, examples, store_option
from gcr.cli.output import print_json, print_text, success
from gcr.errors import Refused, UsageError
from gcr.imageerrors import Damaged, NoSuchImage

if TYPE_CHECKING:
    from gcr.api.listings import ImageInfo
    from gcr.checkpoints.anatomy import RunAnatomy
    from gcr.cli.picture import Picture
    from gcr.image.files.manifest import Manifest
    from gcr.image.store.store import Store

    Found = tuple[Manifest, int, ImageInfo] | RunAnatomy
    """An image, with its bytes of chunks that it has more than once, and its row in a list; or a run."""

STDOUT = "-"


@click.command("inspect", epilog=examples("gcr inspect warm", "gcr inspect train --html train.html"))
@click.argument("name", shell_complete=completing.images)
@click.option("--html", metavar="FILE", help="One page for a browser; FILE must not be there, - is stdout.")
@store_option
@common_options
@click.pass_obj
def command(options: Options, name: str, html: str | None, store: str | None) -> None:
    """Show what an image consists of: allocations, shared and changed bytes, how long its checkpoint took.

    NAME may also be a run of training checkpoints: its saves over time, how long the training waited for them, and
    what of the last step has changed, by tensor.
    """
    if html == STDOUT and options.json:
        raise UsageError("--html - and --json both print on stdout: choose one")
    found = asked(options, store, lambda there: _looked_at(there, name))
    if html == STDOUT:
        print_text(as_page(found).removesuffix("\n"))
        return
    if html is not None:
        _write(as_page(found), Path(html))
    if options.json:
        print_json(success("inspect", _fields_of(found)))
    elif html is not None:
        print_text(f"wrote {html}")
    else:
        from gcr.cli.drawing import on_terminal

        print_text(on_terminal(_picture(found)))


def _looked_at(store: "Store | None", name: str) -> "Found":
    """Returns the image, or the run where no image has the name. Raises NoSuchImage."""
    if store is None:
        raise NoSuchImage(f"no image {name!r}", hint="gcr images")
    try:
        manifest = store.images.manifest(name)
    except NoSuchImage:
        from gcr.checkpoints.anatomy import anatomy_of

        if (run := anatomy_of(store, name)) is None:
            raise
        return run
    return manifest, _repeated(store, manifest), placed(store, manifest)


def _repeated(store: "Store", manifest: "Manifest") -> int:
    """Returns how many of its bytes are chunks that it has more than once: 0 where that cannot be read."""
    from gcr.image.files.anatomy import repeated_bytes

    try:
        return repeated_bytes(manifest, store.images.references(manifest))
    except Damaged:  # gcr verify is there to say so
        return 0


def as_page(found: "Found") -> str:
    from gcr.cli import webpage  # takes long to import

    return webpage.as_page(_picture(found))


def _picture(found: "Found") -> "Picture":
    if isinstance(found, tuple):
        from gcr.cli.picture import of_image

        manifest, repeated, row = found
        more = [("part", f"{said_of(row.part)}, of cut {row.part.cut}")] if isinstance(row, PartInfo) else []
        return of_image(manifest, repeated, more)
    from gcr.cli.runpicture import of_run

    return of_run(found)


def _fields_of(found: "Found") -> dict[str, Any]:
    fields: dict[str, Any] = _fields(*found) if isinstance(found, tuple) else to_builtins(found)
    return fields


def _write(page: str, path: Path) -> None:
    try:
        file = path.open("x", encoding="utf-8")
        try:
            with file:
                file.write(page)
        except OSError:
            path.unlink()
            raise
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from error


def _fields(manifest: "Manifest", repeated: int, row: "ImageInfo") -> dict[str, Any]:
    from gcr.image.files.anatomy import bytes_by_device, origins, phases, size_classes, stop_s

    facts = {name: value for name, value in row.to_json().items() if name != "damaged"}
    return {
        **facts,
        "bytes_changed": manifest.costs.bytes_changed,
        "bytes_by_device": dict(bytes_by_device(manifest)),
        "models": dict(manifest.source.models),
        "versions": dict(manifest.source.versions),
        "origins": dict(origins(manifest, repeated)),
        "allocations": [to_builtins(each) for each in size_classes(manifest)],
        "phases": [to_builtins(each) for each in phases(manifest)],
        "stop_s": stop_s(manifest),
        "packs": len(manifest.packs),
        "chunk_bytes": manifest.chunk_bytes,
    }
