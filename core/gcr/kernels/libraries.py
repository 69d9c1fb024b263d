"""Libraries of the extra `inspect`, imported when a file needs them and not before."""

import importlib
from types import ModuleType

from gcr.errors import LibraryMissing


def library(module: str) -> ModuleType:
    """Raises LibraryMissing with what to type."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"reading this file needs the Python module {module.partition('.')[0]}: {error}"
        raise LibraryMissing(message, hint="pip install 'gpu-cr[inspect]'") from error
