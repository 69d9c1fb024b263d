"""Bearer tokens: a file has one, and who listens compares it with what a request shows."""

import hmac
import stat
from pathlib import Path


def token_in(path: Path) -> str:
    """Returns the token in a file. Raises ValueError, also if others can reach the file."""
    try:
        mode, text = path.stat().st_mode, path.read_text().strip()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ValueError(f"others can reach {path}: chmod 600 {path}")
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(f"{path} holds no token of printable ASCII")
    return text


def is_shown(token: str, header: str) -> bool:
    """Returns whether the header `Authorization` shows the token; takes as long for any header of its length."""
    return hmac.compare_digest(header.encode(errors="replace"), f"Bearer {token}".encode())
