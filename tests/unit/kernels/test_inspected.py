"""Files made by compilers say what their sources say."""

import struct
import sys
import zlib
from pathlib import Path

import pytest
import zstandard
from kernel_files import (
    CUDA_LAYOUT,
    DATA,
    FILL,
    HIP_ACCESS,
    HIP_LAYOUT,
    PTX_ACCESS,
    READ,
    UNKNOWN,
    WRITTEN,
    Read,
    accesses,
    amd_elf,
    code_object,
    compressed_bundle,
    entry,
    fatbin,
    kernel,
    kinds,
    layout,
)

from gcr.kernels import Access, Form, Kind, Proof, inspect_file
from gcr.kernels.errors import MalformedFile


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
    for each in image.kernels:
        for argument in each.arguments:
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


def test_an_entry_of_another_kind_is_shown_as_unread(read: Read) -> None:
    (image,) = read(fatbin(entry(16, b"something")))
    assert (image.form, image.target, image.note) == (Form.UNREAD, "sm_90", "an entry of kind 16")


def test_what_is_not_a_code_object_in_a_bundle_is_shown_as_unread(read: Read) -> None:
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<QQQQ", 1, 64, 4, 4) + b"host"
    (image,) = read(head.ljust(64, b"\0") + b"BC\xc0\xde")
    assert (image.form, image.target) == (Form.UNREAD, "host")


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
