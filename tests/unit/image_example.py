"""The example of docs/image-format.md: `python tests/unit/image_example.py` writes it there anew.

Two allocations, of 5,000 bytes and of 4,096 zeros. What is random in an image is not, here.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from imaging import write

from gcr.hashing import HashKey
from gcr.image.store.store import Store

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "image-format.md"
BEGIN, END = "<!-- example: begin -->\n", "<!-- example: end -->\n"
ALLOCATIONS = (b"sixteen bytes .." * 312 + b"the last", bytes(4096))
KEY = HashKey(bytes(range(32)))
ID = "00112233445566778899aabbccddeeff"


def example() -> str:
    """Three files, as Markdown."""
    with tempfile.TemporaryDirectory() as folder, patch("os.urandom", lambda _size: bytes.fromhex(ID)):
        store = Store(Path(folder) / "store")
        write(store, "warm", ALLOCATIONS, key=KEY)
        pack, chunks, hashes, manifest = (
            path.read_bytes()
            for path in (
                store.packs.folder / f"{ID}.pack",
                *(store.images.folder / f"warm.{suffix}" for suffix in ("chunks", "hashes", "json")),
            )
        )
    parts = [
        f"`packs/{ID}.pack`, {len(pack):,} bytes:\n",
        _block(dump(pack)),
        f"`images/warm.chunks`, {len(chunks)} bytes:\n",
        _block(dump(chunks)),
        f"`images/warm.hashes`, {len(hashes)} bytes:\n",
        _block(dump(hashes)),
        "`images/warm.json`:\n",
        f"```json\n{manifest.decode()}\n```\n",
    ]
    return "\n".join(parts)


def _block(lines: Iterator[str]) -> str:
    return "\n".join(["```text", *lines, "```", ""])


def dump(data: bytes, width: int = 16) -> Iterator[str]:
    """Yields the lines of `hexdump -C`: a line that is the same as the one before is a star."""
    last, starred = b"", False
    for at in range(0, len(data), width):
        row = data[at : at + width]
        if row == last:
            if not starred:
                yield "*"
            starred = True
            continue
        shown = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        yield f"{at:08x}  {row.hex(' '):<{3 * width}} |{shown}|"
        last, starred = row, False
    yield f"{len(data):08x}"


def documented(text: str) -> str:
    return text.partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    text = DOCUMENT.read_text()
    head, begin, rest = text.partition(BEGIN)
    DOCUMENT.write_text(head + begin + example() + END + rest.partition(END)[2])


if __name__ == "__main__":
    sys.exit(main())
