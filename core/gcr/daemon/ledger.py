"""The daemon's log of transactions: one INFO line each, done or not, with the job, bytes, seconds, and the caller."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from gcr.api.answers import Answer
from gcr.api.reports import RestoreReport, SwapReport, TransferReport
from gcr.errors import GcrError, Refused
from gcr.protocol.seqpacket import PeerIdentity

log = logging.getLogger("gcr.daemon")

LONGEST = 200  # characters of a command line in the log


class Entry(Struct, frozen=True):
    """One request of a client. Made when it arrives, since its process may have left when it is done."""

    op: str
    body: Mapping[str, Any]
    who: str
    began: float = field(default_factory=time.monotonic)

    def done(self, answer: Answer) -> None:
        """Logs the reports; answers of commands that only look have none."""
        if isinstance(answer, SwapReport):
            self._write("checkpoint", answer.out, answer.out.wall_s)
            self._write("restore", answer.back, answer.back.wall_s)
        elif isinstance(answer, TransferReport):
            self._write(self.op, answer, time.monotonic() - self.began)

    def failed(self, error: GcrError) -> None:
        """Logs an error, also of commands that only look: the log has every error that a user was shown."""
        names = [str(self.body[name]) for name in ("target", "out", "in") if self.body.get(name)]
        about = f"job {', '.join(names)}: " if names else ""
        how = "refused" if isinstance(error, Refused) else "failed"
        state = f", {error.state}" if error.state else ""
        passed = time.monotonic() - self.began
        line = "%s%s %s%s: %s: %s; %.3f s; asked by %s"
        log.info(line, about, self.op, how, state, error.code, error.message, passed, self.who)

    def _write(self, what: str, report: TransferReport, seconds: float) -> None:
        line = "job %s: %s done, %s: %d bytes, %.3f s%s; asked by %s"
        log.info(line, report.job, what, report.state, report.bytes, seconds, _extras(report), self.who)


def _extras(report: TransferReport) -> str:
    if isinstance(report, RestoreReport):
        return f", moved {dict(report.moved)}" if report.moved else ""
    return f", stopped {report.stop_s:.3f} s" + (f", image {report.image}" if report.image else "")


def asked_by(peer: PeerIdentity) -> str:
    """`uid 1000, pid 4711: gcr checkpoint llm`, on one line."""
    try:
        raw = Path(f"/proc/{peer.pid}/cmdline").read_bytes()
    except OSError:
        raw = b""
    words = raw.decode(errors="replace").replace("\0", " ").strip()
    said = "".join(char if char.isprintable() else "?" for char in words)[:LONGEST]
    return f"uid {peer.uid}, pid {peer.pid}: {said or 'a process that has left'}"
