"""Notes of packs that are sent ahead of their image: another node may have each of them as soon as it is written.

images/<name>.ahead1, .ahead2 …    {"id": "<32 hex>", "seal": "<64 hex>", "bytes": <of the pack's file>}

A note has its name once all of it is written. It stays until the image goes. The image counts as any other: from its
manifest on. Without one its packs are packs that no image needs, and go with the next clean-up.
"""

from pathlib import Path

from msgspec import MsgspecError
from msgspec.json import decode, encode

from gcr.image.files.names import ahead_path, new_ahead_path
from gcr.image.pack.format import Pack
from gcr.imageerrors import Damaged

MOST = 4096  # bytes of a note
MOST_PACKS = 999  # of an image


def note(store: Path, name: str, number: int, pack: Pack) -> None:
    """Writes the note of a pack, the number-th of the image from 1 on. It need not outlive a crash. Raises OSError."""
    new = store / new_ahead_path(name)
    new.write_bytes(encode({"id": pack.id, "seal": pack.seal.hex(), "bytes": pack.bytes}))
    new.rename(store / ahead_path(name, number))


def noted(data: bytes, address: object) -> Pack:
    """Returns the pack of a note. Raises Damaged for what is none."""
    try:
        return Pack.from_json(decode(data))
    except (MsgspecError, ValueError, KeyError, TypeError) as error:
        raise Damaged.of(address, f"it is no note of a pack: {error}") from error
