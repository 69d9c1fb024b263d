"""Training checkpoints of PyTorch: `Checkpointer`, and the adapters in `gcr.torch.dcp`. docs/training.md shows them.

The code is in `gcr_torch`, which imports PyTorch. Nothing of it is loaded before a name of it is used.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gcr.errors import LibraryMissing

if TYPE_CHECKING:
    from gcr_torch.checkpointer import Checkpointer, Save

__all__ = ["Checkpointer", "Save"]


@contextmanager
def needing_torch() -> Iterator[None]:
    """Raises LibraryMissing for an import that fails within the block."""
    try:
        yield
    except ImportError as error:
        message = f"training checkpoints need the Python module torch: {error}"
        raise LibraryMissing(message, hint="pip install 'gpu-cr[torch]'") from error


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'gcr.torch' has no attribute {name!r}")
    with needing_torch():
        from gcr_torch import checkpointer
    return getattr(checkpointer, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
