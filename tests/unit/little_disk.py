"""A small file system of its own for a store, which can be made larger."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def little(folder: Path, size: int) -> Iterator[None]:
    """Mounts a file system of `size` bytes at the folder within the block, or skips the test."""
    folder.mkdir(mode=0o700)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "gcr-test", str(folder)]
    if subprocess.run(words, check=False).returncode != 0:
        pytest.skip("no file system can be mounted")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def enlarge(folder: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)
