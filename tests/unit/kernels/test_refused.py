"""Files made by hand are refused for what is wrong with them."""

import io
import os
import struct
import sys
import tracemalloc
import zlib
from pathlib import Path

import lz4.block
import pytest
import zstandard
from kernel_files import DATA, Read, amd_elf, code_object, compressed_bundle, entry, fatbin, kernel

from gcr.errors import LibraryMissing
from gcr.kernels import inspect_file
from gcr.kernels.errors import CannotRead, FileTooLarge, MalformedFile, UnknownFormat
from gcr.kernels.span import LARGEST

ZSTD, LZ4 = 0x8000, 0x2000


BAD = {
    "a fat binary that ends in its header": fatbin()[:10],
    "a fat binary larger than its file": struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 100) + bytes(50),
    "a header of no size": struct.pack("<IHHQ", 0xBA55ED50, 1, 0, 0),
    "rubbish after a fat binary": fatbin() + b"rubbish" * 4,
    "an entry that ends in its header": fatbin(entry(2, b"")[:40]),
    "an entry of no size": fatbin(bytes(64)),
    "an ELF entry that is none": fatbin(entry(2, b"no ELF at all, really")),
    "an ELF entry of another machine": fatbin(entry(2, code_object())),
    "zstd that is none": fatbin(entry(1, b"nonsense", flags=ZSTD, size=8)),
    "LZ4 that is none": fatbin(entry(1, b"\xff" * 8, flags=LZ4, size=8)),
    "zstd that is shorter": fatbin(entry(1, zstandard.compress(b"1234"), flags=ZSTD, size=8)),
    "zstd that is longer": fatbin(entry(1, zstandard.compress(b"x" * 999), flags=ZSTD, size=8)),
    "LZ4 that is shorter": fatbin(entry(1, lz4.block.compress(b"1234", store_size=False), flags=LZ4, size=8)),
    "PTX without a target": b".version 8.0\n",
    "PTX that ends in a kernel": b".version 8.0\n.target sm_90\n.address_size 64\n.entry k() { {",
    "PTX that ends in a head": b".version 8.0\n.target sm_90\n.address_size 64\n.entry k(.param .u64 p)",
    "PTX with a strange argument": b".version 8.0\n.target sm_90\n.address_size 64\n.entry k(.param .q7 a) { ret; }",
    "PTX that names two alike": b".version 8.0\n.target sm_90\n.address_size 64\n"
    b".entry k(.param .u64 a, .param .u64 a) { ret; }",
    "a bundle of more than it holds": b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 3),
    "a bundle of very many": b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 1 << 40) + bytes(4096),
    "a bundle whose entry is outside": b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<QQQQ", 1, 1 << 63, 1 << 63, 0),
    "a compressed bundle of version 9": b"CCOB" + struct.pack("<HH", 9, 1) + bytes(32),
    "a compressed bundle of method 9": b"CCOB" + struct.pack("<HH", 2, 9) + bytes(32),
    "a compressed bundle shorter than its header": b"CCOB" + struct.pack("<HHIIQ", 2, 1, 3, 8, 0) + bytes(32),
    "a bundle in a bundle": compressed_bundle(2, 0, zlib.compress(b"CCOB" + bytes(60)), 64),
    "zlib that is none": compressed_bundle(2, 0, b"nonsense", 64),
    "zlib that is longer": compressed_bundle(2, 0, zlib.compress(bytes(99)), 64),
    "an ELF header alone": b"\x7fELF\x02\x01\x01",
    "section names beyond all files": amd_elf(b"", (1 << 63) - 1),
    "section names at the end of all addresses": amd_elf(b"", (1 << 64) - 1),
    "the same inside a fat binary": fatbin(entry(2, amd_elf(b"", (1 << 64) - 1))),
    "metadata that are no MessagePack": amd_elf(struct.pack("<III", 7, 1, 32) + b"AMDGPU\0\0\xc1\0\0\0"),
    "metadata that are a list": amd_elf(struct.pack("<III", 7, 1, 32) + b"AMDGPU\0\0\x90\0\0\0"),
    "metadata that nest without end": amd_elf(struct.pack("<III", 7, 9000, 32) + b"AMDGPU\0\0" + b"\x91" * 9000),
    "a note outside of its section": amd_elf(struct.pack("<III", 7, 99, 32) + b"AMDGPU\0\0"),
    "a kernel without a name": code_object({".args": []}),
    "a kernel that is a number": code_object(7),
    "an argument of negative size": code_object(kernel(size=-1)),
    "an argument without a kind": code_object(kernel(value_kind=None)),
    "an offset that is a word": code_object(kernel(offset="far")),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_what_contradicts_itself_is_malformed(read: Read, content: bytes) -> None:
    with pytest.raises(MalformedFile) as caught:
        read(content)
    assert caught.value.exit == 3
    assert caught.value.message


MANY = b",".join(b".param .u64 p%d" % index for index in range(5000))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (BAD["a bundle of very many"], "1099511627776 entries"),
        (BAD["zlib that is longer"], "another size"),
        (BAD["zstd that is longer"], "another size"),
        (b".version 8.0\n.target sm_90\n.address_size 64\n.entry k(" + MANY + b") { ret; }", "5000 arguments"),
    ],
    ids=["entries", "zlib", "zstd", "arguments"],
)
def test_it_is_refused_for_that_and_for_nothing_later(read: Read, content: bytes, what: str) -> None:
    with pytest.raises(MalformedFile, match=what):
        read(content)


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"text", b"MZ" + bytes(99), b"\xff" * 5000], ids=repr)
def test_other_files_are_of_unknown_format(read: Read, content: bytes) -> None:
    with pytest.raises(UnknownFormat):
        read(content)


def zstd_bomb() -> bytes:
    """129 MiB of zeros in some KiB, and a frame that does not say so."""
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    once = packer.compress(bytes(1 << 27)) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return once + packer.compress(bytes(1 << 20)) + packer.flush()


def test_a_decompression_bomb_is_stopped_at_the_size_it_states(read: Read) -> None:
    bomb = zstd_bomb()
    assert len(bomb) < 1 << 16
    content = fatbin(entry(1, bomb, flags=ZSTD, size=1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFile, match="another size"):
            read(content)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("flags", [ZSTD, LZ4])
def test_a_bomb_that_is_honest_is_refused_before_it_goes_off(read: Read, flags: int) -> None:
    with pytest.raises(FileTooLarge):
        read(fatbin(entry(1, b"12345678", flags=flags, size=LARGEST + 1)))
    for method in (0, 1):
        with pytest.raises(FileTooLarge):
            read(compressed_bundle(3, method, b"12345678", LARGEST + 1))


def test_metadata_larger_than_any_are_refused(read: Read) -> None:
    note = struct.pack("<III", 7, 17 << 20, 32) + b"AMDGPU\0\0" + bytes(17 << 20)
    with pytest.raises(FileTooLarge):
        read(amd_elf(note))


def test_a_huge_sparse_file_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "sparse.ptx"
    path.write_bytes(b".version 8.0\n")
    os.truncate(path, 1 << 40)
    with pytest.raises(FileTooLarge):
        inspect_file(path)


def test_what_is_no_regular_file_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "missing", Path("/dev/zero")):
        with pytest.raises(CannotRead):
            inspect_file(path)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("elftools.elf.elffile", "sm_100.cubin"),
        ("msgpack", "gfx942.co"),
        ("lz4.block", "lz4.fatbin"),
        ("zstandard", "zstd.hipfb"),
    ],
)
def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(LibraryMissing, match=module.partition(".")[0]) as caught:
        inspect_file(DATA / name)
    assert "[inspect]" in caught.value.hint
    assert inspect_file(DATA / "compute_90.ptx"), "PTX needs none"


def test_a_file_that_shrinks_while_it_is_read_is_malformed() -> None:
    from gcr.kernels.span import Span

    with pytest.raises(MalformedFile, match="shorter"):
        Span(io.BytesIO(b"123"), 0, 10).read(0, 10)
