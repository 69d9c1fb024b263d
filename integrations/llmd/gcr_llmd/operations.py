"""Operations: snapshots and restores, each on a thread of its own, and the results of those that ended.

One operation at a time moves a job, and it does not end with the client that asked for it. If the agent is killed,
gcr's daemon undoes the transaction or has ended it. A new agent reads the state of each job from gcr.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from gcr.errors import GcrError
from gcr_llmd.wire import OperationStatus

log = logging.getLogger("gcr.llmd")

REMEMBERED = 1000  # ended operations
PENDING, COMPLETE = OperationStatus.OPERATION_STATUS_PENDING, OperationStatus.OPERATION_STATUS_COMPLETE
FAILED = OperationStatus.OPERATION_STATUS_FAILED


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of device data that moved. `host`: those that are on the host now; none after a restore."""

    host: int = 0
    device: int = 0

    def __add__(self, other: "Sizes") -> "Sizes":
        return Sizes(self.host + other.host, self.device + other.device)


class Busy(Exception):
    """A job has an operation under way."""


class Closed(Exception):
    """The agent ends and begins no more operations."""


@dataclass(slots=True)
class Operation:
    """One operation. `began` and `ended` are by the monotonic clock."""

    jobs: frozenset[str]
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    status: OperationStatus = PENDING
    sizes: Sizes = Sizes()
    error: str = ""

    @property
    def elapsed_ms(self) -> int:
        return int(((time.monotonic() if self.ended is None else self.ended) - self.began) * 1000)


class Operations:
    """The operations of an agent, by id, oldest first. Thread-safe."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._known: dict[str, Operation] = {}
        self._lock = threading.Condition()
        self._closed = False

    def begin(self, jobs: Collection[str], act: Callable[[], Sizes]) -> str:
        """Has `act` move the jobs, and returns the operation's id at once. Raises Busy, Closed."""
        operation, name = Operation(frozenset(jobs)), str(uuid.uuid4())
        thread = threading.Thread(target=self._run, args=(operation, act), name=f"gcr-llmd-{name}", daemon=True)
        with self._lock:
            if self._closed:
                raise Closed
            if operation.jobs & self._moving():
                raise Busy
            thread.start()
            self._known[name] = operation
        log.info("operation %s on %s begins", name, ", ".join(sorted(operation.jobs)))
        return name

    def get(self, name: str) -> Operation | None:
        with self._lock:
            return self._known.get(name)

    def moving(self) -> frozenset[str]:
        """Returns the jobs that have an operation under way."""
        with self._lock:
            return self._moving()

    def close(self, seconds: float) -> bool:
        """Begins no more operations. Returns False if some still run after so long."""
        with self._lock:
            self._closed = True
            return self._lock.wait_for(lambda: not self._moving(), seconds)

    def _moving(self) -> frozenset[str]:
        return frozenset[str]().union(*(each.jobs for each in self._known.values() if each.status is PENDING))

    def _run(self, operation: Operation, act: Callable[[], Sizes]) -> None:
        sizes, error = Sizes(), ""
        try:
            sizes = act()
        except GcrError as failed:
            error = text_of(failed)
        except Exception as failed:  # the client must hear of it, and the job is free for the next operation
            log.exception("an operation on %s failed", ", ".join(sorted(operation.jobs)))
            error = f"internal: {failed!r}"
        with self._lock:
            operation.sizes, operation.error, operation.ended = sizes, error, time.monotonic()
            operation.status = FAILED if error else COMPLETE
            self._forget()
            self._lock.notify_all()
        log.info("operation on %s ended after %d ms %s", ", ".join(sorted(operation.jobs)), operation.elapsed_ms, error)

    def _forget(self) -> None:
        """Forgets the oldest of the ended operations."""
        ended = [name for name, each in self._known.items() if each.status is not PENDING]
        for name in ended[: max(0, len(ended) - self._remembered)]:
            del self._known[name]


def text_of(error: GcrError) -> str:
    """Returns the error for a client: its code, its message, its hint, and notes of an undo that failed."""
    said = [f"{error.code}: {error.message}", error.hint, *getattr(error, "__notes__", [])]
    return "; ".join(each for each in said if each)
