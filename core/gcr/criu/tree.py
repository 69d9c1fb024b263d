"""A process tree in a folder: what CRIU wrote of it, and a note of what gcr needs to bring it back.

<folder>/*.img        CRIU's
<folder>/tree.json    the note, a `SavedTree`
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path

from msgspec import MsgspecError, Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from gcr.criu import files, saving
from gcr.criu.files import FileSeen
from gcr.criu.preflight.check import External, externals, obstacles, open_pipes, tree
from gcr.criu.preflight.obstacle import Obstacle, Options
from gcr.criu.preflight.tasks import thread_ids
from gcr.criu.saving import Wishes
from gcr.criu.statistics import DumpStatistics, RestoreStatistics
from gcr.imageerrors import Damaged, FilesChanged, WrongImage

log = logging.getLogger("gcr.criu")

NOTE = "tree.json"
_AS_THEY_WERE = "put them back as they were (truncate -s BYTES FILE), and try again: the image is as it was"
_NONE = Options()
_INPUT, _OUTPUT, _ERRORS = range(3)
_TOLD = 3  # of several changes or obstacles, in one message


class Wanted(Struct, frozen=True):
    """A tree to be saved.

    devices: paths that begin so are devices, and may change · allow: options of CRIU's · plugins: of CRIU's
    leaves_pages: private memory stays in the processes (leftpages.py) · joins: as of `SavedTree`
    """

    root: int
    devices: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    plugins: tuple[Path, ...] = ()
    leaves_pages: bool = False
    joins: bool = False


class SavedTree(Struct, frozen=True, kw_only=True):
    """The facts of a dump.

    pids: the root first · threads: ids of their other threads, which have to be free at a restore, too ·
    joins: it is in a session that it does not lead · streams: pipes that were standard streams, and the number of each,
    by CRIU's keys · written: paths of files that were standard streams to write to · files: those that must be as they
    were · allow: options of CRIU's · machine, kernel: as `uname` names them
    """

    pids: tuple[int, ...]
    threads: tuple[int, ...] = ()
    joins: bool
    streams: Mapping[str, int]
    written: tuple[str, ...]
    files: tuple[FileSeen, ...]
    allow: tuple[str, ...] = ()
    machine: str
    kernel: str


def looked_at(root: int, members: Collection[int], options: Options) -> tuple[Sequence[int], Sequence[Obstacle]]:
    """Returns the pids of a tree, the root first, and what keeps CRIU from saving it."""
    pids = tree(root)
    return pids, [*obstacles(pids, members, options), *open_pipes(externals(pids, options))]


def save(
    program: Path,
    wanted: Wanted,
    folder: Path,
    timeout: float,
    consent: Callable[[int], object],
    ready: Callable[[], object] = lambda: None,
) -> DumpStatistics | None:
    """Does as `saving.dump`. The note is in the folder, too, when `consent` is called."""
    began = 0.0

    def begins() -> None:
        nonlocal began
        ready()
        began = time.monotonic()

    def noted(ended: int) -> None:
        saved = time.monotonic()
        (folder / NOTE).write_bytes(encode(_described(wanted)))
        took = saved - began, time.monotonic() - saved
        log.info("process %d: CRIU took %.3f s, and the note of its files %.3f s", wanted.root, *took)
        consent(ended)

    wishes = replace(_wishes(wanted.joins, wanted.allow, wanted.plugins), leaves_pages=wanted.leaves_pages)
    return saving.dump(program, wanted.root, folder, wishes, timeout, noted, begins)


def saved_in(folder: Path) -> SavedTree:
    """Reads the note. Raises Damaged."""
    try:
        return decode((folder / NOTE).read_bytes(), type=SavedTree)
    except (OSError, MsgspecError) as error:
        raise Damaged.of(folder / NOTE, f"it is no note of a process tree: {error}") from error


def bring_back(
    program: Path,
    folder: Path,
    saved: SavedTree,
    given: Mapping[str, int],
    plugins: Sequence[Path],
    timeout: float,
    consent: Callable[[], object],
    verify: Callable[[], object],
    ready: Callable[[], object] = lambda: None,
    meanwhile: Callable[[], object] = lambda: None,
) -> RestoreStatistics | None:
    """Does as `saving.restore`, in the session of the caller. `given`: descriptors by CRIU's keys.

    ready, meanwhile: as of `saving.restore`. The ids of the tree are awaited after `ready`.
    """

    def begins() -> None:
        ready()
        await_ids(saved)

    saving.keep_free([*saved.pids, *saved.threads])
    wishes = _wishes(saved.joins, saved.allow, plugins)
    return saving.restore(program, saved.pids, folder, wishes, timeout, consent, given, True, verify, begins, meanwhile)


def await_ids(saved: SavedTree, vacate: Callable[[Sequence[int]], object] = lambda _ids: None) -> None:
    """Waits until no process or thread has an id of the tree, and keeps these ids free. Raises NotRestored.

    vacate: as of `saving.wait_until_free`
    """
    saving.wait_until_free([*saved.pids, *saved.threads], vacate)


def streams_of(saved: SavedTree, log: str | None) -> Mapping[str, int]:
    """Returns the standard stream that takes the place of each file that is given again, by CRIU's keys.

    log: the job's own, where its new parent keeps it, or would. Our output takes the place of that of the old parent.
    """
    opened = {path.lstrip("/"): _OUTPUT for path in saved.written if _is(path, log)}
    return {**saved.streams, **opened}


def refuse_changed(saved: SavedTree, log: str | None) -> None:
    """Raises WrongImage on another machine, FilesChanged where a file is not as it was. `log`: as for `streams_of`."""
    here = os.uname()
    if saved.machine != here.machine:
        raise WrongImage(f"the processes ran on {saved.machine}, and this machine is {here.machine}")
    if _numbers(saved.kernel) > _numbers(here.release):
        text = f"the processes ran on Linux {saved.kernel}, and this machine has the older {here.release}"
        raise WrongImage(text, hint="restore them on the same kernel, or a newer one")
    found = files.changed(file for file in saved.files if not _is(file.path, log))
    if found:
        raise FilesChanged(_listed(found), hint=_AS_THEY_WERE)


def _wishes(joins: bool, allow: Collection[str], plugins: Sequence[Path]) -> Wishes:
    return Wishes(
        shell_job=joins,
        tcp_established="tcp-established" in allow,
        tcp_close="tcp-close" in allow,
        file_locks="file-locks" in allow,
        plugins=tuple(plugins),
    )


def joins_session(root: int) -> bool:
    """Returns whether a process is in a session that it does not lead. Raises ProcessLookupError."""
    return os.getsid(root) != root


def _described(wanted: Wanted) -> SavedTree:
    pids = tree(wanted.root)
    given = externals(pids, _NONE)
    here = os.uname()
    return SavedTree(
        pids=tuple(pids),
        threads=tuple(sorted(set(chain.from_iterable(map(thread_ids, pids))) - {*pids})),
        joins=wanted.joins,
        streams={each.path: _stream(each) for each in given if each.path.startswith("pipe:")},
        written=tuple(sorted({each.path for each in given if each.path.startswith("/") and each.writes})),
        files=tuple(each for each in files.seen(pids) if not each.path.startswith(wanted.devices)),
        allow=wanted.allow,
        machine=here.machine,
        kernel=here.release,
    )


def _is(path: str, log: str | None) -> bool:
    """Returns whether a path is that of the job's log, by its name: another node may keep logs in another folder."""
    return log is not None and Path(path).name == Path(log).name


def _stream(each: External) -> int:
    if each.reads and not each.writes:
        return _INPUT
    return _ERRORS if each.fd == _ERRORS else _OUTPUT


def _numbers(release: str) -> tuple[int, ...]:
    """Returns the first two numbers of a kernel's release: 6.12.5-arch1 is (6, 12)."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in release.split(".")[:2])


def _listed(found: Sequence[object]) -> str:
    told = "; ".join(map(str, found[:_TOLD]))
    return f"{told}; and {len(found) - _TOLD} more" if len(found) > _TOLD else told
