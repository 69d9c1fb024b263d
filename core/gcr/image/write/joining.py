"""Joins the parts of an image that several processes have written, each into packs of its own."""

from collections.abc import Sequence

from gcr.image.files import references
from gcr.image.pack.format import Pack
from gcr.image.store.store import Store
from gcr.image.write.part import Part
from gcr.image.write.placing import Counts
from gcr.imageerrors import Damaged


def joined(parts: Sequence[Part]) -> Part:
    """Returns the chunks of all parts, one part behind the other. Every pack occurs once. No part has digests."""
    numbers: dict[Pack, int] = {}
    found = bytearray()
    for part in parts:
        mine = {old: numbers.setdefault(pack, len(numbers)) for old, pack in enumerate(part.packs)}
        found += references.renumbered(part.references, mine)
    counts = [part.counts for part in parts]
    total = Counts(*(sum(getattr(each, name) for each in counts) for name in Counts.__struct_fields__))
    return Part(tuple(numbers), bytes(found), b"", total)


def refuse_missing(store: Store, parts: Sequence[Part]) -> None:
    """Raises Damaged unless the store has every pack of the parts, judged by its end: its writer may see another disk.

    Raises WrongImage, OSError.
    """
    for pack in {pack for part in parts for pack in part.packs}:
        if not store.packs.has(pack):
            text = "a pack of another process is not here"
            raise Damaged.of(store.packs.folder / pack.id, text, hint="all processes need one folder as their store")
