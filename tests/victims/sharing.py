"""Device memory that ranks lend to each other, as NCCL, PyTorch and older programs do it.

- `asked`: by the value of the owner's handle, over a socket. A thread of the owner exports it when it is asked, sends
  the descriptor and closes it (NCCL's "UDS Service").
- `twice`: the same, imported twice by the borrower, and once by the owner itself.
- `cached`: the owner keeps a descriptor, which borrowers take from its process (PyTorch's expandable segments).
- `queued`: the descriptor is in a message that is not received yet.
- `legacy`: by the legacy interprocess calls. `small`: the same of memory that shares its granule with other memory.
- `event`: by these calls as well, with an interprocess event, which the owner records (PyTorch's multiprocessing).

A borrower keeps no handle and no descriptor of what it has mapped.
"""

import ctypes
import os
import socket
import struct
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_driver import (
    DEVICE,
    DISABLE_TIMING,
    INTERPROCESS,
    PINNED,
    POSIX,
    READ_WRITE,
    AccessDesc,
    AllocationProp,
    IpcEventHandle,
    IpcMemHandle,
    Location,
    driver,
)
from p2p_model import GRANULE, SIZES

LEGACY = "legacy", "small", "event"
ONLY_FLAG = 1  # of cuIpcOpenMemHandle
PATIENCE = 60.0
PIDFD_GETFD, SET_PTRACER, ANYBODY = 438, 0x59616D61, -1
libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Piece:
    """Memory where this process has mapped it. Of its owner: the handle, and where it is mapped once more.

    event: of the owner, recorded behind what it does there; or opened by the borrower
    """

    address: int
    size: int
    handle: int = 0
    mirror: int = 0
    event: Any = None
    undo: list[Callable[[], object]] = field(default_factory=list)

    def drop(self) -> None:
        while self.undo:
            self.undo.pop()()


class Sharing:
    """What one rank has of its own and of others. `group`: a name that all ranks of a run know."""

    def __init__(self, device: int, context: int, group: str, rank: int) -> None:
        self.here, self.context, self.group, self.rank = Location(DEVICE, device), context, group, rank
        self.door = self.socket(f"service-{rank}")
        threading.Thread(target=self.serve, name="UDS service", daemon=True).start()
        libc.prctl(SET_PTRACER, ctypes.c_ulong(ANYBODY), 0, 0, 0)  # else only a parent may take descriptors

    def socket(self, name: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        made.bind(f"\0{self.group}-{name}")
        return made

    # ---- memory -----------------------------------------------------------------------------------------------

    def create(self) -> int:
        prop = AllocationProp(PINNED, POSIX, self.here)
        assert GRANULE % int(driver.cuMemGetAllocationGranularity(prop, 0)) == 0
        return int(driver.cuMemCreate(GRANULE, prop, 0))

    def reserve(self, size: int) -> Piece:
        piece = Piece(int(driver.cuMemAddressReserve(size, 0, 0, 0)), size)
        piece.undo.append(lambda: driver.cuMemAddressFree(piece.address, size))
        return piece

    def put(self, address: int, handle: int) -> None:
        driver.cuMemMap(address, GRANULE, 0, handle, 0)
        driver.cuMemSetAccess(address, GRANULE, AccessDesc(self.here, READ_WRITE), 1)

    def mapped(self, handle: int) -> Piece:
        piece = self.reserve(GRANULE)
        self.put(piece.address, handle)
        piece.undo.append(lambda: driver.cuMemUnmap(piece.address, GRANULE))
        return piece

    # ---- the owner --------------------------------------------------------------------------------------------

    def lend(self, way: str) -> tuple[Piece, str]:
        """Makes memory. Returns it, and the word by which others get it."""
        if way in LEGACY:
            address = int(driver.cuMemAlloc_v2(SIZES[way]))
            piece = Piece(address, SIZES[way], undo=[lambda: driver.cuMemFree_v2(address)])
            word = bytes(driver.cuIpcGetMemHandle(address)).hex()
            if way == "event":
                piece.event = driver.cuEventCreate(DISABLE_TIMING | INTERPROCESS)
                word += bytes(driver.cuIpcGetEventHandle(piece.event)).hex()
            return piece, word
        handle = self.create()
        piece, word = self.mapped(handle), f"{self.rank}:{handle}"
        piece.handle = handle
        piece.undo.insert(1, lambda: driver.cuMemRelease(handle))  # after it is unmapped
        if way in ("cached", "queued"):
            descriptor = exported(handle) if way == "cached" else queued(handle)
            piece.undo.append(lambda: os.close(descriptor))
            word = f"{os.getpid()}:{descriptor}"
        if way == "twice":
            again = self.take("asked", word)
            piece.mirror = again.address
            piece.undo.append(again.drop)
        return piece, word

    def serve(self) -> None:
        driver.cuCtxSetCurrent(self.context)
        while True:
            request, borrower = self.door.recvfrom(64)
            (handle,) = struct.unpack("<Q", request)
            send(self.door, exported(handle), borrower)

    # ---- the borrower -----------------------------------------------------------------------------------------

    def ask(self, word: str) -> int:
        """Returns a descriptor from the owner's service."""
        owner, handle = map(int, word.split(":"))
        with self.socket(f"borrower-{self.rank}") as mine:
            mine.settimeout(PATIENCE)
            mine.sendto(struct.pack("<Q", handle), f"\0{self.group}-service-{owner}")
            return received(mine)

    def descriptor(self, way: str, word: str) -> int:
        if way not in ("cached", "queued"):
            return self.ask(word)
        found = fetched(word)
        if way == "cached":
            return found
        with socket.socket(fileno=found) as queue:
            queue.settimeout(PATIENCE)
            return received(queue)

    def handle(self, way: str, word: str) -> int:
        handle = imported(self.descriptor(way, word))
        if way == "twice":
            assert imported(self.ask(word)) == handle
            driver.cuMemRelease(handle)  # the first reference stays
        return handle

    def take(self, way: str, word: str) -> Piece:
        if way in LEGACY:
            blobs = bytes.fromhex(word)
            address = int(driver.cuIpcOpenMemHandle_v2(IpcMemHandle.from_buffer_copy(blobs), ONLY_FLAG))
            piece = Piece(address, SIZES[way], undo=[lambda: driver.cuIpcCloseMemHandle(address)])
            if way == "event":
                event = piece.event = driver.cuIpcOpenEventHandle(IpcEventHandle.from_buffer_copy(blobs, 64))
                piece.undo.append(lambda: driver.cuEventDestroy_v2(event))
            return piece
        handle = self.handle(way, word)
        piece = self.mapped(handle)
        driver.cuMemRelease(handle)
        return piece

    def gather(self, way: str, own: Piece, words: Sequence[str]) -> tuple[Piece, list[int]]:
        """Maps a piece of each rank. Returns what to drop at the end, and where they are."""
        if way in LEGACY:
            pieces = [own if rank == self.rank else self.take(way, word) for rank, word in enumerate(words)]
            drops: list[Callable[[], object]] = [piece.drop for piece in pieces if piece is not own]
            return Piece(0, 0, undo=drops), [piece.address for piece in pieces]
        window = self.reserve(2 * GRANULE * len(words))  # a hole after each
        places = [window.address + 2 * GRANULE * rank for rank in range(len(words))]
        for rank, place in enumerate(places):
            if rank == self.rank:
                self.put(place, own.handle)
                continue
            handle = self.handle(way, words[rank])
            self.put(place, handle)
            driver.cuMemRelease(handle)
        window.undo.append(lambda: driver.cuMemUnmap(window.address, window.size))
        return window, places


def exported(handle: int) -> int:
    descriptor = ctypes.c_int(-1)
    driver.cuMemExportToShareableHandle(ctypes.addressof(descriptor), handle, POSIX, 0)
    return descriptor.value


def send(channel: socket.socket, descriptor: int, *to: Any) -> None:
    """Closes the descriptor."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))]
    channel.sendmsg([b"here"], rights, 0, *to)
    os.close(descriptor)


def received(channel: socket.socket) -> int:
    _, (descriptor,), _, _ = socket.recv_fds(channel, 16, 1)
    return int(descriptor)


def queued(handle: int) -> int:
    """Returns a socket, from which the descriptor of a handle can be received once."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        send(ours, exported(handle))
    return theirs.detach()


def imported(descriptor: int) -> int:
    """Closes the descriptor. Raises Failed."""
    try:
        return int(driver.cuMemImportFromShareableHandle(descriptor, POSIX))
    finally:
        os.close(descriptor)


def fetched(word: str) -> int:
    """Returns a duplicate of another process's descriptor: `pid:number`."""
    pid, number = map(int, word.split(":"))
    process = os.pidfd_open(pid)
    try:
        descriptor = libc.syscall(PIDFD_GETFD, process, number, 0)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(descriptor)
    finally:
        os.close(process)
