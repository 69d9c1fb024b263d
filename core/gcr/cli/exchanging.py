"""The token of `gcr exchange` and `gcr pull --from`."""

from pathlib import Path

from gcr.errors import UsageError
from gcr.tokens import token_in


def token_of(file: Path | None) -> str:
    """Raises UsageError without a file, and for one that others can reach or that holds no token."""
    if file is None:
        raise UsageError("nodes need a token in common: --token-file", hint="openssl rand -hex 32 makes one")
    try:
        return token_in(file)
    except ValueError as error:
        raise UsageError(f"--token-file: {error}") from None
