"""Memory of the rules about the sources: half a million nodes of syntax trees."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import trees


@pytest.fixture(scope="package", autouse=True)
def kept_trees() -> Iterator[None]:
    """Keeps the trees until the last rule. The garbage collector would look at them again and again."""
    gc.disable()
    yield
    trees.by_kind.cache_clear()
    gc.enable()
