"""Training checkpoints of PyTorch: `Checkpointer`, and adapters, each in a module of its own (docs/training.md).

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
def needing(extra: str) -> Iterator[None]:
    """Raises LibraryMissing for an import that fails within the block. `extra`: of this package; it brings all."""
    try:
        yield
    except ImportError as error:
        missing = error.name or extra
        message = f"training checkpoints by gcr.torch need the Python module {missing}: {error}"
        raise LibraryMissing(message, hint=f"pip install 'gpu-cr[{extra}]'") from error


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'gcr.torch' has no attribute {name!r}")
    with needing("torch"):
        from gcr_torch import checkpointer
    return getattr(checkpointer, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
