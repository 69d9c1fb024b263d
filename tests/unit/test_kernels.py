"""Files made by compilers say what their sources say; files made by hand are refused for what is wrong with them."""

import io
import os
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import lz4.block
import msgpack
import pytest
import zstandard

from gcr.errors import LibraryMissing
from gcr.kernels import Access, Argument, Form, Image, Kernel, Kind, Proof, inspect_file
from gcr.kernels.errors import CannotRead, FileTooLarge, MalformedFile, UnknownFormat
from gcr.kernels.span import LARGEST

DATA = Path(__file__).parents[1] / "data/kernels"
FILL = "_Z4fillIfEvPT_lS0_"

# What the sources declare: bytes, then for each argument offset and size. Written from kernels.cu and kernels.hip.
CUDA_LAYOUT = {
    "axpy": (24, [(0, 8), (8, 8), (16, 4), (20, 4)]),
    "through_struct": (32, [(0, 16), (16, 8), (24, 8)]),
    "count": (16, [(0, 8), (8, 8)]),
    "indirect": (16, [(0, 8), (8, 8)]),
    "keep": (16, [(0, 8), (8, 8)]),
    "nothing": (0, []),
    FILL: (20, [(0, 8), (8, 8), (16, 4)]),
}
HIP_LAYOUT = {
    "axpy": (24, [(0, 8), (8, 8), (16, 4), (20, 4)]),
    "through_struct": (32, [(0, 16), (16, 8), (24, 8)]),
    "fill": (12, [(0, 8), (8, 4)]),
    "sum": (16, [(0, 8), (8, 8)]),
    "nothing": (0, []),
}
READ, WRITTEN, UNKNOWN = Access.READ_ONLY, Access.WRITTEN, Access.UNKNOWN
# What the bodies in kernels.cu do. `keep` stores its pointer, `fill` passes it to a function: out of sight.
PTX_ACCESS = {
    "axpy": [READ, WRITTEN, None, None],
    "through_struct": [WRITTEN, None, READ],
    "count": [READ, WRITTEN],
    "indirect": [READ, READ],  # it writes through a pointer that it finds in memory, not through these
    "keep": [UNKNOWN, WRITTEN],
    "nothing": [],
    FILL: [UNKNOWN, READ, None],
}
# What may be inferred from kernels.hip: only where the pointer is `restrict`, and never for what is read and written.
HIP_ACCESS = {
    "axpy": [READ, UNKNOWN, None, None],
    "through_struct": [UNKNOWN, UNKNOWN, UNKNOWN],
    "fill": [WRITTEN, None],
    "sum": [READ, UNKNOWN],
    "nothing": [],
}


def layout(image: Image) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    """Without what the runtime adds."""
    return {
        kernel.name: (kernel.argument_bytes, [(each.offset, each.size) for each in declared(kernel)])
        for kernel in image.kernels
    }


def declared(kernel: Kernel) -> list[Argument]:
    return [argument for argument in kernel.arguments if argument.kind is not Kind.HIDDEN]


def accesses(image: Image) -> dict[str, list[Access | None]]:
    return {kernel.name: [each.access for each in declared(kernel)] for kernel in image.kernels}


def kinds(image: Image, name: str) -> list[Kind]:
    (kernel,) = [kernel for kernel in image.kernels if kernel.name == name]
    return [argument.kind for argument in kernel.arguments]


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], tuple[Image, ...]]:
    """Write a file, and inspect it."""

    def write_and_inspect(content: bytes) -> tuple[Image, ...]:
        path = tmp_path / "file"
        path.write_bytes(content)
        return inspect_file(path)

    return write_and_inspect


Read = Callable[[bytes], tuple[Image, ...]]


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("plain.fatbin", "0/"),
        ("zstd.fatbin", "0/"),
        ("lz4.fatbin", "0/"),
        ("libcuda_kernels.so.1", ".nv_fatbin/0/"),
    ],
)
def test_a_fat_binary_holds_what_the_source_declares(name: str, places: str) -> None:
    images = inspect_file(DATA / name)
    found = [(image.place, image.form, image.target) for image in images]
    expected = [(Form.CUBIN, "sm_75"), (Form.CUBIN, "sm_90"), (Form.PTX, "sm_90")]
    assert found == [(f"{places}{index}", *each) for index, each in enumerate(expected)]
    assert [layout(image) for image in images] == [CUDA_LAYOUT] * 3
    assert accesses(images[2]) == PTX_ACCESS


def test_the_three_fat_binaries_differ_in_how_they_are_packed() -> None:
    """Else the test above reads one thing three times."""
    plain, zstd, lz4_ = ((DATA / f"{name}.fatbin").read_bytes() for name in ("plain", "zstd", "lz4"))
    assert len(plain) > 2 * len(lz4_) > 2 * len(zstd)
    assert plain.count(b"\x7fELF") == 2
    assert zstd.count(b"\x28\xb5\x2f\xfd") == 3


@pytest.mark.parametrize("name", ["compute_90.ptx", "compute_100.ptx"])
def test_ptx_says_what_is_only_read(name: str) -> None:
    (image,) = inspect_file(DATA / name)
    assert (image.form, image.target) == (Form.PTX, name.removesuffix(".ptx").replace("compute", "sm"))
    assert layout(image) == CUDA_LAYOUT
    assert accesses(image) == PTX_ACCESS
    for kernel in image.kernels:
        for argument in kernel.arguments:
            assert argument.proof == (Proof.PTX if argument.access in (READ, WRITTEN) else None)


def test_pointers_are_told_from_other_words_where_the_compiler_says_so() -> None:
    (old,), (ptx,) = inspect_file(DATA / "compute_90.ptx"), inspect_file(DATA / "compute_100.ptx")
    (cubin,) = inspect_file(DATA / "sm_100.cubin")
    assert kinds(old, FILL) == [Kind.OPAQUE, Kind.OPAQUE, Kind.VALUE]
    assert kinds(ptx, FILL) == [Kind.POINTER, Kind.OPAQUE, Kind.VALUE]
    assert kinds(ptx, "through_struct") == [Kind.OPAQUE, Kind.VALUE, Kind.POINTER]
    assert kinds(cubin, FILL) == [Kind.POINTER, Kind.OPAQUE, Kind.VALUE]
    assert kinds(cubin, "through_struct") == [Kind.OPAQUE, Kind.OPAQUE, Kind.POINTER]


def test_sections_of_a_cubin_may_lie_outside_of_the_file() -> None:
    """Shared and global memory, of section types that are the vendor's: they take no room at any size."""
    (image,) = inspect_file(DATA / "relocatable.cubin")
    assert (image.target, layout(image)) == ("sm_90", {"shared": (8, [(0, 8)])})


def test_an_argument_record_of_another_size_is_malformed(read: Read) -> None:
    content = (DATA / "relocatable.cubin").read_bytes()
    record = bytes([4, 0x17, 12, 0])
    assert content.count(record) == 1
    with pytest.raises(MalformedFile, match="record of 8 bytes"):
        read(content.replace(record, bytes([4, 0x17, 8, 0])))


def test_a_cubin_proves_nothing() -> None:
    (image,) = inspect_file(DATA / "sm_100.cubin")
    assert (image.target, layout(image)) == ("sm_100", CUDA_LAYOUT)
    arguments = [argument for kernel in image.kernels for argument in kernel.arguments]
    assert {argument.access for argument in arguments} == {UNKNOWN, None}
    assert {argument.proof for argument in arguments} == {None}


@pytest.mark.parametrize("name", ["large.cubin", "large.ptx"])
def test_a_large_argument_and_a_pointer_to_each_kind_of_memory(name: str) -> None:
    (image,) = inspect_file(DATA / name)
    (kernel,) = image.kernels
    offsets = [(0, 20000), (20000, 8), (20008, 8), (20016, 8), (20024, 8), (20032, 8), (20040, 2)]
    assert layout(image) == {"large": (20042, offsets)}
    assert [argument.kind for argument in kernel.arguments] == [
        Kind.OPAQUE,
        Kind.POINTER,
        Kind.SCRATCH,
        Kind.SCRATCH,
        Kind.POINTER,
        Kind.OPAQUE,
        Kind.VALUE,
    ]
    assert name == "large.cubin" or accesses(image)["large"] == [READ, WRITTEN, None, None, READ, READ, None]


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("plain.hipfb", {"0/1": "gfx90a", "0/2": "gfx942"}),
        ("zstd.hipfb", {"0/1": "gfx90a", "0/2": "gfx942"}),
        ("libhip_kernels.so.1", {".hip_fatbin/0/1": "gfx90a", ".hip_fatbin/0/2": "gfx942"}),
        ("gfx942.co", {"": "gfx942"}),
    ],
)
def test_a_code_object_says_what_the_optimiser_inferred(name: str, places: dict[str, str]) -> None:
    images = inspect_file(DATA / name)
    assert {image.place: image.target for image in images} == places
    for image in images:
        assert image.form is Form.CODE_OBJECT
        assert layout(image) == HIP_LAYOUT
        assert accesses(image) == HIP_ACCESS
        assert kinds(image, "axpy") == [Kind.POINTER, Kind.POINTER, Kind.VALUE, Kind.VALUE]
        assert kinds(image, "through_struct") == [Kind.OPAQUE, Kind.OPAQUE, Kind.POINTER]


def test_without_the_optimiser_nothing_is_inferred_and_hidden_arguments_are_there() -> None:
    (image,) = inspect_file(DATA / "gfx942_O0.co")
    assert {name: each[1] for name, each in layout(image).items()} == {name: e[1] for name, e in HIP_LAYOUT.items()}
    arguments = [argument for kernel in image.kernels for argument in kernel.arguments]
    assert {argument.access for argument in arguments} == {UNKNOWN, None}
    assert {argument.access for argument in arguments if argument.kind is Kind.HIDDEN} == {None}
    assert Kind.HIDDEN in kinds(image, "nothing")


def test_a_host_program_without_device_code_has_no_images() -> None:
    assert inspect_file(Path(sys.executable).resolve()) == ()


def test_several_fat_binaries_stand_in_one_section(read: Read) -> None:
    one = (DATA / "zstd.fatbin").read_bytes()
    images = read(one + bytes(8) + one)
    assert [image.place for image in images] == [f"{at}/{n}" for at in (0, len(one) + 8) for n in range(3)]


def test_several_bundles_stand_in_one_section(read: Read) -> None:
    plain, packed = (DATA / "plain.hipfb").read_bytes(), (DATA / "zstd.hipfb").read_bytes()
    images = read(packed + bytes(4096) + plain + bytes(100) + packed)
    assert [image.target for image in images] == ["gfx90a", "gfx942"] * 3


def compressed_bundle(version: int, method: int, content: bytes, size: int) -> bytes:
    head = struct.pack("<4sHH", b"CCOB", version, method)
    total = {1: b"", 2: struct.pack("<I", len(content) + 24), 3: struct.pack("<Q", len(content) + 32)}[version]
    return head + total + struct.pack("<Q" if version == 3 else "<I", size) + bytes(8) + content


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("method", [0, 1])
def test_every_version_of_a_compressed_bundle(read: Read, version: int, method: int) -> None:
    plain = (DATA / "plain.hipfb").read_bytes()
    packed = zlib.compress(plain) if method == 0 else zstandard.compress(plain)
    images = read(compressed_bundle(version, method, packed, len(plain)))
    assert [layout(image) for image in images] == [HIP_LAYOUT] * 2


def test_a_bundle_by_hand_equals_the_compilers() -> None:
    made = (DATA / "zstd.hipfb").read_bytes()
    size = len((DATA / "plain.hipfb").read_bytes())
    head = compressed_bundle(2, 1, made[24:], size)[:24]
    assert head[:16] == made[:16], "all but the hash"


def fatbin(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def entry(kind: int, payload: bytes, *, flags: int = 0, size: int = 0) -> bytes:
    padded = payload + bytes(-len(payload) % 8)
    head = (kind, 0x101, 64, len(padded), len(payload) if size else 0, 0, 0, 8, 90, 0, 0, flags, 0, size)
    return struct.pack("<HHIQIIHHIIIQQQ", *head) + padded


def test_an_entry_of_another_kind_is_shown_as_unread(read: Read) -> None:
    (image,) = read(fatbin(entry(16, b"something")))
    assert (image.form, image.target, image.note) == (Form.UNREAD, "sm_90", "an entry of kind 16")


def test_what_is_not_a_code_object_in_a_bundle_is_shown_as_unread(read: Read) -> None:
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<QQQQ", 1, 64, 4, 4) + b"host"
    (image,) = read(head.ljust(64, b"\0") + b"BC\xc0\xde")
    assert (image.form, image.target) == (Form.UNREAD, "host")


def code_object(*kernels: object) -> bytes:
    """Returns an ELF file with a note alone; its metadata list `kernels`."""
    metadata = msgpack.packb({"amdhsa.target": "amdgcn-amd-amdhsa--gfx90a", "amdhsa.kernels": list(kernels)})
    return amd_elf(struct.pack("<III", 7, len(metadata), 32) + b"AMDGPU\0\0" + metadata)


def amd_elf(note: bytes, names_at: int = 64) -> bytes:
    names = b"\0.note\0.shstrtab\0"
    table = 64 + len(names) + len(note)
    head = b"\x7fELF\x02\x01\x01\x40".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 3, 224, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2)
    sections = [(1, 7, 64 + len(names), len(note)), (7, 3, names_at, len(names))]
    rows = [struct.pack("<IIQQQQIIQQ", n, t, 0, 0, at, size, 0, 0, 4, 0) for n, t, at, size in sections]
    return head + names + note + bytes(64) + b"".join(rows)


def kernel(**argument: object) -> dict[str, object]:
    argument = {f".{key}": value for key, value in argument.items()}
    given = {".offset": 0, ".size": 8, ".value_kind": "global_buffer", **argument}
    return {".name": "k", ".kernarg_segment_size": 8, ".args": [given]}


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ({"actual_access": "read_only"}, (Kind.POINTER, READ, Proof.COMPILER)),
        ({"access": "read_only"}, (Kind.POINTER, READ, Proof.COMPILER)),
        ({"actual_access": "read_write", "access": "read_only"}, (Kind.POINTER, WRITTEN, Proof.COMPILER)),
        ({"actual_access": "write_only"}, (Kind.POINTER, WRITTEN, Proof.COMPILER)),
        ({"is_const": True}, (Kind.POINTER, UNKNOWN, None)),
        ({"actual_access": "surprising"}, (Kind.POINTER, UNKNOWN, None)),
        ({"value_kind": "dynamic_shared_pointer", "size": 4}, (Kind.SCRATCH, None, None)),
        ({"value_kind": "image"}, (Kind.OBJECT, None, None)),
        ({"value_kind": "hidden_global_offset_x"}, (Kind.HIDDEN, None, None)),
        ({"value_kind": "by_value", "size": 4}, (Kind.VALUE, None, None)),
        ({"value_kind": "by_value", "size": 8}, (Kind.OPAQUE, UNKNOWN, None)),
        ({"value_kind": "of_tomorrow"}, (Kind.OPAQUE, UNKNOWN, None)),
    ],
    ids=str,
)
def test_what_metadata_say(
    read: Read, argument: dict[str, object], expected: tuple[Kind, Access | None, Proof | None]
) -> None:
    (image,) = read(code_object(kernel(**argument)))
    (found,) = image.kernels[0].arguments
    assert (found.kind, found.access, found.proof) == expected


def test_a_code_object_without_such_metadata_is_unread(read: Read) -> None:
    (image,) = read(amd_elf(struct.pack("<III", 4, 4, 1) + b"AMD\0" + bytes(4)))
    assert (image.form, image.kernels) == (Form.UNREAD, ())


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
