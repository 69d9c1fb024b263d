"""The files of a job's processes as text that fits into one message: paths, sizes, and beginnings of contents' names.

A message has 64 KiB. Of very many files those that do not fit are left to the comparison that every restore makes.
"""

import base64
import json
import zlib
from collections.abc import Sequence

from gcr.criu.files import FileSeen

MOST = 44_000  # characters
_DIGITS = 16  # of a content's name: 64 bits, which no file comes to have by chance


def packed(files: Sequence[FileSeen]) -> str:
    """Returns the text of as many files as fit."""
    left = len(files)
    while len(text := _packed(files[:left])) > MOST:
        left = left * 3 // 4
    return text


def unpacked(text: str) -> list[FileSeen]:
    """Raises ValueError for text that is not of `packed`."""
    rows = json.loads(zlib.decompress(base64.b85decode(text))) if text else []
    return [FileSeen(str(path), int(size), str(content), bool(grows)) for path, size, content, grows in rows]


def _packed(files: Sequence[FileSeen]) -> str:
    rows = [(each.path, each.size, _short(each.content), each.grows) for each in files]
    return base64.b85encode(zlib.compress(json.dumps(rows).encode(), 9)).decode()


def _short(content: str) -> str:
    kind, colon, name = content.partition(":")
    return f"{kind}{colon}{name[:_DIGITS]}"
