"""Started by gcrd: `python -m gcr.worker BACKEND DEVICE FD`. Ends when the daemon's socket closes."""

import gcr.starting

# isort: split
import logging
import os
import socket
import sys
import threading
import time
from functools import partial

from gcr import descriptors
from gcr.config import load
from gcr.drain import DataDrain
from gcr.errors import GcrError
from gcr.memory.arena import Arena
from gcr.memory.hostmemory import available_host_bytes
from gcr.plugins import asked, load_backend
from gcr.protocol.channel import Channel, Request
from gcr.protocol.servers import COORDINATOR
from gcr.worker.attachment import Attachment
from gcr.worker.guarded import guarded
from gcr.worker.holdings import Holdings
from gcr.worker.service import WorkerService

gcr.starting.imported()

log = logging.getLogger("gcr.worker")

REFILL_THREADS = 12  # most by default: they read 49 GB/s where an H200's link carries 53


class Starting:
    """Answers while the context is being made: every request waits for it, or hears why there is none."""

    def __init__(self, backend: str, device: str) -> None:
        self._done = threading.Event()
        self._service: WorkerService | None = None
        self._error: GcrError | None = None
        threading.Thread(target=self._start, args=(backend, device), name="gcr-start", daemon=True).start()

    def serve(self, request: Request) -> None:
        self._done.wait()
        if self._error:
            raise self._error
        assert self._service
        self._service.serve(request)

    def _start(self, backend: str, device: str) -> None:
        try:
            self._service = make_service(backend, device)
        except GcrError as error:
            self._error = error
        except Exception as error:  # a broken driver or plugin: the daemon must hear of it, not wait
            log.exception("worker of %s cannot start", device)
            self._error = GcrError(f"the worker of {device} cannot start: {error}")
        self._done.set()


def open_drain(backend: str, device: str) -> DataDrain:
    return guarded(backend, asked(backend, partial(load_backend(backend).drain, device)))


def make_service(backend: str, device: str) -> WorkerService:
    began = time.monotonic()
    config = load({})
    attachment = Attachment(lambda: open_drain(backend, device))
    attachment.attach()
    limit = int(available_host_bytes() * config.arena_share)
    cores = len(os.sched_getaffinity(0))
    arena = Arena(
        attachment.pin,
        attachment.unpin,
        segment_bytes=config.segment_bytes,
        limit_bytes=limit,
        threads=min(config.threads, max(1, cores // 2)),
        hurry=cores,
    )
    threads = config.refill_threads or max(1, min(REFILL_THREADS, cores * 3 // 4))
    holdings = Holdings(attachment, arena, device, leaves_copies=config.keep_copy)
    return WorkerService(holdings, time.monotonic() - began, threads)


def main(argv: list[str]) -> int:
    backend, device, fd = argv[0], argv[1], int(argv[2])
    logging.basicConfig(level=os.environ.get("GCR_LOG_LEVEL", "INFO"), format="%(asctime)s worker %(message)s")
    descriptors.raise_limit(descriptors.ROOM_FOR_HANDLES)
    over = threading.Event()
    channel = Channel(
        socket.socket(fileno=fd),
        Starting(backend, device).serve,
        on_close=lambda _channel: over.set(),
        name="gcrd",
        bounds=COORDINATOR,
    )
    channel.start()
    over.wait()
    os._exit(0)  # the kernel gives back the context, the pinned memory and every descriptor


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
