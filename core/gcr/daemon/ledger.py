"""The daemon's log of events and of requests: one line each, with the job, bytes, seconds, and the caller.

The line of a checkpoint or a restore is made from its event (gcr.api.jobevents). An error of any other request, also of
one that only looks, is a line by itself: the log has every error that a user was shown.
"""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from gcr.api import jobevents
from gcr.api.jobevents import AnyEvent
from gcr.errors import GcrError, Refused
from gcr.protocol.seqpacket import PeerIdentity

log = logging.getLogger("gcr.daemon")

LONGEST = 200  # characters of a command line in the log

# Of thousands of processes, told again when it is over, or noted under a lock that agents wait for.
_QUIET = (
    jobevents.JobRegistered,
    jobevents.ProcessAttached,
    jobevents.ProcessEnded,
    jobevents.BegunEvent,
    jobevents.SaveDone,
)


class Entry(Struct, frozen=True):
    """One request of a client. Made when it arrives, since its process may have left when it is done."""

    op: str
    body: Mapping[str, Any]
    who: str
    began: float = field(default_factory=time.monotonic)

    def failed(self, error: GcrError) -> None:
        """Logs an error, unless an event has told of it."""
        if is_told(error):
            return
        names = [str(self.body[name]) for name in ("target", "out", "in") if self.body.get(name)]
        about = f"job {', '.join(names)}: " if names else ""
        passed = time.monotonic() - self.began
        log.info("%s", _failed(about + self.op, error, passed, self.who))


def tell(error: GcrError) -> None:
    """Notes on an error that an event has told of it."""
    vars(error)["told"] = True


def is_told(error: GcrError) -> bool:
    return "told" in vars(error)


def log_event(event: AnyEvent) -> None:
    """Logs an event; the start of the daemon and a lack of events have no line."""
    if line := _line(event):
        about = f"job {event.job}: " if isinstance(event, jobevents.JobEvent) else ""
        log.log(_level(event), "%s%s", about, line)


def _level(event: AnyEvent) -> int:
    if isinstance(event, _QUIET):
        return logging.DEBUG
    if isinstance(event, jobevents.ImageFailed):
        return logging.ERROR
    return logging.WARNING if isinstance(event, jobevents.SupervisorGone) else logging.INFO


def _line(event: AnyEvent) -> str | None:
    match event:
        case jobevents.DaemonStarted() | jobevents.EventsMissed():
            return None
        case jobevents.JobRegistered():
            return f"registered, of user {event.uid}{', SIMULATED' * event.simulated}"
        case jobevents.JobEnded():
            return f"ended, {event.state}"
        case jobevents.JobReleased():
            return "runs without gcr again"
        case jobevents.SupervisorGone():
            return "its supervisor is gone; adopted"
        case jobevents.JobRecovered():
            return event.action
        case jobevents.ProcessAttached():
            return f"process {event.pid} attached, {event.backend}"
        case jobevents.ProcessEnded():
            return f"process {event.pid} ended, {event.state}"
        case jobevents.ImageWritten():
            return f"image {event.image} is durable after {event.durable_s:.2f} s: {event.bytes_written} bytes written"
        case jobevents.ImageFailed():
            return f"image {event.image} was not written: {event.message}"
        case jobevents.SaveDone() | jobevents.SaveFailed():
            return _of_save(event)
        case jobevents.ImagesRemoved() | jobevents.RemovalFailed():
            return _of_removal(event)
        case _:
            return _of_command(event)


def _of_save(event: jobevents.SaveDone | jobevents.SaveFailed) -> str:
    if isinstance(event, jobevents.SaveFailed):
        return f"save of {event.of} failed: {event.code}: {event.message}; {event.took_s:.3f} s"
    times = f"aside {event.aside_s:.3f} s, safe {event.safe_s:.3f} s, drained {event.took_s:.3f} s"
    return f"save of {event.of}: {event.bytes} bytes, {times}"


def _of_removal(event: jobevents.ImagesRemoved | jobevents.RemovalFailed) -> str:
    if isinstance(event, jobevents.RemovalFailed):
        how = "refused" if event.exit == Refused.exit else "failed"
        return f"{event.command} {how} in {event.store}: {event.code}: {event.message}; asked by {event.by}"
    freed = f"{event.count} images of {event.store}, {event.bytes_freed} bytes free, {event.took_s:.3f} s"
    return f"{event.command} done: {freed}; asked by {event.by}"


def _of_command(event: jobevents.CommandEvent) -> str:
    what = jobevents.command_of(event)
    match event:
        case jobevents.DoneEvent():
            done = f"{what} done, {event.state}: {event.bytes} bytes, {event.took_s:.3f} s"
            return f"{done}{_extras(event)}; asked by {event.by}"
        case jobevents.FailedEvent():
            return _failed(what, event, event.took_s, event.by)
        case _:
            return f"{what} begun; asked by {event.by}"


def _extras(event: jobevents.DoneEvent) -> str:
    match event:
        case jobevents.CheckpointDone():
            return f", stopped {event.stop_s:.3f} s" + (f", image {event.image}" if event.image else "")
        case jobevents.RestoreDone() if event.moved:
            return f", moved {dict(event.moved)}"
        case _:
            return ""


def _failed(what: str, failure: GcrError | jobevents.FailedEvent, seconds: float, by: str) -> str:
    how = "refused" if failure.exit == Refused.exit else "failed"
    left = f", {failure.state}" if failure.state else ""
    return f"{what} {how}{left}: {failure.code}: {failure.message}; {seconds:.3f} s; asked by {by}"


def asked_by(peer: PeerIdentity) -> str:
    """`uid 1000, pid 4711: gcr checkpoint llm`, on one line."""
    try:
        raw = Path(f"/proc/{peer.pid}/cmdline").read_bytes()
    except OSError:
        raw = b""
    words = raw.decode(errors="replace").replace("\0", " ").strip()
    said = "".join(char if char.isprintable() else "?" for char in words)[:LONGEST]
    return f"uid {peer.uid}, pid {peer.pid}: {said or 'a process that has left'}"
