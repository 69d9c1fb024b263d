"""Memory of processes that run is cut and read as CRIU's dump of the same processes, whatever they do meanwhile."""

import errno
import fcntl
import logging
import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1] / "native" / "sim"))

from dumps import CRIU, skip_without_criu
from imaging import brought, described, mapped

from gcr.criu import pagescan, running, saving
from gcr.criu.pagemap import pagemaps
from gcr.criu.pages import windows_of
from gcr.criu.running import Memory, memories
from gcr.criu.saving import Wishes
from gcr.image.files.manifest import Cut, Manifest
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.image_helper.hostmemory import add_host_memory
from gcr.processmemory import Span

WINDOW, PAGE = 1 << 18, 4096
SHARED_BYTES = 1 << 20
RSEQ_BYTES = 32
PROGRAM = """
import mmap, os, random, signal, sys, time
PAGE, MIB, PRIVATE = 4096, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
noise = random.Random(1).randbytes
def private(size): return mmap.mmap(-1, size, flags=PRIVATE)
holes, zeros, written, spared = private(4 * MIB), private(2 * MIB), private(MIB), private(MIB)
heap = bytearray(noise(MIB))
for at in range(0, 4 * MIB, 3 * PAGE): holes[at : at + PAGE] = noise(PAGE)
zeros.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, MIB, PAGE): zeros[at]              # the page that the kernel gives everyone
for at in range(0, 2 * MIB, 5 * PAGE): zeros[at] = 1
written[:] = bytes(MIB)                               # zeros, in pages of its own
spared.madvise(mmap.MADV_DONTDUMP)
spared[:] = noise(MIB)
with open(sys.argv[1], "w+b") as file:
    file.write(noise(MIB))
    file.flush()
    of_file = mmap.mmap(file.fileno(), MIB, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
for at in range(0, MIB, 4 * PAGE): of_file[at] = 7
of_file[PAGE]
shared = mmap.mmap(-1, MIB)
shared[: MIB // 2] = noise(MIB // 2)
device = mmap.mmap(os.open("/dev/zero", os.O_RDWR), MIB, flags=mmap.MAP_PRIVATE)
device[:] = noise(MIB)
signal.signal(signal.SIGUSR1, lambda *_: (holes.close(), print("unmapped", flush=True)))
if os.fork() == 0:
    holes[0] = 9
else:
    print("ready", flush=True)
while True: time.sleep(100)
"""

Place = tuple[str, int]  # a memory, and the number of a window in it


@pytest.fixture
def program(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Yields a program with a child."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "file")]
    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, **quiet) as process:  # type: ignore[call-overload]
        said_by(process, "ready")
        yield process
        os.killpg(process.pid, signal.SIGKILL)


def said_by(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == word


def stopped(process: "subprocess.Popen[str]") -> str:
    """Stops a program and its child, and returns the pid of the child once neither runs any more."""
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.killpg(process.pid, signal.SIGSTOP)
    while {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in (process.pid, child)} != {
        "T"
    }:
        time.sleep(0.001)
    return child


def chunks_of(memory: Memory) -> Iterator[tuple[Place, bytes]]:
    """Yields each window that can be read, and its bytes."""
    buffer = memoryview(mmap.mmap(-1, WINDOW))
    for window in memory.windows:
        if memory.read(window, buffer[: window.size]):
            yield (memory.name, window.runs[0][0] // WINDOW), bytes(buffer[: window.size])


def dumped(root: int, folder: Path) -> Iterator[tuple[Place, bytes]]:
    """Yields each window of CRIU's files, and its bytes. The processes go on."""

    class Refused(Exception):
        pass

    def refuse(_ended: int) -> None:
        raise Refused

    with pytest.raises(Refused):
        saving.dump(CRIU, root, folder, Wishes(), 60.0, refuse)
    for each in pagemaps(folder):
        name, data, at = each.path.stem.removeprefix("pagemap-").replace("shmem", "shared"), folder / each.pages, 0
        for runs in windows_of(each.runs, WINDOW):
            size = sum(size for _, size in runs)
            yield (name, runs[0][0] // WINDOW), data.read_bytes()[at : at + size]
            at += size


def are_same(theirs: bytes, ours: bytes) -> bool:
    """Compares all bytes but those of one rseq: the kernel notes there the processor on which CRIU had a thread run."""
    if theirs == ours or len(theirs) != len(ours):
        return theirs == ours
    others = [at for at, (one, other) in enumerate(zip(theirs, ours, strict=True)) if one != other]
    return others[-1] - others[0] < RSEQ_BYTES


def test_what_is_read_of_processes_has_the_chunks_of_criu_s_dump(
    program: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """CRIU has two sorts of pages more: the kernel's vdso, and code into which it writes calls of its own."""
    skip_without_criu()
    child = stopped(program)
    with memories(program.pid, WINDOW) as found:
        ours = {place: data for memory in found for place, data in chunks_of(memory)}
    (tmp_path / "dump").mkdir()
    theirs = dict(dumped(program.pid, tmp_path / "dump"))
    for pid in (str(program.pid), child):
        lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        spans = [(line, *(int(end, 16) for end in line[0].split("-"))) for line in lines]
        odd = [(begin, end) for line, begin, end in spans if "x" in line[1] or line[-1] == "/dev/zero"]
        numbers = {each for begin, end in odd for each in range(begin // WINDOW, (end - 1) // WINDOW + 1)}
        other = {place for place in theirs if place[0] == pid and not are_same(theirs[place], ours.get(place, b""))}
        assert other <= {(pid, number) for number in numbers}
        mine = {place for place in ours if place[0] == pid}
        assert len(mine) > 20 and mine <= {*theirs}
    (shared,) = {name for name, _ in ours if name.startswith("shared-")}
    assert sum(len(data) for (name, _), data in ours.items() if name == shared) == SHARED_BYTES // 2
    assert {place: data for place, data in ours.items() if place[0] == shared} == {
        place: data for place, data in theirs.items() if place[0] == shared
    }


def test_memory_of_a_device_file_is_left_out(program: "subprocess.Popen[str]") -> None:
    """Of any device: what a read of it does is known to its driver alone."""
    lines = Path(f"/proc/{program.pid}/maps").read_text().splitlines()
    (span,) = [line.split()[0] for line in lines if line.endswith("/dev/zero")]
    begin, end = (int(each, 16) for each in span.split("-"))
    with memories(program.pid, PAGE) as found:
        addresses = {address for window in next(found).windows for address, _ in window.runs}
    assert addresses and not {address for address in addresses if begin <= address < end}


@pytest.mark.parametrize("what", ["unmaps", "ends"])
def test_a_window_that_is_gone_meanwhile_is_not_read(program: "subprocess.Popen[str]", what: str) -> None:
    with memories(program.pid, WINDOW) as found:
        memory = next(found)
        before = dict(chunks_of(memory))
        assert len(before) == len(memory.windows)
        if what == "unmaps":
            os.kill(program.pid, signal.SIGUSR1)
            said_by(program, "unmapped")
        else:
            program.kill()
            program.wait(10)
        gone = len(memory.windows) - len(dict(chunks_of(memory)))
        assert gone == len(memory.windows) if what == "ends" else 16 <= gone < len(memory.windows)
        rest = [each.name for each in found]  # of the child, which lives, and of the memory that both have
    assert len(rest) == 2
    with memories(program.pid, WINDOW) as found:
        assert what == "unmaps" or [*found] == []


def test_memory_is_read_by_a_process_with_many_descriptors(
    program: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper has one for each segment of a job."""
    opened, limits = os.pidfd_open, resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(os, "pidfd_open", lambda pid: fcntl.fcntl(opened(pid), fcntl.F_DUPFD_CLOEXEC, 1100))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    try:
        with memories(program.pid, WINDOW) as found:
            assert dict(chunks_of(next(found)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_window_with_a_page_that_is_swapped_out_is_left_out(
    program: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read it would bring it back while the program runs."""
    with memories(program.pid, WINDOW) as found:
        windows = next(found).windows
    away = windows[3].runs[0][0]

    def scanned(fd: int, begin: int, end: int) -> Iterator[pagescan.Run]:
        for run in pagescan.scanned(fd, begin, end):
            yield run._replace(swapped=run.begin <= away < run.end)

    monkeypatch.setattr(running, "scanned", scanned)
    with memories(program.pid, WINDOW) as found:
        left = {window.runs[0][0] // WINDOW for window in next(found).windows}
    assert away // WINDOW not in left
    assert windows[-1].runs[0][0] // WINDOW in left


def test_a_run_that_does_not_fit_into_one_answer_of_the_kernel_is_told_all_the_same(
    program: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs() -> list[list[Span]]:
        with memories(program.pid, WINDOW) as found:
            return [[*map(tuple, window.runs)] for window in next(found).windows]  # type: ignore[misc]

    whole = runs()
    monkeypatch.setattr(pagescan, "_REGIONS", 1)
    monkeypatch.setattr(pagescan, "_WALK_BYTES", 7 * PAGE)
    pages = [sum(size for _, size in window) for window in runs()]
    assert pages == [sum(size for _, size in window) for window in whole]


# ---- in the image of a round -----------------------------------------------------------------------------------------


def test_the_image_of_a_round_has_host_memory_and_no_processes(
    program: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    stopped(program)
    store = Store(tmp_path / "store")
    first = round_of(store, "first", program.pid)
    again = round_of(store, "again", program.pid)
    total = first.host_bytes
    assert first.cut is Cut.DEVICE and total > 16 << 20
    assert (again.files, again.costs.bytes_written) == (first.files, 0)  # all of it is there
    held = brought(store, "first", tmp_path / "out")
    with memories(program.pid, WINDOW) as found:
        for memory in found:
            read = b"".join(data for _, data in chunks_of(memory))
            pieces = [held[each.name] for each in first.files if each.name.startswith(f"memory-{memory.name}-")]
            assert b"".join(pieces) == read


def round_of(store: Store, name: str, root: int) -> Manifest:
    with ImageWriter(store, name, threads=2) as writer:
        writer.add([(mapped(b"device"), ())])
        files = add_host_memory(writer, root)
        return writer.commit(lambda found: replace(described(name, [6])(found), files=tuple(files)))


def test_a_window_that_goes_meanwhile_takes_no_room(
    program: "subprocess.Popen[str]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Memory, "read", lambda *_: False)
    store = Store(tmp_path / "store")
    assert round_of(store, "one", program.pid).costs.bytes_written == len(b"device")


@pytest.mark.parametrize("code", [errno.ENOTTY, errno.EPERM])
def test_a_kernel_that_does_not_show_the_memory_leaves_it_to_the_stop(
    program: "subprocess.Popen[str]",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int,
) -> None:
    def refuse(*_: int) -> Iterator[pagescan.Run]:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(running, "scanned", refuse)
    with caplog.at_level(logging.WARNING, "gcr.image"):
        made = round_of(Store(tmp_path / "store"), "one", program.pid)
    assert made.files == ()
    assert "is not read ahead of the stop" in caplog.text
