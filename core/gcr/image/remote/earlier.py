"""The last image of a job that is here already, while a pull awaits the next one.

The pull reads it before the next image is there. The next image has most chunks where this one has them. So the packs
of those are not opened once more, and only the other chunks are looked up (read/places.py).
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from msgspec import Struct

from gcr.image.pack.format import Pack
from gcr.image.pack.reader import PackReader
from gcr.image.read.places import Places, checked_places
from gcr.image.store.store import Store
from gcr.imageerrors import NoSuchImage


class Earlier(Struct, frozen=True):
    """An image of this store. `places`: checked · `readers`: of its packs that were not found damaged"""

    places: Places
    readers: Mapping[Pack, PackReader]


def earlier(store: Store, names: Iterable[str]) -> Earlier | None:
    """Returns the first of these images that is there. Raises Damaged, WrongImage, OSError unless it can be read."""
    for name in names:
        with suppress(NoSuchImage):
            manifest = store.images.manifest(name)
            packs = [store.packs.reader(pack) for pack in manifest.packs]
            places = checked_places(store, manifest, store.images.references(manifest), packs)
            return Earlier(places, {each.pack: each for each in packs if not store.packs.is_distrusted(each.pack)})
    return None
