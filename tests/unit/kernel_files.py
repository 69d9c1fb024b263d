"""Files with kernels, made by compilers or by hand, and what their sources declare."""

import struct
from collections.abc import Callable
from pathlib import Path

import msgpack

from gcr.kernels import Access, Argument, Image, Kernel, Kind

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


Read = Callable[[bytes], tuple[Image, ...]]


def compressed_bundle(version: int, method: int, content: bytes, size: int) -> bytes:
    head = struct.pack("<4sHH", b"CCOB", version, method)
    total = {1: b"", 2: struct.pack("<I", len(content) + 24), 3: struct.pack("<Q", len(content) + 32)}[version]
    return head + total + struct.pack("<Q" if version == 3 else "<I", size) + bytes(8) + content


def fatbin(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def entry(kind: int, payload: bytes, *, flags: int = 0, size: int = 0) -> bytes:
    padded = payload + bytes(-len(payload) % 8)
    head = (kind, 0x101, 64, len(padded), len(payload) if size else 0, 0, 0, 8, 90, 0, 0, flags, 0, size)
    return struct.pack("<HHIQIIHHIIIQQQ", *head) + padded


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
