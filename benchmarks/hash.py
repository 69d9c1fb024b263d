"""The chunk hash on an NVIDIA device: its rate beside that of a copy within the device, and whether the host agrees.

    python benchmarks/hash.py [--gib 16] [--device UUID] [--out FILE]

Kernels and copies are timed by the device's clock, best of the repeats; `call` is the whole DataDrain.hash, by wall
clock. A copy of n bytes reads n and writes n: its payload is n, its traffic 2 n, and the hash's share of both is given.
The host hashes 1 GiB (or all, if less) of what it reads back, and must find the same. On a simulated device it says so
and its rates mean nothing. Exit code 1 when the host disagrees.
"""

import argparse
import json
import mmap
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import addressof, c_char
from functools import partial
from pathlib import Path
from typing import Any

from gcr.devices import is_simulated
from gcr.drain import DeviceRange, HandleSpec, Span
from gcr.hashing import CHUNK_BYTES, DIGEST_BYTES, TILE_BYTES, HashKey, hash_address, hash_bytes
from gcr.hashing.chunks import chunk_count
from gcr.hashing.native import Isa
from gcr.vmm import VmmDrain
from gcr_nvidia import devices
from gcr_nvidia.driver import cuda
from gcr_nvidia.hashing import CudaHashKernel
from gcr_nvidia.memory import CudaDevice

MIB, GIB = 1 << 20, 1 << 30
REPEATS = 9
CHUNKS = (2 * TILE_BYTES, CHUNK_BYTES, 4 * CHUNK_BYTES, 16 * CHUNK_BYTES)
SECONDS = 300.0


def measure(uuid: str, size: int) -> dict[str, Any]:
    """Of `size` bytes of the device, half of which are copied to the other half. Bytes and bytes per second."""
    device = CudaDevice(uuid)
    drain, key = VmmDrain(device), HashKey.random()
    try:
        where = drain.create([HandleSpec(id, size // 2) for id in (1, 2)])
        checked = min(size, GIB)
        with host_memory(drain, checked) as host:
            fill(drain, where, host, checked, size)
            kernel = device.hash_kernel()
            copied = best(partial(copy_seconds, kernel, where, size // 2))
            hashed = {chunk: best(partial(kernel_seconds, kernel, where, size, key, chunk)) for chunk in CHUNKS}
            kernel.close()
            called = best(partial(call_seconds, drain, where, key))
            agree = compare(drain, where, host, checked, key)
    finally:
        drain.close()
    return {
        "bytes": size,
        "hash_bytes_per_s": {chunk: size / seconds for chunk, seconds in hashed.items()},
        "call_bytes_per_s": size / called,
        "copy_payload_bytes_per_s": size / 2 / copied,
        "share_of_copy_payload": 2 * copied / hashed[CHUNK_BYTES],
        "share_of_copy_traffic": copied / hashed[CHUNK_BYTES],
        "bytes_compared": checked,
        "host_agrees": agree,
    }


def best(once: Callable[[], float]) -> float:
    return min(once() for _ in range(REPEATS))


@contextmanager
def host_memory(drain: VmmDrain, size: int) -> Iterator[int]:
    memory = mmap.mmap(-1, size)
    view = (c_char * size).from_buffer(memory)
    address = addressof(view)
    noise = random.Random(0).randbytes(min(size, 16 * MIB))
    for start in range(0, size, len(noise)):
        part = min(len(noise), size - start)
        memory[start : start + part] = noise[:part]
    drain.pin(address, size)
    try:
        yield address
    finally:
        drain.unpin(address)
        del view
        memory.close()


def fill(drain: VmmDrain, where: DeviceRange, host: int, room: int, size: int) -> None:
    spans = [Span(where.address + at, host, min(room, size - at)) for at in range(0, size, room)]
    drain.write(spans).wait(SECONDS)


# ---- what is timed ------------------------------------------------------------------------------------------------


def copy_seconds(kernel: CudaHashKernel, where: DeviceRange, size: int) -> float:
    return on_device(kernel, lambda: cuda.cuMemcpyDtoDAsync(where.address + size, where.address, size, kernel.stream))


def kernel_seconds(kernel: CudaHashKernel, where: DeviceRange, size: int, key: HashKey, chunk_bytes: int) -> float:
    expanded = key.expand(chunk_bytes)
    blocks = chunk_count(size, chunk_bytes)
    room = -(-len(expanded) // 256) * 256
    memory = kernel.allocate(room + blocks * DIGEST_BYTES)
    kernel.upload(memory, expanded)
    arguments = (where.address, size, chunk_bytes, memory, memory + room)
    threads = 32 * min(8, chunk_bytes // TILE_BYTES)
    try:
        return on_device(kernel, lambda: kernel.launch(blocks, threads, arguments))
    finally:
        kernel.free(memory)


def on_device(kernel: CudaHashKernel, enqueue: Callable[[], None]) -> float:
    begin, end = cuda.cuEventCreate(0), cuda.cuEventCreate(0)
    cuda.cuEventRecord(begin, kernel.stream)
    enqueue()
    cuda.cuEventRecord(end, kernel.stream)
    cuda.cuEventSynchronize(end)
    milliseconds = float(cuda.cuEventElapsedTime(begin, end))
    for event in (begin, end):
        cuda.cuEventDestroy(event)
    return max(milliseconds, 1e-6) / 1000


def call_seconds(drain: VmmDrain, where: DeviceRange, key: HashKey) -> float:
    started = time.perf_counter()
    if not drain.hash([where], key, CHUNK_BYTES, SECONDS).on_device:
        raise SystemExit("benchmark: the device did not hash its memory itself")
    return time.perf_counter() - started


def compare(drain: VmmDrain, where: DeviceRange, host: int, size: int, key: HashKey) -> bool:
    drain.read([Span(where.address, host, size)]).wait(SECONDS)
    found = b"".join(drain.hash([where], key, CHUNK_BYTES, SECONDS).digests.values())
    return found[: chunk_count(size, CHUNK_BYTES) * DIGEST_BYTES] == hash_address(host, size, key, CHUNK_BYTES)


def host_rates(size: int = 256 * MIB) -> Mapping[str, float]:
    """Of one core, by its own clock, so that what else runs does not count."""
    contents, key = bytearray(random.Random(1).randbytes(MIB)) * (size // MIB), HashKey.random()
    rates: dict[str, float] = {}
    for isa in (Isa.SSE2, Isa.AVX2, Isa.AVX512):
        try:
            rates[isa.name.lower()] = size / best(partial(_host_seconds, contents, key, isa))
        except ValueError:
            continue
    return rates


def _host_seconds(contents: bytearray, key: HashKey, isa: Isa) -> float:
    started = time.thread_time()
    hash_bytes(contents, key, CHUNK_BYTES, isa)
    return time.thread_time() - started


# ---- the command --------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=16.0, help="device memory to hash (16)")
    parser.add_argument("--device", help="its UUID; else the first")
    parser.add_argument("--out", type=Path, help="write the figures there as JSON")
    asked = parser.parse_args()
    present = [each for each in devices.present() if asked.device in (None, each.uuid)]
    if not present:
        raise SystemExit("benchmark: there is no such NVIDIA device")
    size = max(int(asked.gib * GIB) // (64 * MIB), 1) * 64 * MIB
    name = present[0].name
    found = {"device": name, "simulated": is_simulated(name), **measure(present[0].uuid, size)}
    found["host_bytes_per_s"] = host_rates()
    print("\n".join(report(found)))
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found["host_agrees"] else 1


def report(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'SIMULATED, the rates mean nothing: ' if found['simulated'] else ''}{found['device']}"
    for chunk, rate in found["hash_bytes_per_s"].items():
        yield f"  kernel, chunks of {chunk >> 10:5d} KiB {rate / 1e9:10.1f} GB/s"
    yield f"  whole call {found['call_bytes_per_s'] / 1e9:31.1f} GB/s"
    yield f"  copy within the device, payload {found['copy_payload_bytes_per_s'] / 1e9:10.1f} GB/s"
    shares = found["share_of_copy_payload"], found["share_of_copy_traffic"]
    yield "  hash / copy: {:.2f} of its payload, {:.2f} of its traffic".format(*shares)
    yield f"  host {'agrees' if found['host_agrees'] else 'DISAGREES'} on {found['bytes_compared'] >> 20} MiB"
    for isa, rate in found["host_bytes_per_s"].items():
        yield f"  one core of the host, {isa:6} {rate / 1e9:19.1f} GB/s"


if __name__ == "__main__":
    sys.exit(main())
