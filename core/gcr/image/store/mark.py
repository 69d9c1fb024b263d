"""The mark of a store, the file `gcr-store`: it says that the folder is a store, and whether it is encrypted.

With a key an empty store becomes an encrypted one, and stays that. The mark is checked when the store is opened, and
again under the store's lock before anything is read or written.
"""

import os
from pathlib import Path

from msgspec import Struct

from gcr.image.crypto.cipher import FILE_MAGIC, Cipher
from gcr.image.disk.durable import sync, write_file
from gcr.image.disk.regular import read_file
from gcr.image.store.images import Images
from gcr.imageerrors import Damaged, WrongKey

MARK = "gcr-store"  # gcr made every other file of the folder
NEW_MARK = "gcr-store.new"
MOST_MARK = 4096  # bytes; far more than any has


class Mark(Struct, frozen=True):
    """The mark of the store in the folder `store`, which is to have this cipher."""

    store: Path
    cipher: Cipher

    def found(self) -> bytes | None:
        """Returns what the mark says, None without one. Raises Damaged, OSError."""
        try:
            return read_file(self.store / MARK, MOST_MARK)
        except FileNotFoundError:
            return None

    def check(self, images: Images) -> None:
        """Raises WrongKey, Damaged, WrongImage."""
        found = self.found() or b""
        try:
            self.cipher.check_mark(found, self.store)
        except WrongKey:
            if not found and any(images.stored(name).startswith(FILE_MAGIC) for name in images.names()):
                raise Damaged.of(self.store / MARK, "it is empty, and there are encrypted images") from None
            raise

    def write_plain(self) -> None:
        """Marks a store that is not encrypted. Raises OSError."""
        os.close(os.open(self.store / MARK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        sync(self.store)

    def write_encrypted(self) -> None:
        """Marks a store as one of the cipher; the caller holds its lock alone. Raises OSError."""
        write_file(self.store / NEW_MARK, self.cipher.mark)
        (self.store / NEW_MARK).rename(self.store / MARK)
        sync(self.store)
