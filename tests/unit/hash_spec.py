"""The chunk hash as docs/hash.md writes it: slow, with unbounded integers, and sharing nothing with what it checks."""

import hashlib
import struct
from collections.abc import Sequence

TILE, ROW, LANE = 32768, 512, 16
PRIME = 2**61 - 1


def spec_digests(data: bytes, secret: bytes, chunk_bytes: int) -> bytes:
    chunks = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
    return b"".join(spec_digest(chunk, secret, chunk_bytes) for chunk in chunks)


def spec_digest(chunk: bytes, secret: bytes, chunk_bytes: int) -> bytes:
    lane_key, coefficients, chunk_key = spec_key(secret, chunk_bytes)
    level_1: list[int] = []
    for tile in spec_tiles(chunk):
        for lane in range(0, ROW, LANE):
            words = struct.unpack(
                "<256I", b"".join(tile[row + lane : row + lane + LANE] for row in range(0, TILE, ROW))
            )
            for repeat in range(4):
                level_1 += spec_halves(spec_nh(words, lane_key[2 * repeat :]))
    level_3 = [half for repeat in range(4) for half in spec_halves(spec_nh(level_1, chunk_key[2 * repeat :]))]
    level_3.append(len(chunk))
    return b"".join(
        struct.pack("<Q", sum(c * word for c, word in zip(half, level_3, strict=True)) % PRIME)
        for half in (coefficients[:9], coefficients[9:])
    )


def spec_key(secret: bytes, chunk_bytes: int) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    words = 256 * chunk_bytes // TILE + 8
    stream = hashlib.shake_256(b"gcr chunk hash 1\0" + secret).digest(4 * 264 + 8 * 18 + 4 * words)
    unpacked = struct.unpack(f"<264I18Q{words}I", stream)
    return unpacked[:264], [word % PRIME for word in unpacked[264:282]], unpacked[282:]


def spec_tiles(chunk: bytes) -> Sequence[bytes]:
    whole = chunk + bytes(-len(chunk) % TILE)
    return [whole[at : at + TILE] for at in range(0, len(whole), TILE)]


def spec_nh(words: Sequence[int], key: Sequence[int]) -> int:
    pairs = range(0, len(words), 2)
    return sum((words[i] + key[i]) % 2**32 * ((words[i + 1] + key[i + 1]) % 2**32) for i in pairs) % 2**64


def spec_halves(value: int) -> tuple[int, int]:
    return value % 2**32, value // 2**32
