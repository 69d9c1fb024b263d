"""Bytes a test can predict: different for every handle, every seed and every place."""

import hashlib


def pattern(seed: int, handle: int, size: int) -> bytes:
    return hashlib.shake_128(f"{seed}:{handle}".encode()).digest(size)


def digest(seed: int, handle: int, size: int) -> str:
    """SHA-256 of `pattern`."""
    return hashlib.sha256(pattern(seed, handle, size)).hexdigest()
