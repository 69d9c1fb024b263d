"""The writers of a Checkpointer's saves: all write in one way, by one save helper."""

import time
from collections.abc import Iterable, Sequence
from functools import partial

from gcr.checkpoints.compression import Compression
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
    compression: of the chunks of this rank
    """

    def __init__(
        self,
        run: Run,
        threads: int,
        chunk_bytes: int,
        keep: tuple[int | None, int | None],
        compression: Compression,
    ) -> None:
        """Raises UsageError."""
        check_way(threads, chunk_bytes)
        self._run, self._threads, self._chunk_bytes = run, threads, chunk_bytes
        self._keep, self._helper = keep, SaveHelper()
        self.compression = compression
        self._shares: list[Share] = []  # of the save under way
        self._written_at = 0.0

    def writer(self, regions: Sequence[Region], marks: Marks) -> Writer:
        """Returns the writer of one save. `regions`: memory where its tensors lie."""
        self._shares.clear()
        write, size, threads = partial(self._write, regions), self._chunk_bytes, self._threads
        return Writer(self._run, chunk_bytes=size, threads=threads, is_locked=True, write=write, marks=marks)

    def _write(
        self, regions: Sequence[Region], run: Run, step: int, files: Iterable[File], chunk_bytes: int, threads: int
    ) -> Share:
        going, packing = run.going(step, *self._keep), self.compression.packing()
        share = self._helper.write(regions, run, step, files, chunk_bytes, threads, going, packing)
        self._shares.append(share)
        self._written_at = time.monotonic()
        return share

    def saved(self) -> None:
        """Takes note of how fast the store was; called once the save is made, and so sent where it goes to a bucket."""
        sent_s = time.monotonic() - self._written_at if self._run.url else 0.0
        for share in self._shares:
            self.compression.learn(share.part.pace, share.part.counts.written, sent_s)

    def close(self) -> None:
        """Ends the save helper."""
        self._helper.close()
