"""A program that comes back from an image: CRIU makes it and its descendants again, as children of the supervisor.

The processes stand still until the daemon has taken the job in. Then their agents find the daemon, and wait to be
restored to their devices: that is `gcr restore`, as for any suspended job.
"""

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from threading import Thread

from msgspec import Struct

from gcr.criu import messages, tree
from gcr.criu.tree import SavedTree
from gcr.errors import GcrError
from gcr.job.decisions import KeptImage, text_of
from gcr.job.stopped import StoppedJob
from gcr.protocol.operations.daemon import ParkedIn, Remade, Revived, Vacate
from gcr.protocol.operations.operation import Nothing, Operation

RESTORE_S, RESTORE_BYTES_PER_S = 60.0, 100e6  # CRIU's time, and more for each byte


class Returned(Struct):
    """A child that CRIU made; `subprocess.Popen`, as far as a supervisor needs it."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """Returns as `Popen.poll`."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


class Revival(Struct, frozen=True):
    """A job in a folder, as `gcr checkpoint --stop` has left it in its image.

    criu: the program · folder: with CRIU's files · image: where its device memory is · plugins: of CRIU's
    in_place: it comes back on the devices that it left
    prepare: called by the starter beside the registration of the job; there is no process before it returns
    let_go: called in the half that stays of a detached job, which has descriptors of its starter's
    await_files: returns whether all of CRIU's files but those of pages are there by now
    filling: within its block the memory that CRIU's files lack is written to the processes, which CRIU has made and
    holds; nothing writes to them any more once it is over, with an error or without
    bytes: of all files and that memory
    """

    criu: Path
    folder: Path
    stopped: StoppedJob
    saved: SavedTree
    image: KeptImage
    plugins: Sequence[Path] = ()
    in_place: bool = False
    prepare: Callable[[], object] = lambda: None
    let_go: Callable[[], object] = lambda: None
    await_files: Callable[[], bool] = lambda: False
    filling: Callable[[], AbstractContextManager[object]] = nullcontext
    bytes: int = 0

    @property
    def fills(self) -> ParkedIn | None:
        """The image that the devices may be filled with before the processes are there; None for none.

        The daemon has no key of an encrypted store. A process that copies by itself takes no memory of another.
        """
        copies = any(each.copied_out for each in self.stopped.decision.processes)
        if self.image.encrypted or copies or not self.in_place or not self.device_bytes:
            return None
        return ParkedIn(self.image.store, self.image.name)

    @property
    def device_bytes(self) -> int:
        return sum(sum(each.bytes.values()) for each in self.stopped.decision.processes)

    def get_ready(self) -> None:
        """Loads what `bring_back` needs, while its files come."""
        messages.prepare()

    def refuse_impossible(self, log: str | None) -> None:
        """Raises FilesChanged, WrongImage where it cannot come back now. Touches nothing."""
        tree.refuse_changed(self.saved, log)

    def bring_back(
        self,
        log: str | None,
        tell: Callable[[Operation[Nothing]], object],
        may_begin: Callable[[], object] = lambda: None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Returned:
        """Makes the processes again; `tell` tells the daemon before one of them runs. Raises NotRestored, PeerGone …

        log: the job's own. Where the job wrote to it, our standard output takes its place.
        may_begin: returns once there may be processes. CRIU is started before, where its first files are there.
        meanwhile: called before that, while CRIU gets ready
        """
        if not self.await_files():
            meanwhile()
            may_begin()
            may_begin = meanwhile = lambda: None
        streams, limit = tree.streams_of(self.saved, log), RESTORE_S + self.bytes / RESTORE_BYTES_PER_S

        def ready() -> None:
            may_begin()
            tree.await_ids(self.saved, partial(_vacate, tell))

        def taken_in() -> None:
            with self.filling():  # beside the daemon, which writes down its decision
                record = self.stopped.as_restored(self.image)
                tell(Revived(self.stopped.root, text_of(record).decode()))

        known = partial(tell, Remade()) if self.plugins else lambda: None  # it asks for what a plugin brings back
        made = self.criu, self.folder, self.saved, streams, self.plugins, limit
        tree.bring_back(*made, taken_in, known, ready, meanwhile)
        _remove_later(self.folder)
        return Returned(self.stopped.root)


def _vacate(tell: Callable[[Operation[Nothing]], object], used: Sequence[int]) -> None:
    with suppress(GcrError):  # the daemon has died, and its helpers end
        tell(Vacate(tuple(used)))


def _remove_later(folder: Path) -> None:
    """Removes CRIU's files beside what follows: 1 GiB takes 0.1 to 0.2 s. The folder has its lock until then.

    It has another name meanwhile, so that its maker does not remove it as well, and wait for that.
    """
    with suppress(OSError):
        folder = folder.rename(folder.with_name(f"{folder.name}-over"))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # those of the program are the caller's
    try:
        Thread(target=shutil.rmtree, args=(folder, True), name="gcr-tidy", daemon=True).start()
    except RuntimeError:  # the system has no thread left
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
