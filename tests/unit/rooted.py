"""Parts of an image over nodes in stores of tests, each with the root of the whole."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from imaging import bytes_of, write

from gcr.cutroot import Root, RootPart
from gcr.image.files.manifest import Manifest
from gcr.image.store.store import Store

OTHER = RootPart("b", "e" * 64, 7)


def root_of(manifest: Manifest, created: float, cut: str) -> Root:
    own = RootPart("a", manifest.seal().hex(), manifest.costs.bytes_total)
    return Root("night", cut, manifest.source.job, created, (own, OTHER))


def part(store: Store, number: int, rooted: bool = True, job: str = "llm") -> Root:
    """Writes the part of the cut made at second `number`, and its root. Returns the root."""
    cut = f"{number:x}".rjust(16, "0").ljust(32, "0")
    manifest = write(store, f"night.{cut[:16]}.0", [bytes_of(number, 5000)], job, created=float(number))
    root = root_of(manifest, float(number), cut)
    if rooted:
        store.roots.keep(root, root.part(0))
    return root
