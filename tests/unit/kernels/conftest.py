"""A file is written and inspected."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gcr.kernels import Image, inspect_file


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], tuple[Image, ...]]:
    """Write a file, and inspect it."""

    def write_and_inspect(content: bytes) -> tuple[Image, ...]:
        path = tmp_path / "file"
        path.write_bytes(content)
        return inspect_file(path)

    return write_and_inspect
