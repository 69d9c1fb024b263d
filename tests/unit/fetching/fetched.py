"""Packs to fetch chunks from: COUNT chunks of SIZE bytes, each of its own."""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from imaging import bytes_of, mapped

from gcr.image.chunks.chunk import name_of
from gcr.image.chunks.entry import BLOCK
from gcr.image.crypto.cipher import PLAIN
from gcr.image.pack.reader import PackReader
from gcr.image.pack.writer import PackWriter
from gcr.image.read.fetching import READERS, WAITING, Group

SIZE = 2 * BLOCK
COUNT = 40
BUFFERS = READERS + WAITING


def packed(folder: Path, seed: int) -> PackReader:
    """Chunks of SIZE bytes, each of its own."""
    chunks = [bytes_of(seed * COUNT + number, SIZE) for number in range(COUNT)]
    writer = PackWriter(folder, PLAIN, COUNT * SIZE)
    writer.write(writer.place([(name_of(chunk), SIZE) for chunk in chunks]), [*map(mapped, chunks)])
    return PackReader(folder / f"{writer.finish().id}.pack", PLAIN)


def groups_of(pack: PackReader, memory: memoryview) -> Sequence[Group]:
    return [
        Group(pack, run, memory[number * SIZE : (number + 1) * SIZE])
        for number, run in enumerate(pack.chunks.all().groups(SIZE))
    ]


def expected(seed: int) -> bytes:
    return b"".join(bytes_of(seed * COUNT + number, SIZE) for number in range(COUNT))


def damage(pack: PackReader, number: int) -> None:
    with pack.path.open("r+b") as file:
        file.seek(pack.chunks.borders[number] * BLOCK)
        file.write(b"other bytes")
