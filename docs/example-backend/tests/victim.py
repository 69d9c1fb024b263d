"""A program that uses acme and proves what it computed: it says `ready`, then answers each line with a digest.

It knows nothing of gcr. Its memory is one large allocation, several small ones and one mapping of its own; the digest
is made on the device and depends on all of it.
"""

import ctypes
import struct
import sys

MIB = 1 << 20
SIZES = (16 * MIB, 4096, 4096, 100_000, 6 * MIB)
MAPPED = 4 * MIB

acme = ctypes.CDLL("libacme.so")


def call(name, *arguments):
    wide = (ctypes.c_uint64(each) if type(each) is int else each for each in arguments)
    result = getattr(acme, name)(*wide)
    assert result == 0, f"{name}: {result}"


def out(name, *arguments):
    value = ctypes.c_uint64()
    call(name, ctypes.byref(value), *arguments)
    return value.value


def launch(kernel, *arguments):
    packed = struct.pack(f"{len(arguments)}Q", *arguments)
    call("acmeLaunch", kernel.encode(), packed, ctypes.c_size_t(len(packed)), None)


def mapped():
    """Memory as a program maps it by itself."""
    address, handle = ctypes.c_uint64(), ctypes.c_uint64()
    call("acmeReserve", MAPPED, 0, ctypes.byref(address))
    call("acmeCreate", ctypes.c_int(0), MAPPED, ctypes.byref(handle))
    call("acmeMap", address.value, MAPPED, handle.value)
    call("acmeRelease", handle.value)
    return address.value


def main():
    call("acmeInit")
    call("acmeSetDevice", ctypes.c_int(0))
    memory = [(out("acmeAlloc", size), size // 8) for size in SIZES] + [(mapped(), MAPPED // 8)]
    result = out("acmeAlloc", 8)
    for seed, (address, words) in enumerate(memory):
        launch("fill", address, words, seed)
    print("ready", flush=True)
    for _line in sys.stdin:
        print(" ".join(digests(memory, result)), flush=True)


def digests(memory, result):
    for address, words in memory:
        launch("digest", address, words, result)
        host = ctypes.c_uint64()
        call("acmeSynchronize", ctypes.c_int(0))
        call("acmeCopy", ctypes.addressof(host), result, 8)
        yield f"{address:x}:{host.value:016x}"


if __name__ == "__main__":
    main()
