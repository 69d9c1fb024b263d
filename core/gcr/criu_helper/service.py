"""The operations that a CRIU helper offers its daemon; `CriuPeer` is their other end."""

import select
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Event, Thread

from msgspec import Struct, field

from gcr.criu import known, program, tree
from gcr.criu.leftpages import may_be_left
from gcr.criu.plugins import files_saved, plugins_of
from gcr.criu.preflight.obstacle import Obstacle, Options, device_files
from gcr.criu.preflight.sockets import saves_ip_sockets
from gcr.criu.tree import Wanted
from gcr.errors import CriuUnusable, UsageError
from gcr.faults import reach
from gcr.processes import descendants
from gcr.protocol.operations import criu as ops
from gcr.protocol.operations.operation import Answer, Dispatcher

PASSES_S, LOOK_S = 0.2, 0.02  # what is in the way for a moment only, and between two looks


class NotWanted(Exception):
    """CRIU is not to look at the tree any more."""


class Saving(Struct):
    """A dump on a thread of its own: CRIU waits in it for the daemon's word, before it begins and before it ends.

    work: called with what is to be called at these two moments · wanted, folder: its tree, and the files' place
    """

    work: Callable[[Callable[[int], object], Callable[[], object]], object]
    wanted: Wanted
    folder: Path
    error: BaseException | None = None
    _may_begin: Event = field(default_factory=Event)
    _dropped: bool = False
    _saved: Event = field(default_factory=Event)  # or it has failed
    _agreed: Event = field(default_factory=Event)
    _thread: Thread = field(default_factory=Thread)
    _ended: int = -1  # readable once CRIU has ended

    def prepare(self) -> None:
        """Starts CRIU, which waits for `begin`."""
        self._thread = Thread(target=self._run, name="gcr-dump", daemon=True)
        self._thread.start()

    def drop(self) -> None:
        """Has CRIU end instead of beginning. Returns once it has ended."""
        self._dropped = True
        self._may_begin.set()
        self._thread.join()

    def begin(self) -> None:
        """Returns once the tree is saved and stands still. Raises what the dump raised."""
        self._may_begin.set()
        self._saved.wait()
        if self.error:
            raise self.error

    def check(self) -> None:
        """Returns if the tree has stood still since it was saved. Raises CriuUnusable where CRIU has ended since."""
        if not self._thread.is_alive() or self._lost():
            raise CriuUnusable("CRIU ended, and the processes ran on, before their image was there")

    def end(self) -> None:
        """Returns once the tree has ended. Raises what the dump raised."""
        self._agreed.set()
        self._thread.join()
        if self.error:
            raise self.error

    def _run(self) -> None:
        try:
            self.work(self._await_word, self._await_begin)
        except BaseException as error:
            self.error = error
        finally:
            self._saved.set()

    def _await_begin(self) -> None:
        self._may_begin.wait()  # or this process ends, with the daemon's connection
        if self._dropped:
            raise NotWanted

    def _await_word(self, ended: int) -> None:
        self._ended = ended
        reach("criu.saved")
        self._saved.set()
        self._agreed.wait()  # or this process ends, with the daemon's connection

    def _lost(self) -> bool:
        """Returns whether CRIU has ended."""
        return bool(select.select([self._ended], [], [], 0)[0])


class CriuService(Struct):
    """One CRIU helper: the tree that it looked at, and saves."""

    _looked: ops.Look | None = None
    _saving: Saving | None = None
    _prepared: Saving | None = None
    _covered: int = 0  # bytes of addresses, see Prepare

    def operations(self) -> Dispatcher:
        """Returns the server of the operations."""
        return Dispatcher(
            "a CRIU helper",
            {
                ops.Look: lambda asked, _fds, _request: Answer(self._look(asked)),
                ops.Prepare: lambda asked, _fds, _request: self._prepare(asked),
                ops.Dump: lambda asked, _fds, _request: self._dump(asked),
                ops.Check: lambda _asked, _fds, _request: self._begun().check(),
                ops.End: lambda _asked, _fds, _request: self._begun().end(),
            },
        )

    def _look(self, asked: ops.Look) -> ops.Seen:
        """Raises CriuUnusable where no CRIU works here, or a plugin is missing."""
        self._looked = asked
        return look(asked)

    def _dump(self, asked: ops.Dump) -> None:
        """Raises NotDumped, CriuUnusable; then the tree runs on."""
        wanted, folder, saving = self._wanted(), Path(asked.folder), self._prepared
        reach("criu.dump")
        if saving and (saving.wanted, saving.folder) != (wanted, folder):
            saving.drop()
            saving = None
        if saving is None:
            saving = _saving(wanted, folder, asked.timeout)
        self._saving = saving
        saving.begin()

    def _prepare(self, asked: ops.Prepare) -> None:
        """Starts CRIU, once, for the dump that may follow. What fails is told by that. Raises CriuUnusable."""
        self._covered = asked.covered
        wanted = self._wanted()
        if self._prepared is None:
            self._prepared = _saving(wanted, Path(asked.folder), asked.timeout)

    def _wanted(self) -> Wanted:
        """Returns the tree that was looked at, as it is now. Raises UsageError, CriuUnusable."""
        looked = self._looked
        if looked is None or self._saving:
            raise UsageError("a CRIU helper looks at one tree, and saves it then")
        plugins = tuple(plugins_of(looked.backend, looked.simulated))
        left = may_be_left([looked.root, *descendants(looked.root)], self._covered)
        joins = tree.joins_session(looked.root)
        return Wanted(looked.root, _devices(looked), looked.allow, plugins, left, joins)

    def _begun(self) -> Saving:
        if self._saving is None:
            raise UsageError("no tree is saved")
        return self._saving


def _saving(wanted: Wanted, folder: Path, timeout: float) -> Saving:
    """Returns a dump that waits for its beginning."""
    criu = program.find()
    made = Saving(partial(tree.save, criu, wanted, folder, timeout), wanted, folder)
    made.prepare()
    return made


def look(asked: ops.Look) -> ops.Seen:
    """Raises CriuUnusable where no CRIU works here, or a plugin is missing."""
    criu = known.look(program.find())
    plugins_of(asked.backend, asked.simulated)
    options = Options(
        session=True,
        file_locks="file-locks" in asked.allow,
        tcp_close="tcp-close" in asked.allow,
        tcp_established="tcp-established" in asked.allow,
        unix_names=frozenset([asked.listener]),
        ip_sockets=saves_ip_sockets(criu.version),
        device_files=_devices(asked),
    )
    pids, found = _looked_at(asked, options)
    sentences = tuple(f"process {each.pid}: {each.object}" for each in found)
    return ops.Seen(tuple(pids), sentences, found[0].remedy if found else "")


def _looked_at(asked: ops.Look, options: Options) -> tuple[Sequence[int], Sequence[Obstacle]]:
    """Looks again for a moment where something is in the way: a connection is accepted next, say. The tree runs on."""
    end = time.monotonic() + PASSES_S
    while True:
        pids, found = tree.looked_at(asked.root, asked.members, options)
        if not found or time.monotonic() > end:
            return pids, found
        time.sleep(LOOK_S)


def _devices(asked: ops.Look) -> tuple[str, ...]:
    return (*device_files(), *files_saved(asked.backend, asked.simulated), *asked.device_files)
