"""A process tree goes to files by the real CRIU, and comes back. The oracle is what the tree itself writes."""

import fcntl
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest

from gcr.criu import saving, statistics
from gcr.criu.messages import NetworkLock
from gcr.criu.preflight.tasks import thread_ids
from gcr.criu.saving import Wishes
from gcr.errors import CriuUnusable
from gcr.imageerrors import NotDumped, NotRestored

CRIU = Path(__file__).parents[2] / "build/criu/criu"
LIMIT = 30.0
MIB = 1 << 20

# Each thread of two processes counts, and writes its count, and whether it finds its random bytes, into a file whose
# size and name stay: a tree that ran for a moment can come back from the same dump.
PROGRAM = """
import hashlib, os, sys, threading, time
folder, mib = sys.argv[1], int(sys.argv[2])
data = os.urandom(mib << 20)
once = hashlib.sha256(data).hexdigest()
child = os.fork() == 0
name = "child" if child else "root"
def count(file, n=0):
    out = os.open(file + ".new", os.O_WRONLY | os.O_CREAT)
    while True:
        n += 1
        os.pwrite(out, f"{n} {os.getpid()} {hashlib.sha256(data).hexdigest() == once}".ljust(64).encode(), 0)
        if n == 1:
            os.rename(file + ".new", file)
        time.sleep(0.002)
thread = threading.Thread(target=count, args=(f"{folder}/{name}-thread",), daemon=True)
thread.start()
count(f"{folder}/{name}")
"""


@pytest.fixture(autouse=True)
def _there() -> None:
    if not CRIU.exists():
        pytest.skip("CRIU was not fetched to build/criu")
    if "gVisor" in Path("/proc/version").read_text():
        pytest.skip("CRIU cannot work on gVisor")


class Tree:
    """Two processes of two threads each, that count in a folder."""

    def __init__(self, folder: Path, mib: int = 1) -> None:
        self.counts, self.images = folder / "counts", folder / "images"
        self.counts.mkdir()
        self.images.mkdir()
        self.root = started(sys.executable, "-c", PROGRAM, str(self.counts), str(mib))
        self.moves()
        self.pids = sorted({int(pid) for _, pid, _ in self.seen().values()}, key=lambda pid: pid != self.root)
        self.ids = [*dict.fromkeys((*self.pids, *chain.from_iterable(map(thread_ids, self.pids))))]

    def seen(self) -> dict[str, list[str]]:
        names = ("root", "root-thread", "child", "child-thread")
        return {name: (self.counts / name).read_text().split() for name in names}

    def moves(self) -> None:
        """Waits until each thread has counted, and found its bytes."""
        end, before = time.monotonic() + LIMIT, {}
        while not before or any(int(now[0]) <= int(before[name][0]) for name, now in self.seen().items()):
            assert time.monotonic() < end
            with suppress(FileNotFoundError):
                before = before or self.seen()
                assert all(right == "True" for _, _, right in self.seen().values())
            time.sleep(0.01)

    def stands(self) -> None:
        before = self.seen()
        time.sleep(0.05)
        assert self.seen() == before

    def dump(self, consent: Callable[[], object] = lambda: None, **wishes: object) -> saving.DumpStatistics | None:
        wished = Wishes(**wishes)  # type: ignore[arg-type]
        return saving.dump(CRIU, self.root, self.images, wished, LIMIT, lambda _ended: consent())

    def restore(self, consent: object = lambda: None, **more: object) -> saving.RestoreStatistics | None:
        saving.wait_until_free(self.ids)  # as `tree.bring_back` does: another process may have a thread's id
        return saving.restore(CRIU, self.pids, self.images, Wishes(), LIMIT, consent, **more)  # type: ignore[arg-type]

    def has_ended(self) -> bool:
        """Returns True once CRIU has ended the tree, False where it does not."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            if os.waitpid(self.root, os.WNOHANG)[0]:
                return True
            time.sleep(0.01)
        return False

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.root, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.root, 0)


def started(*words: str) -> int:
    """Starts a program that leads a session. Returns its pid; the caller waits for it."""
    null = [(os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in range(3)]
    return os.posix_spawn(words[0], words, os.environ, setsid=True, file_actions=null)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path)
    yield tree
    tree.end()


def gone(pids: Sequence[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_tree_ends_with_its_dump_and_comes_back_as_it_was_again_and_again(tree: Tree) -> None:
    for _ in range(3):
        dumped = tree.dump(tree.stands)
        assert os.waitpid(tree.root, 0)[1] == signal.SIGKILL
        at_the_end = tree.seen()
        assert dumped and dumped.pages > MIB // 4096 and 0 < dumped.frozen_s < LIMIT
        restored = tree.restore(tree.stands)
        assert restored and restored.pages > MIB // 4096
        tree.moves()
        assert {name: now[1] for name, now in tree.seen().items()} == {n: now[1] for n, now in at_the_end.items()}
        assert all(int(now[0]) > int(at_the_end[name][0]) for name, now in tree.seen().items())


def test_a_tree_whose_end_is_not_consented_to_runs_on(tree: Tree) -> None:
    def refuse() -> None:
        tree.stands()
        raise ValueError("the store is full")

    for _ in range(2):
        with pytest.raises(ValueError, match="the store is full"):
            tree.dump(refuse)
        tree.moves()


def test_a_restore_that_is_not_consented_to_leaves_no_process(tree: Tree) -> None:
    tree.dump()
    os.waitpid(tree.root, 0)

    def refuse() -> None:
        raise ValueError("no room on the device")

    with pytest.raises(ValueError, match="no room on the device"):
        tree.restore(refuse)
    end = time.monotonic() + LIMIT
    while not gone(tree.pids):  # init reaps the child in its own time
        assert time.monotonic() < end
        time.sleep(0.01)
    tree.restore()
    tree.moves()


def test_what_criu_cannot_save_runs_on_and_its_words_say_why(tree: Tree) -> None:
    with (tree.counts / "locked").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        holder = subprocess.Popen(
            ["sleep", "100"], stdin=subprocess.DEVNULL, pass_fds=[file.fileno()], start_new_session=True
        )
        file.close()
        try:
            with pytest.raises(NotDumped, match="did not save") as failed:
                saving.dump(CRIU, holder.pid, tree.images, Wishes(), LIMIT, pytest.fail)
            assert "You can try --file-locks" in failed.value.message
            assert holder.poll() is None
        finally:
            holder.kill()
            holder.wait()


def test_a_plugin_that_is_merely_installed_is_not_loaded(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRIU ends with an error where it cannot load one of its folder."""
    (tmp_path / "cuda_plugin.so").write_text("no shared object")
    monkeypatch.setenv("CRIU_LIBS_DIR", str(tmp_path))
    tree.dump()
    os.waitpid(tree.root, 0)
    tree.restore()
    tree.moves()


def test_a_process_that_is_not_there_is_not_saved(tree: Tree) -> None:
    gone_long_ago = started("/bin/true")
    os.waitpid(gone_long_ago, 0)
    with pytest.raises(NotDumped, match=f"did not save process {gone_long_ago}: .*No such process"):
        saving.dump(CRIU, gone_long_ago, tree.images, Wishes(), LIMIT, pytest.fail)


def test_nothing_comes_back_from_a_folder_without_a_dump(tree: Tree) -> None:
    with pytest.raises(NotRestored, match="did not bring process 4000000 back"):
        saving.restore(CRIU, [4000000], tree.images, Wishes(), LIMIT, pytest.fail)


TAKER = """
import os, sys, time
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(int(sys.argv[1]) - 1))
pid = os.fork()
if pid:
    print(pid)
else:
    os.close(1)
    time.sleep(60)
"""


@contextmanager
def taken(id: int) -> Iterator[None]:
    """Another process, no child of this one, has the id."""
    latest = time.monotonic() + LIMIT
    while time.monotonic() < latest:  # a process of another test may have it for a while
        got = int(subprocess.run([sys.executable, "-c", TAKER, str(id)], stdout=subprocess.PIPE, check=True).stdout)
        try:
            if got == id:
                yield
                return
        finally:
            os.kill(got, signal.SIGKILL)
    pytest.fail(f"id {id} is not to be had")


def test_a_thread_id_that_is_taken_while_criu_is_at_work_is_a_reason_to_try_again(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.dump()
    assert tree.has_ended()
    monkeypatch.setattr(saving, "wait_until_free", lambda _ids: None)
    with taken(tree.ids[-1]), pytest.raises(NotRestored) as caught:
        tree.restore(pytest.fail)
    assert "has taken an id of the job" in caught.value.hint, caught.value


def test_a_pid_in_use_is_named_and_its_process_is_not_touched(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_REAPED_S", 0.1)
    with pytest.raises(NotRestored, match=f"pid {tree.root} is in use"):
        tree.restore(pytest.fail)
    tree.moves()


def kill_criu(spared: Collection[int] = ()) -> None:
    """Kills the CRIU of this process, and not that of other tests. It writes over its own command line.

    A process that CRIU makes has CRIU's name until it runs: those are `spared`.
    """
    found = subprocess.run(["pgrep", "-P", str(os.getpid()), "ld-linux"], capture_output=True, check=False).stdout
    for pid in {*map(int, found.split())}.difference(spared):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def killed_after(seconds: float, spared: Collection[int]) -> Iterator[None]:
    """Kills CRIU that many seconds after the block has begun, from outside."""
    timer = threading.Timer(seconds, kill_criu, [spared])
    timer.start()
    yield
    timer.join()


def killed_and_told(ended: int) -> None:
    """Kills CRIU, and is told of its end by the descriptor that a consent is given."""
    assert not select.select([ended], [], [], 0)[0]
    kill_criu()
    assert select.select([ended], [], [], LIMIT)[0]


def test_a_criu_that_is_killed_before_it_hears_our_consent_leaves_the_tree_running(tree: Tree) -> None:
    with pytest.raises(CriuUnusable, match="CRIU ended before it answered DUMP"):
        saving.dump(CRIU, tree.root, tree.images, Wishes(), LIMIT, killed_and_told)
    tree.moves()
    tree.dump()
    assert os.waitpid(tree.root, 0)[1] == signal.SIGKILL


def test_a_criu_that_is_killed_before_the_tree_runs_leaves_no_process(tree: Tree) -> None:
    tree.dump()
    os.waitpid(tree.root, 0)
    with pytest.raises(CriuUnusable, match="CRIU ended before it answered RESTORE"):
        tree.restore(kill_criu)
    tree.restore()
    tree.moves()


# Kills that find CRIU at work. Before each restore init takes up to 2 s to reap the tree.
KILLS = [3, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
MOST_TRIES = 10  # for each: CRIU may be faster


@pytest.mark.parametrize("kills", KILLS)
def test_criu_is_killed_as_it_restores_and_no_process_is_left_or_all_run(tmp_path: Path, kills: int) -> None:
    instants, hits = random.Random(kills), 0
    tree = Tree(tmp_path, mib=16)
    try:
        for _ in range(kills * MOST_TRIES):
            tree.dump()
            os.waitpid(tree.root, 0)
            saving.wait_until_free(tree.pids)
            with killed_after(instants.uniform(0.005, 0.1), tree.pids):
                try:
                    tree.restore()
                except (CriuUnusable, NotRestored):
                    hits += 1
                    tree.restore()
            tree.moves()
            if hits == kills:
                return
        pytest.fail(f"CRIU was at work at {hits} of {kills * MOST_TRIES} instants")
    finally:
        tree.end()


@pytest.mark.parametrize(
    "left", [b"", b"\0" * 11, b"\0" * 40, bytes.fromhex("40591055") + b"\x06\x33\x09\x57" + b"\2\0\0\0\x0a\x05"]
)
def test_statistics_that_cannot_be_read_are_none(tmp_path: Path, left: bytes) -> None:
    assert statistics.of_dump(tmp_path) is None
    (tmp_path / "stats-dump").write_bytes(left)
    assert statistics.of_dump(tmp_path) is None


def test_a_consent_may_take_longer_than_all_that_criu_does(tree: Tree) -> None:
    """The files go to a store meanwhile."""
    limit = 3.0
    saving.dump(CRIU, tree.root, tree.images, Wishes(), limit, lambda _ended: time.sleep(limit + 0.5))
    assert os.waitpid(tree.root, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        (
            ("pie: 12: Error (criu/pie/restorer.c:2185): Unable to create a thread: -17",),
            "Unable to create a thread: -17",
        ),
        (
            ("Error (criu/files.c:1): Can't open it", "Error (criu/cr-restore.c:1265): 12 exited, status=1"),
            "Can't open it",
        ),
        (("pie: 12: Error (criu/pie/restorer.c:2332): Restorer fail 12",), "File exists"),
        (
            (
                "Error (criu/sk-tcp.c:81): Failed to lock it",
                "Error (criu/cr-dump.c:1545): Dump files (pid: 12) failed with -1",
            ),
            "Failed to lock it",
        ),
        (
            (
                "pie: 12: Error (criu/pie/restorer.c:2185): Unable to create a thread: -17",
                "Error (criu/cr-restore.c:1490): 13 killed by signal 9: Killed",
            ),
            "Unable to create a thread: -17",
        ),
        (
            ("Error (criu/cr-restore.c:1490): 12 killed by signal 11: Segmentation fault",),
            "12 killed by signal 11: Segmentation fault",
        ),
    ],
)
def test_the_cause_is_told_and_not_what_came_of_it(tmp_path: Path, lines: Sequence[str], word: str) -> None:
    """What CRIU and a process that it makes write comes in any order."""
    more = (
        "Error (criu/cr-restore.c:2331): Restoring FAILED.",
        "pie: 12: Error (criu/pie/restorer.c:2332): Restorer fail 12",
    )
    for each in ((*more, *lines), (*lines, *more)):
        (tmp_path / "restore.log").write_text("\n".join(each))
        assert saving._words(SimpleNamespace(cr_errno=17), tmp_path / "restore.log") == word


@pytest.mark.parametrize("there", [None, "/usr/sbin/iptables"])
def test_nftables_are_for_connections_that_are_kept_alone(there: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """CRIU makes a table for each dump that may use them, which stays where CRIU is killed: 450 made each dump slow."""
    monkeypatch.setattr(saving.shutil, "which", lambda _: there)
    kept = NetworkLock.IPTABLES if there else NetworkLock.NFTABLES
    for wishes, by in ((Wishes(), NetworkLock.IPTABLES), (Wishes(tcp_established=True), kept)):
        assert saving._chosen(wishes)["network_lock"] == by
