"""The chunk hash: the library for the processor against the specification, and what a hash must do."""

import ctypes
import itertools
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hash_spec import spec_digests, spec_nh
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gcr.hashing import (
    CHUNK_BYTES,
    DIGEST_BYTES,
    MAX_CHUNK_BYTES,
    TILE_BYTES,
    HashKey,
    hash_address,
    hash_bytes,
    hash_each,
    native,
)
from gcr.hashing.native import Isa

KEY = HashKey(bytes(range(32)))
PRIME = 2**61 - 1
CHUNKS = [TILE_BYTES, 2 * TILE_BYTES, 3 * TILE_BYTES]
slowly = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
quickly = settings(max_examples=60)


def here() -> list[Isa]:
    """Returns the instruction sets that this processor has."""
    found = []
    for isa in Isa:
        try:
            hash_bytes(b"", KEY, TILE_BYTES, isa)
        except ValueError:
            continue
        found.append(isa)
    return found


def noise(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def digests(data: bytes, chunk_bytes: int = TILE_BYTES, key: HashKey = KEY) -> list[bytes]:
    found = hash_bytes(data, key, chunk_bytes)
    return [found[at : at + DIGEST_BYTES] for at in range(0, len(found), DIGEST_BYTES)]


# ---- the same as the specification --------------------------------------------------------------------------------


@slowly
@given(st.data())
def test_the_library_finds_what_the_specification_says(data: st.DataObject) -> None:
    chunk_bytes = data.draw(st.sampled_from(CHUNKS), "chunk_bytes")
    near = st.sampled_from([0, 1, 15, 16, 17, 511, 512, TILE_BYTES - 1, TILE_BYTES, TILE_BYTES + 1, chunk_bytes - 1])
    tail = data.draw(st.one_of(near, st.integers(0, chunk_bytes - 1)), "tail")
    size = chunk_bytes * data.draw(st.integers(0, 2), "chunks") + min(tail, chunk_bytes - 1)
    offset = data.draw(st.integers(0, 64), "offset")
    contents = noise(size, data.draw(st.integers(0, 2**32), "seed"))
    memory = ctypes.create_string_buffer(bytes(offset) + contents, offset + size)
    secret = data.draw(st.binary(min_size=32, max_size=32), "secret")
    expected = spec_digests(contents, secret, chunk_bytes)
    for isa in here():
        found = hash_address(ctypes.addressof(memory) + offset, size, HashKey(secret), chunk_bytes, isa)
        assert found == expected, isa.name


@pytest.mark.parametrize("fill", [0x00, 0x80, 0xFF])
def test_sums_carry_as_the_specification_says(fill: int) -> None:
    contents = bytes([fill]) * (CHUNK_BYTES + 5)
    expected = spec_digests(contents, KEY.secret, CHUNK_BYTES)
    assert [hash_bytes(contents, KEY, CHUNK_BYTES, isa) for isa in here()] == [expected] * len(here())


def test_an_inner_product_of_exactly_the_prime_is_zero() -> None:
    """Too rare to be met by chance. Level 2 is four times 0x3fffffff8 under a key of zeros; only two terms count."""
    coefficients = [0] * 18
    coefficients[7], coefficients[8] = (PRIME - 2 * TILE_BYTES) // 3, 2
    assert 3 * coefficients[7] + 2 * TILE_BYTES == PRIME
    chunk = bytes([0xFF] * 8).ljust(TILE_BYTES, b"\0")
    key = native.Aligned(bytes(1056) + struct.pack("<18Q", *coefficients) + bytes(1056))
    for isa in here():
        found = ctypes.create_string_buffer(b"\1" * 16, 16)
        assert native.library().gcr_hash_memory(isa, chunk, TILE_BYTES, TILE_BYTES, key.address, found)
        assert found.raw == bytes(16)


def test_nothing_is_read_behind_the_end() -> None:
    memory = ctypes.create_string_buffer(noise(3 * TILE_BYTES, 1), 3 * TILE_BYTES)
    before = hash_address(ctypes.addressof(memory), TILE_BYTES + 7, KEY, 2 * TILE_BYTES)
    memory[TILE_BYTES + 7] = bytes([memory.raw[TILE_BYTES + 7] ^ 1])
    assert hash_address(ctypes.addressof(memory), TILE_BYTES + 7, KEY, 2 * TILE_BYTES) == before


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_will_do(kind: Callable[[bytes], bytes]) -> None:
    contents = noise(TILE_BYTES + 1, 2)
    assert hash_bytes(kind(contents), KEY, TILE_BYTES) == spec_digests(contents, KEY.secret, TILE_BYTES)
    assert hash_bytes(kind(b""), KEY, TILE_BYTES) == b""


# ---- what a hash must do ------------------------------------------------------------------------------------------


@quickly
@given(st.integers(1, 3 * TILE_BYTES), st.integers(0), st.sampled_from(CHUNKS))
def test_one_flipped_bit_changes_its_chunk_and_no_other(size: int, at: int, chunk_bytes: int) -> None:
    contents = bytearray(noise(size, size))
    before = digests(bytes(contents), chunk_bytes)
    bit = at % (8 * size)
    contents[bit // 8] ^= 1 << bit % 8
    after = digests(bytes(contents), chunk_bytes)
    changed = [number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
    assert changed == [bit // 8 // chunk_bytes]


@quickly
@given(st.binary(min_size=32, max_size=32), st.integers(0, 255))
def test_one_flipped_bit_of_the_key_changes_every_digest(secret: bytes, bit: int) -> None:
    other = bytearray(secret)
    other[bit // 8] ^= 1 << bit % 8
    contents = noise(2 * TILE_BYTES + 1, bit)
    first, second = digests(contents, key=HashKey(secret)), digests(contents, key=HashKey(bytes(other)))
    assert not set(first) & set(second)


@quickly
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.sampled_from(CHUNKS))
def test_digests_come_in_the_order_of_the_chunks_and_depend_on_nothing_else(seeds: list[int], chunk_bytes: int) -> None:
    chunks = [noise(chunk_bytes, seed) for seed in seeds]
    assert digests(b"".join(chunks), chunk_bytes) == [digests(chunk, chunk_bytes)[0] for chunk in chunks]


@given(
    parts=st.lists(st.tuples(st.integers(0, 3 * TILE_BYTES), st.booleans()), max_size=6),
    fixed=st.booleans(),
)
def test_pieces_have_the_digests_that_each_has_alone(parts: list[tuple[int, bool]], fixed: bool) -> None:
    """Pieces lie side by side or apart; `fixed`: in memory that cannot be written."""
    memory, pieces, at = bytearray(noise(6 * (3 * TILE_BYTES + 1), 5)), list[memoryview](), 0
    whole = memoryview(bytes(memory) if fixed else memory)
    for size, apart in parts:
        at += apart
        pieces.append(whole[at : at + size])
        at += size
    assert hash_each(pieces, KEY, TILE_BYTES) == [hash_bytes(bytes(each), KEY, TILE_BYTES) for each in pieces]


def low_entropy() -> Iterator[bytes]:
    """Chunks that are alike: every length of zeros, one set bit at many places, a word moved, tiles swapped."""
    yield from (bytes(size) for size in range(1, 4096))
    yield from (bytes(TILE_BYTES - cut) for cut in range(4096))
    for at in range(0, TILE_BYTES, 4):
        yield bytes(at) + b"\1" + bytes(TILE_BYTES - at - 1)
    first, second = noise(TILE_BYTES, 1), bytes(TILE_BYTES)
    yield from (b"".join(order) for order in itertools.permutations((first, second, first[::-1])))


def test_what_is_alike_does_not_collide() -> None:
    """Nor do the halves of a digest: by the bound, one collision among them is less likely than 2**-31."""
    found = [hash_bytes(each, KEY, 3 * TILE_BYTES) for each in low_entropy()]
    assert len(found) > 16000
    for half in (slice(0, 8), slice(8, 16), slice(0, 16)):
        assert max(Counter(each[half] for each in found).values()) == 1


def test_every_bit_of_a_digest_is_used() -> None:
    found = hash_bytes(bytes(range(256)) * 128 * 512, HashKey(noise(32, 3)), TILE_BYTES)
    keys = [hash_bytes(b"one chunk", HashKey(noise(32, seed)), TILE_BYTES) for seed in range(400)]
    assert len({found[at : at + 16] for at in range(0, len(found), 16)}) == 1, "equal chunks, equal digests"
    for half in (0, 8):
        values = [int.from_bytes(each[half : half + 8], "little") for each in keys]
        assert max(values) < PRIME
        for bit in range(61):
            assert 120 < sum(value >> bit & 1 for value in values) < 280, "eight standard deviations"


# ---- the theorem that the bound rests on, by counting --------------------------------------------------------------


def toeplitz_nh(words: tuple[int, ...], key: tuple[int, ...], width: int) -> tuple[int, ...]:
    """NH twice over a Toeplitz key, with words of `width` bits."""
    mask = (1 << width) - 1
    return tuple(
        sum(
            ((words[i] + key[i + shift]) & mask) * ((words[i + 1] + key[i + 1 + shift]) & mask)
            for i in range(0, len(words), 2)
        )
        % (1 << 2 * width)
        for shift in (0, 2)
    )


@pytest.mark.parametrize(("width", "length"), [(2, 2), (3, 2), (2, 4)])
def test_repeated_nh_collides_no_more_often_than_the_theorem_allows(width: int, length: int) -> None:
    """Pairs of 64 messages, every key: at most 2 ** -(2 * width) of the keys make two messages collide."""
    values = range(1 << width)
    messages = random.Random(0).sample(
        list(itertools.product(values, repeat=length)), k=min(64, (1 << width) ** length)
    )
    keys = list(itertools.product(values, repeat=length + 2))
    collisions: Counter[tuple[int, int]] = Counter()
    for key in keys:
        by_hash: dict[tuple[int, ...], list[int]] = {}
        for number, message in enumerate(messages):
            by_hash.setdefault(toeplitz_nh(message, key, width), []).append(number)
        for alike in by_hash.values():
            collisions.update(itertools.combinations(alike, 2))
    assert max(collisions.values()) <= len(keys) >> 2 * width


def test_the_specification_uses_that_nh() -> None:
    words, key = (5, 2**32 - 1, 7, 0), (2**32 - 1, 3, 9, 2, 11, 13)
    assert (spec_nh(words, key), spec_nh(words, key[2:])) == toeplitz_nh(words, key, 32)


# ---- keys and sizes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -TILE_BYTES, 1, TILE_BYTES - 1, TILE_BYTES + 16, MAX_CHUNK_BYTES + TILE_BYTES])
def test_other_sizes_of_chunks_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        hash_bytes(b"x", KEY, size)


def test_a_key_is_random_and_not_shown() -> None:
    assert HashKey.random() != HashKey.random()
    assert "07" not in repr(KEY)
    with pytest.raises(ValueError, match="32 bytes"):
        HashKey(b"short")


@pytest.mark.parametrize("chunk_bytes", [TILE_BYTES, MAX_CHUNK_BYTES])
def test_keys_of_smaller_chunks_begin_those_of_larger(chunk_bytes: int) -> None:
    small, large = KEY.expand(TILE_BYTES), KEY.expand(chunk_bytes)
    assert large.startswith(small)
    assert len(large) == 1056 + 144 + 1024 * (chunk_bytes // TILE_BYTES) + 32
