"""Saves a step: each rank writes its bytes into a pack, and the coordinator publishes one manifest last.

The coordinator holds the lock of the run, the store's lock and the claim of the image's name from before any rank
writes until the end. So no clean-up takes a pack that a rank has finished, no other process saves into the run, and a
save that loses a rank or the coordinator leaves no step, but files that the next clean-up removes.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack

from msgspec import Struct

from gcr.checkpoints.marks import Marks
from gcr.checkpoints.run import Run
from gcr.checkpoints.share import DEFAULT_CHUNK_BYTES, THREADS, File, Share, write_files
from gcr.checkpoints.steps import RECORD
from gcr.errors import GcrError
from gcr.faults import reach
from gcr.hashing.chunks import check_chunk_bytes
from gcr.image.disk.failing import usable
from gcr.image.disk.locking import running
from gcr.image.files.imagedfile import ImagedFile
from gcr.image.files.manifest import Beside, Costs, Cut, Manifest, Source
from gcr.image.store.claim import Claim
from gcr.image.write.joining import joined, refuse_missing
from gcr.image.write.publishing import Contents, publish
from gcr.imageerrors import ImageExists, StepExists
from gcr.version import __version__

log = logging.getLogger(__name__)

LOCK_SUFFIX = ".run"


class Framework(Struct, frozen=True):
    """The program that saves: its name, and the versions of what wrote the step."""

    name: str
    versions: Mapping[str, str]


def write_share(
    run: Run,
    step: int,
    files: Iterable[File],
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    threads: int = THREADS,
    going: Collection[str] = (),
) -> Share:
    """Writes the share of one rank in a step of a run, as `write_files`. Raises UnsafeRuntime and WrongKey as well."""
    return write_files(run.store(), run.image(step), files, chunk_bytes, threads, going)


WriteShare = Callable[[Run, int, Sequence[File], int], Share]
"""Writes files in chunks of so many bytes, as `write_share` does."""


class Saving:
    """The coordinator's side of one save. It holds its locks until `close`, which may be called again.

    A child that is forked meanwhile has none of the locks. `is_locked`: the caller has `locked`.
    marks: of the call that asked for the save; None: it is asked for now
    """

    def __init__(
        self,
        run: Run,
        step: int,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        *,
        is_locked: bool = False,
        marks: Marks | None = None,
    ) -> None:
        """Claims the step. Raises RunBusy, StepExists, StoreUnusable, UnsafeRuntime, WrongKey, UsageError."""
        check_chunk_bytes(chunk_bytes)
        self.run, self.step, self._chunk_bytes, self._marks = run, step, chunk_bytes, marks or Marks()
        self._pid = os.getpid()
        self._store = run.store()
        with ExitStack() as begun, usable(self._store.path):
            if not is_locked:
                begun.enter_context(locked(run))
            self._store.sweep()
            if run.url:
                self._refuse_listed()
            begun.enter_context(self._store.used())
            self._claim = self._claimed(begun)
            reach("checkpoint.begun")
            self._stack = begun.pop_all()

    def _refuse_listed(self) -> None:
        """Raises StepExists for a step that the bucket has; removes one that the folder alone has."""
        if self.step in self.run.steps():
            raise StepExists(f"run {self.run.name} at {self.run.url} has step {self.step} already")
        self.run.remove([self.step])

    def _claimed(self, begun: ExitStack) -> Claim:
        try:
            claim = begun.enter_context(self._store.claimed(self.run.image(self.step)))
        except ImageExists as error:
            text = f"run {self.run.name} has step {self.step} already, or it is being saved just now"
            raise StepExists(text, hint=f"gcr rm {self.run.image(self.step)} --store {self._store.path}") from error
        begun.callback(claim.withdraw)
        return claim

    def commit(
        self,
        shares: Sequence[Share],
        record: bytes,
        world: int,
        framework: Framework,
        write: WriteShare = write_share,
    ) -> Manifest:
        """Publishes the step with the shares of all ranks; it outlives any crash when this returns. Closes.

        record: says what the files are, for the reader, and is written by `write` · world: number of ranks
        Raises StoreUnusable, Damaged if this process does not see a rank's pack.
        """
        self._marks.mark("written")
        reach("checkpoint.commit")
        try:
            with usable(self._store.path):
                own = write(self.run, self.step, [(RECORD, memoryview(record))], self._chunk_bytes)
                every = [*shares, own]
                refuse_missing(self._store, [share.part for share in every])
                part = joined([share.part for share in every])
                files = [file for share in every for file in share.files]
                manifest = publish(
                    self._store, self._claim, part, None, lambda found: self._described(found, files, world, framework)
                )
            if self.run.url:
                self._send()
        finally:
            self.close()
        reach("checkpoint.published")
        if self.run.url:
            self._forget_others()
        log.info(
            "run %s: step %d saved: %d of %d bytes written, as %d, by %d ranks in %.2f s",
            *(self.run.name, self.step, manifest.costs.bytes_written, manifest.costs.bytes_total),
            *(part.counts.stored, world, self._marks.elapsed()),
        )
        return manifest

    def _send(self) -> None:
        """Pushes the step. It is no step of the run if that fails, and so must not stay here."""
        try:
            self.run.elsewhere.send(self._store, self._claim.name, self.step)
        except BaseException:
            self.run.remove([self.step])
            raise

    def _forget_others(self) -> None:
        try:
            self.run.keep_only(self.step)
        except (GcrError, OSError) as error:
            log.warning("run %s: earlier steps stay in %s: %s", self.run.name, self._store.path, error)

    def _described(self, contents: Contents, files: Sequence[ImagedFile], world: int, framework: Framework) -> Manifest:
        return Manifest(
            name=self._claim.name,
            cut=Cut.APP,
            created=self._marks.created,
            source=Source(
                job=self.run.name,
                backend=framework.name,
                simulated=False,
                versions={"gcr": __version__, **framework.versions},
                models={},
                progress={"step": self.step, "world": world},
            ),
            processes=(),
            packs=tuple(contents.packs),
            beside=Beside(contents.chunks, contents.hashes),
            costs=Costs(
                bytes_total=contents.counts.total,
                bytes_zero=contents.counts.zero,
                bytes_written=contents.counts.written,
                bytes_stored=None if contents.counts.stored == contents.counts.written else contents.counts.stored,
            ),
            chunk_bytes=self._chunk_bytes,
            timings=self._marks.seconds(),
            files=tuple(files),
        )

    def close(self) -> None:
        """Lets go of the step and of all locks. A child that was forked meanwhile only forgets them."""
        stack, self._stack = self._stack, ExitStack()
        if os.getpid() != self._pid:
            stack.pop_all()
            return
        with usable(self._store.path):
            stack.close()


def locked(run: Run) -> AbstractContextManager[None]:
    """Keeps other processes, and other callers of this one, from saving into the run within the block.

    Raises RunBusy, StoreUnusable, UnsafeRuntime, WrongKey.
    """
    folder = run.store().images.folder
    return running(folder / f"{run.name}{LOCK_SUFFIX}", run.name)
