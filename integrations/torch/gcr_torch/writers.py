"""The writers of a Checkpointer's saves: all write in one way, by one save helper."""

from collections.abc import Iterable, Sequence
from functools import partial

from gcr.checkpoints.helper import SaveHelper
from gcr.checkpoints.marks import Marks
from gcr.checkpoints.region import Region
from gcr.checkpoints.run import Run
from gcr.checkpoints.share import File, Share
from gcr.checkpoints.tuning import check_way
from gcr_torch.writer import Writer


class Writers:
    """Makes writers of a run whose lock is held.

    threads, chunk_bytes: as of Writer · keep: `keep_last` and `keep_every` of the run
    """

    def __init__(self, run: Run, threads: int, chunk_bytes: int, keep: tuple[int | None, int | None]) -> None:
        """Raises UsageError."""
        check_way(threads, chunk_bytes)
        self._run, self._threads, self._chunk_bytes = run, threads, chunk_bytes
        self._keep, self._helper = keep, SaveHelper()

    def writer(self, regions: Sequence[Region], marks: Marks) -> Writer:
        """Returns the writer of one save. `regions`: memory where its tensors lie."""
        write, size, threads = partial(self._write, regions), self._chunk_bytes, self._threads
        return Writer(self._run, chunk_bytes=size, threads=threads, is_locked=True, write=write, marks=marks)

    def _write(
        self, regions: Sequence[Region], run: Run, step: int, files: Iterable[File], chunk_bytes: int, threads: int
    ) -> Share:
        going = run.going(step, *self._keep)
        return self._helper.write(regions, run, step, files, chunk_bytes, threads, going)

    def close(self) -> None:
        """Ends the save helper."""
        self._helper.close()
