# SPDX-License-Identifier: Apache-2.0
"""Writes core/gcr/hashing/chunk_hash.ptx: the hash kernel for NVIDIA devices, compiled here so that no user needs to.

    pip install nvidia-cuda-nvrtc-cu12==12.4.127 && python tools/hash_ptx.py

With `-` it reads another source from standard input and writes its PTX to standard output. The compiler changes the
locale of its process, so it is given one of its own.

That compiler's PTX (ISA 8.4) is older than every driver gcr works with, and its target (compute capability 7.0) is what
every later device runs as well. tests/unit/test_hash_ptx.py compiles it again and compares.
"""

import ctypes
import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "core/gcr/hashing/chunk_hash.h"
COMPILED = SOURCE.with_suffix(".ptx")
COMPILER = "nvidia-cuda-nvrtc-cu12"
VERSION = "12.4.127"
OPTIONS = ("--gpu-architecture=compute_70", "--std=c++17")


def compiler() -> ctypes.CDLL:
    """Raises PackageNotFoundError."""
    found = importlib.metadata.distribution(COMPILER)
    if found.version != VERSION:
        raise ImportError(f"{COMPILER} is {found.version}, and another version writes other PTX than {VERSION}")
    folder = Path(str(found.locate_file("nvidia/cuda_nvrtc/lib")))
    for builtins in folder.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(folder / "libnvrtc.so.12"))


def compile_ptx(source: str) -> str:
    nvrtc, program = compiler(), ctypes.c_void_p()
    name = SOURCE.name.encode()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name, 0, None, None))
    options = [option.encode() for option in OPTIONS]
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if failed:
        raise RuntimeError(_text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program))
    ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    _check(nvrtc.nvrtcDestroyProgram(ctypes.byref(program)))
    return ptx


def _text(size_of: Callable[..., int], read: Callable[..., int], program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(read(program, text))
    return text.value.decode()


def _check(result: int) -> None:
    if result:
        raise RuntimeError(f"NVRTC: error {result}")


def main(arguments: list[str]) -> None:
    try:
        if arguments == ["-"]:
            sys.stdout.write(compile_ptx(sys.stdin.read()))
        else:
            COMPILED.write_text(compile_ptx(SOURCE.read_text()))
    except RuntimeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
