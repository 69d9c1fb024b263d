"""A process tree on its way to files, by CRIU, and back.

A dump is a transaction of two parties. CRIU stops the tree and writes its files. Then it asks for our consent, and only
with it ends the tree; without it, or if we are gone, the tree runs on as if nothing had happened.
"""

import ctypes
import errno
import fcntl
import logging
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from gcr.criu import statistics
from gcr.criu.conversation import Conversation, Stage, conversation
from gcr.criu.messages import CgroupMode, NetworkLock, RequestType
from gcr.criu.statistics import DumpStatistics, RestoreStatistics
from gcr.imageerrors import NotDumped, NotRestored
from gcr.processes import identify, parent_pid

log = logging.getLogger("gcr.criu")

LOG = {RequestType.DUMP: "dump.log", RequestType.RESTORE: "restore.log"}
_WARNINGS = 2  # log level
_GHOSTS = 1 << 30  # bytes of a file that has no name any more and is open still
_SAID = re.compile(r"Error \([^)]*\): (.*)")
# The first is in every log where CRIU may not raise its limit; the others come of a cause.
_NO_CAUSES = ("setup RLIMIT_NOFILE", "FAILED", "Restorer fail", "exited, status=", "Dump files (pid")
_TAKEN = re.compile(r": -17\b|: File exists\b")  # EEXIST, in CRIU's words
_BY_CRIU = "killed by signal 9"  # as a rule, since another process has failed
_REAPED_S, _LOOK_S = 5.0, 0.005
_LOCKED_S, _LOOK_AGAIN_S = 1.0, 0.0005  # a restore has the lock for microseconds
_DIGITS = 32  # bytes of a number of the kernel's at most
_PID_MAX, _LAST_PID = Path("/proc/sys/kernel/pid_max"), Path("/proc/sys/kernel/ns_last_pid")
_SOON = 1 << 15  # pids that the kernel may give while CRIU is at work
_BEYOND = 1 << 12  # pids behind those of a tree: other trees that began about then have theirs among these
_PR_SET_CHILD_SUBREAPER = 36
_BEHIND_STREAMS = 3  # the first number of a descriptor that is no standard stream
_READY, _STOPPED = "pre-dump", "post-dump"  # stages of a dump
_READY_AGAIN, _RESTORED = "pre-restore", "post-restore"  # of a restore


class Wishes(Struct, frozen=True, kw_only=True):
    """Options of a dump or a restore, with CRIU's names.

    shell_job: the tree has a terminal, or a session that it does not lead · tcp_established: connections are saved;
    tcp_close: they are closed instead · external: files that the restore is `given`, by CRIU's keys ·
    plugins: those that CRIU loads · leaves_pages: a dump leaves private memory in the processes (leftpages.py)
    """

    shell_job: bool = False
    tcp_established: bool = False
    tcp_close: bool = False
    file_locks: bool = False
    external: tuple[str, ...] = ()
    plugins: tuple[Path, ...] = ()
    leaves_pages: bool = False


def dump(
    program: Path,
    root: int,
    folder: Path,
    wishes: Wishes,
    timeout: float,
    consent: Callable[[int], object],
    ready: Callable[[], object] = lambda: None,
) -> DumpStatistics | None:
    """Writes `root` and its descendants to the folder. They end once `consent` has returned.

    `ready` is called once CRIU knows what the kernel can do, which takes it some 30 ms, and before it looks at the
    processes. They run on until it returns; if it raises, they run on, and its error is raised.

    While it is called they stand still, and the files are whole. It is given a descriptor that is readable once CRIU
    has ended: from then on they run. If it raises, they run on, and its error is raised.
    Raises NotDumped; then they run on too. Raises CriuUnusable; then they run on if `consent` was not called, and else
    the caller has to look whether they have ended.
    """

    def stage(name: str, _pid: int) -> None:
        if name == _READY:
            ready()
        elif name == _STOPPED:
            consent(criu.ended)

    with (
        _opened(folder) as there,
        _leaving(wishes.leaves_pages) as left,
        conversation(program, given=left.given, plugins=wishes.plugins) as criu,
    ):
        options = {**_chosen(wishes), **left.options}
        response = _asked(criu, RequestType.DUMP, there, timeout, stage, pid=root, **options)
    if not response.success:
        raise NotDumped(f"CRIU did not save process {root}: {_words(response, folder / LOG[RequestType.DUMP])}")
    return statistics.of_dump(folder)


def restore(
    program: Path,
    pids: Sequence[int],
    folder: Path,
    wishes: Wishes,
    timeout: float,
    consent: Callable[[], object],
    given: Mapping[str, int] | None = None,
    beside: bool = False,
    verify: Callable[[], object] = lambda: None,
    ready: Callable[[], object] = lambda: None,
    meanwhile: Callable[[], object] = lambda: None,
) -> RestoreStatistics | None:
    """Makes the tree of a dump again. `pids`: those of its processes; the first is the root, a child of the caller.

    beside: a tree that led no session joins the caller's session and process group

    `meanwhile` is called while CRIU finds out what the kernel can do, which takes it some 30 ms. `ready` is called
    after that, before there is a process of the tree. CRIU has read its files by then, but pages and their maps. What
    either raises is raised.

    `consent` is called before any of them runs. If it raises, they are ended, and its error is raised.
    `given`: descriptors in place of external files, by CRIU's keys. `verify` is called once they run: CRIU passes over
    the failure of a plugin. If it raises, they are ended as well.
    Raises NotRestored; then no process has run, and none is left. Raises CriuUnusable; then none is left, but where
    `consent` was called they may have run for a moment.
    """

    def stage(name: str, _pid: int) -> None:
        if name == _READY_AGAIN:
            ready()
            wait_until_free(pids)
            made.extend(pids)
        elif name == _RESTORED:
            consent()

    made = list[int]()  # none before there may be one: another process may have the pid
    keep_free(pids)
    with _none_is_left(made), _duplicated(given or {}) as ours:
        inherited = [{"key": key, "fd": fd} for key, fd in ours.items()]
        options = {"rst_sibling": True, "inherit_fd": inherited, **_chosen(wishes)}
        with _opened(folder) as there, conversation(program, beside, ours.values(), wishes.plugins) as criu:
            response = _asked(criu, RequestType.RESTORE, there, timeout, stage, meanwhile, **options)
        if not response.success:
            words = _words(response, folder / LOG[RequestType.RESTORE])
            raise NotRestored(f"CRIU did not bring process {pids[0]} back: {words}", hint=_hint(words))
        verify()
    return statistics.of_restore(folder)


def keep_free(pids: Sequence[int]) -> bool:
    """Has the kernel give new processes, CRIU for one, none of the pids. Returns False where it may not be told."""
    return _pass_over(pids)


def wait_until_free(pids: Sequence[int], vacate: Callable[[Sequence[int]], object] = lambda _ids: None) -> None:
    """Waits until no process, no thread of one and no group has one of the pids. Raises NotRestored.

    Processes that just ended have their pids until their new parent, init perhaps, has reaped them; and many that have
    taken one meanwhile live for a moment only. Others that start from here on are not given one of the pids.
    `vacate`: called once, with those that are in use.
    """
    end, keeps, asked = time.monotonic() + _REAPED_S, True, False
    while True:
        keeps = keeps and _pass_over(pids)  # first: else one that is free here could be given away behind this look
        if not (used := [pid for pid in pids if identify(pid) or _is_group(pid)]):
            return
        if not asked:
            vacate(used)
            asked = True
        if time.monotonic() > end:
            raise NotRestored(f"pid {used[0]} is in use", hint="try again once its process has ended")
        time.sleep(_LOOK_S)


def _is_group(pid: int) -> bool:
    """Returns whether processes are in the group of this number; it may outlive the process that had begun it."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _pass_over(pids: Sequence[int]) -> bool:
    """Has the kernel go on behind the pids that it would give away soon. Returns False where it may not be told.

    It gives all in turn, and then begins anew. CRIU takes its own by their numbers, in its own time, and without this
    file where the kernel has clone3(2) with `set_tid`. Pids shortly behind these are passed over as well: those of
    other trees, which come back at the same time or later.
    """
    try:
        many = int(_PID_MAX.read_text())
        with _locked(_LAST_PID) as file:
            last, passed = int(os.pread(file, _DIGITS, 0)), 0
            for ahead in sorted((pid - last) % many for pid in pids):
                if ahead - passed > min(_SOON, many // 2):
                    break
                passed = ahead
            if passed:
                os.pwrite(file, b"%d" % ((last + passed + min(_BEYOND, many // 8)) % many), 0)
    except OSError as error:
        log.info("the pids of the processes are not kept free: %s", error)
        return False
    return True


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Yields the file, locked: of two restores at a time, one would set the kernel back to the ids of the other.

    Raises OSError, EBUSY where another process has had the lock for too long.
    """
    file, end = os.open(path, os.O_RDWR | os.O_CLOEXEC), time.monotonic() + _LOCKED_S
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise OSError(errno.EBUSY, "another process has it locked", str(path)) from None
                time.sleep(_LOOK_AGAIN_S)
        yield file
    finally:
        os.close(file)


@contextmanager
def _none_is_left(pids: Sequence[int]) -> Iterator[None]:
    """Ends and reaps what the block made of these processes before its error is raised.

    Meanwhile this process is the new parent of their orphans: if CRIU or the root dies, the others go on by themselves.
    """
    _adopt_orphans(True)
    try:
        yield
    except BaseException:
        _end_children(pids)
        raise
    finally:
        _adopt_orphans(False)


def _adopt_orphans(adopt: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def _end_children(pids: Sequence[int]) -> None:
    """Ends those of the processes that are our children, and then their children, which are ours by then."""
    while ours := [pid for pid in pids if parent_pid(pid) == os.getpid()]:
        for pid in ours:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _asked(
    criu: Conversation,
    type: RequestType,
    folder: int,
    timeout: float,
    stage: Stage,
    meanwhile: Callable[[], object] = lambda: None,
    **options: Any,
) -> Any:
    always = {"images_dir_fd": folder, "log_level": _WARNINGS, "log_file": LOG[type], "notify_scripts": True}
    return criu.ask(type, timeout, stage, meanwhile, opts={**always, **options})


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    there = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield there
    finally:
        os.close(there)


class _Leaving(Struct, frozen=True):
    """Options with which CRIU leaves pages, and descriptors that it needs for that."""

    given: Sequence[int] = ()
    options: Mapping[str, Any] = {}


@contextmanager
def _leaving(wanted: bool) -> Iterator[_Leaving]:
    """Yields what has CRIU leave pages in the processes, if that is wanted.

    Behind our consent CRIU would serve the pages by a socket. The other end of this one is closed: no page is wanted.
    CRIU takes a socket for that by a file of its options alone.
    """
    if not wanted:
        yield _Leaving()
        return
    ours, its = socket.socketpair()
    ours.close()
    with its, os.fdopen(os.memfd_create("gcr-criu"), "wb", buffering=0) as file:
        file.write(f"lazy-pages\nps-socket {its.fileno()}\n".encode())
        yield _Leaving([its.fileno(), file.fileno()], {"config_file": f"/proc/self/fd/{file.fileno()}"})


@contextmanager
def _duplicated(given: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """Yields the descriptors under other numbers: CRIU has standard streams of its own."""
    ours: dict[str, int] = {}
    try:
        for key, fd in given.items():
            ours[key] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _BEHIND_STREAMS)
        yield ours
    finally:
        for fd in ours.values():
            os.close(fd)


def _chosen(wishes: Wishes) -> dict[str, Any]:
    """Returns CRIU's options. A dump that may use nftables makes a table, which stays if CRIU is killed."""
    keeps_packets = NetworkLock.IPTABLES if shutil.which("iptables") else NetworkLock.NFTABLES
    return {
        "shell_job": wishes.shell_job,
        "tcp_established": wishes.tcp_established,
        "tcp_close": wishes.tcp_close,
        "network_lock": keeps_packets if wishes.tcp_established else NetworkLock.IPTABLES,
        "file_locks": wishes.file_locks,
        "external": wishes.external,
        "link_remap": True,
        "ghost_limit": _GHOSTS,
        "manage_cgroups_mode": CgroupMode.IGNORE,
    }


def _hint(words: str) -> str:
    return "another process has taken an id of the job just now: again" if _TAKEN.search(words) else ""


def _words(response: Any, log: Path) -> str:
    """Returns the last cause in CRIU's log, for people: CRIU's answer is seldom more than a number."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    said = [found[1] for line in lines if (found := _SAID.search(line))]
    causes = [text for text in said if not any(each in text for each in _NO_CAUSES)]
    causes = [text for text in causes if _BY_CRIU not in text] or causes
    return causes[-1] if causes else os.strerror(response.cr_errno)
