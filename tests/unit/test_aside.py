"""Memory that gcr reads and fills in CRIU's place: a process has the same bytes, and what others share stays CRIU's."""

import hashlib
import mmap
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1] / "native" / "sim"))

from dumps import CRIU, skip_without_criu
from imaging import described
from pagemaps import OF_A_FILE, PAGE, PRESENT, PRIVATE, Entry, core, entries_of, memory, pagemap

from gcr.cli.bringing import bring
from gcr.criu import aside, leftpages, saving
from gcr.criu.aside import Aside
from gcr.criu.leftpages import left_pages
from gcr.criu.pagemap import pagemaps
from gcr.criu.pages import chunk_sizes
from gcr.criu.preflight.tasks import thread_ids
from gcr.criu.saving import Wishes
from gcr.criu.spans import Span, common, joined, less, several
from gcr.errors import CriuUnusable
from gcr.image.files.manifest import Cut
from gcr.image.read.reader import ImageReader
from gcr.image.store.store import Store
from gcr.image.write.folder import add_folder
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import NotDumped, NotRestored

SECONDS, WINDOW, MIB = 30.0, 1 << 18, 1 << 20
ADDRESSES = 1 << 40  # bytes; far more than CRIU had better note

# Memory of each kind. A child shares 4 MiB with its parent, and has 4 MiB of its own. Both answer lines.
PROGRAM = """
import ctypes, hashlib, mmap, os, random, signal, sys, threading
MIB, PRIVATE = 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
noise = random.Random(int(sys.argv[1])).randbytes
libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
def private(size):
    memory = mmap.mmap(-1, size, flags=PRIVATE)
    memory[:] = noise(size)
    return memory
def address(memory): return ctypes.addressof(ctypes.c_char.from_buffer(memory))
def protect(memory, how): assert libc.mprotect(ctypes.c_void_p(address(memory)), len(memory), how) == 0
threading.Thread(target=threading.Event().wait, daemon=True).start()
both, hidden, fixed, locked = private(4 * MIB), private(MIB), private(MIB), private(MIB)
holes = mmap.mmap(-1, 4 * MIB, flags=PRIVATE)
for at in range(0, 4 * MIB, 3 * 4096): holes[at : at + 4096] = noise(4096)
libc.mlock(ctypes.c_void_p(address(locked)), len(locked))
shared = mmap.mmap(-1, MIB)
shared[:] = noise(MIB)
protect(hidden, 0)
protect(fixed, 1)
def told():
    protect(hidden, 3)
    said = hashlib.sha256(b"".join(each[:] for each in (both, hidden, fixed, locked, holes, shared, own))).hexdigest()
    protect(hidden, 0)
    return said
child = sys.argv[2] == "forks" and os.fork() == 0
own = private((4 if child else 24) * MIB)
name = "child" if child else "root"
answers = open(sys.argv[3] + "-" + name, "a")
while True:
    print(told(), file=answers, flush=True)
    signal.sigwait([signal.SIGUSR1])
"""


class Program:
    """A program of one process, or of two, in a folder. `close` ends it."""

    def __init__(self, folder: Path, seed: int, *, forks: bool) -> None:
        self.answers = folder / "answers"
        self.names = ("root", "child") if forks else ("root",)
        words = [sys.executable, "-c", PROGRAM, str(seed), "forks" if forks else "", str(self.answers)]
        null = [(os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in range(3)]
        self.root = os.posix_spawn(words[0], words, os.environ, setsid=True, file_actions=null)
        self.before = [self._awaited(name, 1) for name in self.names]

    def _awaited(self, name: str, count: int) -> str:
        path, end = self.answers.with_name(f"{self.answers.name}-{name}"), time.monotonic() + SECONDS
        while not path.exists() or len(found := path.read_text().splitlines()) < count:
            assert time.monotonic() < end
            time.sleep(0.01)
        return found[count - 1]

    def pids(self) -> list[int]:
        children = Path(f"/proc/{self.root}/task/{self.root}/children").read_text().split()
        return [self.root, *map(int, children)]

    def ids(self) -> list[int]:
        """Returns the ids of all threads of all processes, which have to be free for a restore."""
        return [*dict.fromkeys(chain.from_iterable((pid, *thread_ids(pid)) for pid in self.pids()))]

    def asked(self) -> list[str]:
        """Returns what the processes say of their memory now."""
        for pid in self.pids():
            os.kill(pid, signal.SIGUSR1)
        return [self._awaited(name, 2) for name in self.names]

    def close(self) -> None:
        try:
            os.killpg(self.root, signal.SIGKILL)
            os.waitpid(self.root, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[bool], Program]]:
    skip_without_criu()
    begun = list[Program]()

    def begin(forks: bool) -> Program:
        begun.append(Program(tmp_path, 7, forks=forks))
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


def imaged(store: Store, folder: Path, left: bool) -> None:
    """Writes a dump to an image, while CRIU holds the processes."""
    with ImageWriter(store, "one", threads=3) as writer, left_pages(folder, WINDOW, left) as elsewhere:
        assert left == bool(elsewhere)
        files = add_folder(writer, folder, chunk_sizes(folder, WINDOW), elsewhere)
        plain = described("one", [])
        writer.commit(lambda found: replace(plain(found), cut=Cut.PROCESS, files=files))


@pytest.mark.parametrize("forks", [False, True], ids=["one process", "a child"])
@pytest.mark.parametrize("leaves", [False, True], ids=["CRIU copies", "CRIU leaves pages"])
def test_a_program_comes_back_as_it_was(
    program: Callable[[bool], Program], tmp_path: Path, *, forks: bool, leaves: bool
) -> None:
    running, dump, there, store = program(forks), tmp_path / "dump", tmp_path / "there", Store(tmp_path / "store")
    pids, ids, ours = running.pids(), running.ids(), Wishes(leaves_pages=leaves)
    dump.mkdir()
    there.mkdir()
    saving.dump(CRIU, running.root, dump, ours, SECONDS, lambda _ended: imaged(store, dump, leaves))
    os.waitpid(running.root, 0)
    assert (sum(each.stat().st_size for each in dump.glob("pages-*")) < 8 * MIB) == leaves
    with ImageReader(store, "one") as reader:
        kept = bring(reader, there)
    put = {each.pid: each.runs for each in kept}
    assert sum(run.size for run in put[running.root]) > (23 if forks else 31) * MIB
    saving.wait_until_free(ids)
    found = saving.restore(CRIU, pids, there, Wishes(), SECONDS, lambda: aside.fill(kept))
    assert running.asked() == running.before
    if forks:
        assert found and found.pages * PAGE > 8 * MIB  # among them those that both have
        assert shared_with_a_child(running.root) > 3 * MIB


def shared_with_a_child(pid: int) -> int:
    """Returns the bytes of private memory of a process that it shares with another."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    facts = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return (facts["Anonymous"] - facts["Pss_Anon"]) * 1024 * 2


def bytes_of(folder: Path) -> dict[tuple[str, int], bytes]:
    """Returns each page of a dump, by process and address."""
    found = {}
    for each in pagemaps(folder):
        data, at = (folder / each.pages).read_bytes(), 0
        for address, size in each.runs:
            for page in range(0, size, PAGE):
                found[each.path.stem, address + page] = data[at + page : at + page + PAGE]
            at += size
    return found


class Refused(Exception):
    pass


def test_a_dump_that_leaves_pages_has_those_of_one_that_copies(
    program: Callable[[bool], Program], tmp_path: Path
) -> None:
    running, store, dumps = program(True), Store(tmp_path / "store"), {}
    for leaves in (False, True):
        dump = dumps[leaves] = tmp_path / f"dump-{leaves}"
        dump.mkdir()

        def refuse(_ended: int, dump: Path = dump, leaves: bool = leaves) -> None:
            if leaves:
                imaged(store, dump, left=True)
            raise Refused

        with pytest.raises(Refused):
            saving.dump(CRIU, running.root, dump, Wishes(leaves_pages=leaves), SECONDS, refuse)
    assert running.asked() == running.before  # it ran on, twice
    (tmp_path / "brought").mkdir()
    with ImageReader(store, "one") as reader:
        for name in reader.files:
            content = bytearray(reader.files[name][1].bytes)
            reader.read_file(name, memoryview(content))
            (tmp_path / "brought" / name).write_bytes(content)
    copied, left = bytes_of(dumps[False]), bytes_of(tmp_path / "brought")
    others = [place for place in copied.keys() | left.keys() if copied.get(place) != left.get(place)]
    assert len(copied) > 32 * MIB // PAGE and len(others) < 200, "the interpreter's own, which ran between the two"


def test_a_process_that_ends_while_its_memory_is_read_is_told(
    program: Callable[[bool], Program], tmp_path: Path
) -> None:
    running, dump = program(False), tmp_path / "dump"
    dump.mkdir()

    def killed(_ended: int) -> None:
        with left_pages(dump, WINDOW) as found:
            (pages,) = found.values()
            into = memoryview(bytearray(sum(pages.sizes)))
            pages.read(0, into)
            os.kill(running.root, signal.SIGKILL)
            with pytest.raises(NotDumped, match=f"process {running.root}"):
                until_raised(lambda: pages.read(0, into))
            raise Refused

    with pytest.raises(Refused):
        saving.dump(CRIU, running.root, dump, Wishes(leaves_pages=True), SECONDS, killed)


def until_raised(work: Callable[[], object]) -> None:
    """Works until it raises: a process that is killed has its memory for some moments more."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        work()


def test_a_criu_that_dies_while_memory_is_read_is_told(program: Callable[[bool], Program], tmp_path: Path) -> None:
    """The processes run on, so what was read is of no one moment."""
    running, dump = program(False), tmp_path / "dump"
    dump.mkdir()

    def criu_dies(ended: int) -> None:
        with pytest.raises(NotDumped, match="until its memory was read"), left_pages(dump, WINDOW):
            lines = Path(f"/proc/{running.root}/status").read_text().splitlines()
            (criu,) = [int(line.split()[1]) for line in lines if line.startswith("TracerPid:")]
            os.kill(criu, signal.SIGKILL)
            assert select.select([ended], [], [], SECONDS)[0]
        raise Refused

    with pytest.raises((Refused, CriuUnusable)):
        saving.dump(CRIU, running.root, dump, Wishes(leaves_pages=True), SECONDS, criu_dies)
    assert running.asked() == running.before


@pytest.mark.parametrize("fault", ["is cut", "has another size"])
def test_a_pagemap_that_is_not_understood_is_no_dump(tmp_path: Path, fault: str) -> None:
    """Else the pages that CRIU left would be missing, and nothing would say so."""
    data = pagemap([(1000, 3, PRESENT), (2000, 5, 2)])
    (tmp_path / "pagemap-7.img").write_bytes(data[:-3] if fault == "is cut" else data)
    (tmp_path / "pages-1.img").write_bytes(bytes(PAGE * (3 if fault == "is cut" else 2)))
    with pytest.raises(NotDumped, match=r"pagemap-7\.img"), left_pages(tmp_path, WINDOW):
        pass


def test_a_process_that_is_gone_is_not_filled(program: Callable[[bool], Program], tmp_path: Path) -> None:
    running, dump = program(False), tmp_path / "dump"
    dump.mkdir()
    ids = running.ids()
    saving.dump(CRIU, running.root, dump, Wishes(), SECONDS, lambda _ended: None)
    os.waitpid(running.root, 0)
    kept = put_aside(dump)
    assert kept
    saving.wait_until_free(ids)

    def killed_before() -> None:
        os.kill(running.root, signal.SIGKILL)
        until_raised(lambda: aside.fill(kept))

    with pytest.raises(NotRestored, match="could not be filled"):
        saving.restore(CRIU, [running.root], dump, Wishes(), SECONDS, killed_before)
    assert not Path(f"/proc/{running.root}").exists()


def test_criu_is_told_to_leave_pages_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    assert leftpages.may_be_left([os.getpid()])
    with mmap.mmap(-1, ADDRESSES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ):
        assert not leftpages.may_be_left([os.getpid()]), "CRIU would note each page, though none is there"
        assert leftpages.may_be_left([os.getpid()], covered=ADDRESSES)
    monkeypatch.setattr(leftpages, "private_addresses", lambda _pid: 0)
    monkeypatch.setattr(leftpages, "_descriptors", lambda: 4096)
    for size, fits in ((1 << 30, True), (1 << 31, False)):
        monkeypatch.setattr(leftpages, "resident", lambda _pid, size=size: size)
        assert leftpages.may_be_left([7]) == fits
        assert not leftpages.may_be_left([7, 8, 9])
    monkeypatch.setattr(leftpages, "overrules_protection", lambda: False)
    monkeypatch.setattr(leftpages, "resident", lambda _pid: 0)
    assert not leftpages.may_be_left([7])


def test_where_the_kernel_forbids_it_criu_restores_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "overrules_protection", lambda: False)
    laid(tmp_path, {7: ([(1000, 512, PRESENT)], [(1000, 512, PRIVATE)])})
    assert not put_aside(tmp_path)
    monkeypatch.undo()
    assert put_aside(tmp_path)


# ---- which pages ------------------------------------------------------------------------------------------------


Memory = tuple[Sequence[Entry], Sequence[Entry]]  # the entries of a pagemap, and the areas


def laid(folder: Path, processes: dict[int, Memory], rseq: int = 0) -> None:
    for number, (pid, (entries, areas)) in enumerate(processes.items(), 1):
        (folder / f"pagemap-{pid}.img").write_bytes(pagemap(entries, number, of_criu_4_2=True))
        (folder / f"mm-{pid}.img").write_bytes(memory(areas))
        (folder / f"core-{pid}.img").write_bytes(core(rseq))
        pages = [page for first, count, _ in entries for page in range(first, first + count)]
        (folder / f"pages-{number}.img").write_bytes(b"".join(page_of(pid, page) for page in pages))


def put_aside(folder: Path) -> list[Aside]:
    """Takes what CRIU need not restore out of the files of a dump."""
    found = list[Aside]()
    for each in aside.spared(folder, pagemaps(folder)):
        pages = folder / each.pagemap.pages
        memory = memoryview(bytearray(pages.read_bytes()))
        pages.unlink()
        found.append(each.divide(folder, memory))
    return found


def page_of(pid: int, page: int) -> bytes:
    return hashlib.blake2b(f"{pid} {page}".encode()).digest() * (PAGE // 64)


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    ends = sorted(draw(st.sets(st.integers(0, 80), max_size=12)))
    return [*zip(ends[::2], ends[1::2], strict=False)]


def pages_in(found: Sequence[Span]) -> set[int]:
    return {page for begin, end in found for page in range(begin, end)}


@given(st.lists(spans(), max_size=4), spans())
def test_sets_of_spans(sets: list[list[Span]], other: list[Span]) -> None:
    for each in sets:
        assert pages_in([*less(each, other)]) == pages_in(each) - pages_in(other)
        assert pages_in([*common(each, other)]) == pages_in(each) & pages_in(other)
    assert pages_in([*joined(sorted(span for each in sets for span in each))]) == set().union(*map(pages_in, sets))
    counted = [page for each in sets for page in pages_in(each)]
    assert pages_in([*several(sets)]) == {page for page in counted if counted.count(page) > 1}


@given(st.lists(st.tuples(spans(), spans()), min_size=1, max_size=3), st.integers(0, 80))
@settings(max_examples=80)
def test_each_page_is_criu_s_or_aside_with_its_bytes(drawn: list[tuple[list[Span], list[Span]]], rseq: int) -> None:
    processes: dict[int, Memory] = {}
    for pid, (there, private) in enumerate(drawn, 7):
        entries = [(begin, end - begin, PRESENT) for begin, end in there]
        areas = [(begin, end - begin, PRIVATE) for begin, end in private]
        processes[pid] = entries, [*areas, (100, 4, OF_A_FILE)]
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        laid(folder, processes, rseq * PAGE + 64)
        patch.setattr(aside, "_LEAST", 0)
        put = {each.pid: each for each in put_aside(folder)}
        for number, pid in enumerate(processes, 1):
            there, private = drawn[number - 1]
            found, text = dict[int, bytes](), (folder / f"pages-{number}.img").read_bytes()
            for first, count, _ in entries_of((folder / f"pagemap-{pid}.img").read_bytes()):
                for page in range(first, first + count):
                    found[page], text = text[:PAGE], text[PAGE:]
            assert not text
            for run in put[pid].runs if pid in put else ():
                for done in range(0, run.size, PAGE):
                    page = (run.address + done) // PAGE
                    others = [pages_in(each) for one, (each, _) in enumerate(drawn, 7) if one != pid]
                    assert page not in found and page in pages_in(private) and page != rseq
                    assert not any(page in other for other in others)
                    found[page] = put[pid].memory[run.at + done : run.at + done + PAGE]
            assert found == {page: page_of(pid, page) for page in pages_in(there)}
