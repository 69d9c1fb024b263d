"""`gcr inspect`: what an image consists of."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gcr.cli.asking import asked
from gcr.cli.commands.images import facts
from gcr.cli.options import Options, common_options, examples, store_option
from gcr.cli.output import print_json, print_text, success
from gcr.errors import NoSuchImage, Refused

if TYPE_CHECKING:
    from gcr.image.manifest import Manifest
    from gcr.image.store import Store


@click.command("inspect", epilog=examples("gcr inspect warm", "gcr inspect warm --html warm.html"))
@click.argument("name")
@click.option("--html", metavar="FILE", help="Write it as one page for a browser; FILE must not be there.")
@store_option
@common_options
@click.pass_obj
def command(options: Options, name: str, html: str | None, store: str | None) -> None:
    """Show what an image consists of: allocations, shared and changed bytes, how long its checkpoint took."""
    manifest = asked(options, store, lambda there: _manifest(there, name))
    if html is not None:
        _write(manifest, Path(html))
    if options.json:
        print_json(success("inspect", _fields(manifest)))
    elif html is not None:
        print_text(f"wrote {html}")
    else:
        from gcr.cli.drawing import on_terminal

        print_text(on_terminal(manifest))


def _manifest(store: "Store | None", name: str) -> "Manifest":
    if store is None:
        raise NoSuchImage(f"no image {name!r}", hint="gcr images")
    return store.manifest(name)


def _write(manifest: "Manifest", path: Path) -> None:
    from gcr.cli.webpage import as_page

    page = as_page(manifest)
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


def _fields(manifest: "Manifest") -> dict[str, Any]:
    from gcr.image.anatomy import bytes_by_device, origins, phases, size_classes

    return {
        **facts(manifest),
        "bytes_changed": manifest.bytes_changed,
        "bytes_by_device": dict(bytes_by_device(manifest)),
        "models": dict(manifest.models),
        "versions": dict(manifest.versions),
        "origins": dict(origins(manifest)),
        "allocations": [asdict(each) for each in size_classes(manifest)],
        "phases": [asdict(each) for each in phases(manifest)],
        "packs": len(manifest.packs),
        "chunk_bytes": manifest.chunk_bytes,
    }
