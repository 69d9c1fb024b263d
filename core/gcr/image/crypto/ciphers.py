"""Chooses the cipher of a store by its key."""

from gcr.errors import LibraryMissing
from gcr.image.crypto.cipher import PLAIN, Cipher


def cipher_of(key: bytes | None) -> Cipher:
    """Returns the cipher of stores with this key, 32 bytes; of plain stores for None. Raises LibraryMissing."""
    if key is None:
        return PLAIN
    try:
        from gcr.image.crypto.aes import Aes
    except ImportError as error:
        message = f"an encrypted store needs the Python module cryptography: {error}"
        raise LibraryMissing(message, hint="pip install 'gpu-cr[encryption]'") from error
    return Aes(key)
