"""Parts that `gcr exchange` and `gcr pull --from` share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gcr.errors import LibraryMissing, UsageError
from gcr.tokens import token_in


@contextmanager
def exchange_libraries(command: str) -> Iterator[None]:
    """Raises LibraryMissing where one of the extra `exchange` is."""
    try:
        yield
    except ImportError as error:
        text = f"{command} needs the Python module {error.name}: {error}"
        raise LibraryMissing(text, hint="pip install 'gpu-cr[exchange]'") from error


def token_of(file: Path | None) -> str:
    """Raises UsageError without a file, and for one that others can reach or that holds no token."""
    if file is None:
        raise UsageError("nodes need a token in common: --token-file", hint="openssl rand -hex 32 makes one")
    try:
        return token_in(file)
    except ValueError as error:
        raise UsageError(f"--token-file: {error}") from None
