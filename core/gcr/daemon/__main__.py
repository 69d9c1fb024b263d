"""`python -m gcr.daemon`: the first command that needs it starts it; ends after an idle hour or `gcr daemon stop`."""

import gcr.starting

# isort: split
import argparse
import logging
import logging.handlers
import os
import signal
import sys
import threading
import time

from gcr.config import admitted, load
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.inherited import take_over
from gcr.daemon.keeping import Keeping
from gcr.daemon.limits import lift_limits
from gcr.daemon.locked import settle_all
from gcr.daemon.missed import Missed
from gcr.daemon.seat import Seat, SeatTaken
from gcr.daemon.server import Server
from gcr.errors import GcrError, UnsafeRuntime
from gcr.exits import leave
from gcr.job.journal import Journal
from gcr.rendezvous import former
from gcr.rendezvous.folder import DaemonFolder
from gcr.rendezvous.launch import LOG
from gcr.rendezvous.presence import Presence
from gcr.runtime import log_dir, socket_path

gcr.starting.imported()

log = logging.getLogger("gcr.daemon")

LOOK_EVERY = 1.0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="gcrd")
    parser.add_argument("--allow-uid", type=int, action="append", default=[], help="a user to serve besides our own")
    parser.add_argument("--succeed", action="store_true", help="wait for the end of a daemon that serves")
    options = parser.parse_args(argv)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a supervisor's thread, which blocks signals, may have started us
    _set_up_log()
    for stays in lift_limits():
        log.warning("inherited from the shell that started the daemon, and so a limit of every job: %s", stays)
    try:
        config = load({})
    except GcrError as error:
        log.error("not started: %s", error)
        return 1
    try:
        path = socket_path()
        allowed = frozenset({os.getuid(), 0, *options.allow_uid, *admitted(config)})
        shared = not allowed <= {os.getuid(), 0}
        seat = Seat.take(path, DaemonFolder.of(path), succeeds=options.succeed, shared=shared)
    except GcrError as error:  # the directory is not ours
        log.error("not started: %s", error)
        return 1
    except (SeatTaken, OSError) as error:  # another daemon was faster
        log.info("not started: %s", error)
        return 0
    coordinator = Coordinator(config, Journal(seat.folder.journal))
    server = Server(seat.listener, coordinator, allowed, Presence(seat.folder.path))
    coordinator.jobs.missed = Missed(seat.folder.path)
    take_over(coordinator.journal, path)
    former.settle()
    server.arrivals.load_journal()
    signal.signal(signal.SIGTERM, lambda _number, _frame: server.stop())
    threading.Thread(target=settle_all, name="gcr-locked", daemon=True).start()  # CRIU may be at work still
    threading.Thread(target=_look_after, args=(server,), name="gcr-look-after", daemon=True).start()
    Keeping(seat, server).start()
    log.info("gcrd %d serves %s", os.getpid(), path)
    server.serve_forever()
    seat.leave()
    coordinator.fleet.close()
    log.info("gcrd ends")
    return 0


def _look_after(server: Server) -> None:
    coordinator = server.coordinator
    busy_at = time.monotonic()
    while not server.stopping.wait(LOOK_EVERY):
        try:
            server.door.end_half_open()
            server.arrivals.look_after()
            server.unsettled.look()
            coordinator.residents.keep_spare()
            coordinator.residents.settle()
            coordinator.fleet.retire(coordinator.config.worker_idle_s, coordinator.keeps_worker)
            if not any(job.busy for job in coordinator.jobs.all()):
                coordinator.fleet.keep_ready(coordinator.config.worker_idle_s)
            if coordinator.jobs.all():
                busy_at = time.monotonic()
            elif time.monotonic() - busy_at > coordinator.config.daemon_idle_s:
                server.stop()
        except Exception:
            log.exception("looking after the jobs")


def _set_up_log() -> None:
    handler = _log_handler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=os.environ.get("GCR_LOG_LEVEL", "INFO"), handlers=[handler])


def _log_handler() -> logging.Handler:
    """The log file; where it cannot be written, standard error: a log keeps no job from coming back."""
    try:
        return logging.handlers.RotatingFileHandler(log_dir() / LOG, maxBytes=8 << 20, backupCount=3)
    except (OSError, UnsafeRuntime):
        return logging.StreamHandler()


class OneLine(logging.Formatter):
    """Control characters in a message are written as escapes: a peer that sends some makes no line of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
