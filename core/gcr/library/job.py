"""A job in the hands of a program: wait for it, checkpoint it, restore it, end it."""

import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Literal, Self, TypeVar

from msgspec.structs import replace

from gcr import processes
from gcr.api.checks import MOST_SECONDS, check_seconds
from gcr.api.reports import CheckpointReport, Report, RestoreReport
from gcr.api.requests import CheckpointRequest, ImageRequest, NextJob, RestoreRequest
from gcr.errors import DeadlinePassed, EndUnknown, NoSuchJob
from gcr.image.crypto.key import KeySource
from gcr.image.store.location import store_of
from gcr.job import runs
from gcr.rendezvous.client import GRACE, Client

log = logging.getLogger("gcr.library")

CLOSE_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
NOTED_S = 5.0  # seconds within which the end of a program that is seen to have ended is written down
_POLL = 0.02

Told = TypeVar("Told", bound=Report)


class Job:
    """A job, or a single process that gcr did not start. Leaving its context closes it."""

    def __init__(self, target: str | int, pid: int | None, parent: "subprocess.Popen[bytes] | None" = None) -> None:
        self._target = target
        self._pid = pid
        self._parent = parent

    def __repr__(self) -> str:
        return f"Job({self._target!r}, pid={self._pid})"

    @property
    def name(self) -> str:
        """The job's name, or the pid, as any command line may call it."""
        return str(self._target)

    @property
    def target(self) -> str | int:
        """The same for the daemon: a pid is a number."""
        return self._target

    @property
    def pid(self) -> int:
        """The program's pid. Raises NoSuchJob for a job whose program is not known."""
        if self._pid is None:
            raise NoSuchJob(f"{self.name} has no process that is known")
        return self._pid

    @property
    def stdout(self) -> IO[bytes] | None:
        """The program's output, where `gcr.run` was given `subprocess.PIPE`."""
        return self._parent.stdout if self._parent else None

    @property
    def stderr(self) -> IO[bytes] | None:
        """The program's error output, as `stdout`."""
        return self._parent.stderr if self._parent else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the program to end: its exit code, 128+n for signal n.

        Raises DeadlinePassed after `timeout` seconds (None: never); EndUnknown once a process has ended that gcr did
        not start, or one whose `gcr run` was killed.
        """
        check_seconds(timeout)
        if self._parent is None:
            _wait_for_end(self.pid, timeout)
            return _noted_code(self.name, self.pid)
        try:
            return self._parent.wait(timeout)
        except subprocess.TimeoutExpired:
            raise DeadlinePassed(f"{self.name} still runs after {timeout:g} s", state="running") from None

    def checkpoint(
        self,
        *,
        timeout: float | None = None,
        data_only: bool = False,
        resident: bool = False,
        context_later: bool = False,
        then: NextJob | None = None,
        image: str | None = None,
        wait: Literal["vram", "durable"] = "vram",
        live: bool = False,
        leave_running: bool = False,
        processes: bool = False,
        stop: bool = False,
        container: bool = False,
        allow: Sequence[str] = (),
        paranoid: bool = False,
        max_bytes_per_s: float | None = None,
        store: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        key_command: str | None = None,
    ) -> CheckpointReport:
        """Suspend it and free its device memory. `timeout` in seconds; past it everything is undone.

        `data_only` leaves the driver's context on the device. `resident` leaves the memory there, beside its copy on
        the host, until another program needs the room; a later checkpoint without it frees that memory.
        `context_later` is `data_only` where the driver can save the context later, and changes nothing elsewhere: the
        `state` of the report tells. The context leaves at the next checkpoint, or once another program wants the room.
        `then`: the suspended job that comes in next; memory of it is refilled meanwhile, where there is room already.

        `image`: a name under which its device memory is written to disk as well, in the background unless `wait` is
        "durable"; into `store`, else where images are kept. `live` copies while it runs, `leave_running` does not take
        it off the device, `paranoid` compares bytes and not hashes alone. `processes`
        saves its processes as well; `stop` does, and ends them: `gcr.restore` brings them back. `container` leaves them
        to a container's runtime. `allow` is that of the command. The key of an encrypted store is in `key_file`, or
        printed by `key_command`, else where the settings say.
        Raises GcrError; `state` says what became of the job.
        """
        request = CheckpointRequest(
            target=self._target,
            timeout=timeout,
            image=image,
            store=_store(image, store),
            encrypted=bool(key_file or key_command),
            data_only=data_only,
            resident=resident,
            context_later=context_later,
            then=then,
            wait=wait,
            live=live,
            leave_running=leave_running,
            processes=processes,
            stop=stop,
            container=container,
            allow=tuple(allow),
            paranoid=paranoid,
            max_bytes_per_s=max_bytes_per_s,
        )
        return self._ask(request, CheckpointReport, _key(image, key_file, key_command, timeout))

    def restore(
        self,
        *,
        timeout: float | None = None,
        devices: Mapping[str | int, str | int] | None = None,
        without: Sequence[int] = (),
        image: str | None = None,
        store: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        key_command: str | None = None,
    ) -> RestoreReport:
        """Bring it back in place. `devices`: other ones to come back on, old to new, as `gcr devices` names them.

        `without`: pids of processes that the driver does not give back: these end, and the others come back.

        `image`: with the bytes of this one, made at the checkpoint where it is still suspended; its store and key as
        of `checkpoint`. Raises GcrError; `state` says what became of the job.
        """
        request = RestoreRequest(
            target=self._target,
            timeout=timeout,
            image=image,
            store=_store(image, store),
            encrypted=bool(key_file or key_command),
            devices={str(old): str(new) for old, new in (devices or {}).items()},
            without=tuple(without),
        )
        return self._ask(request, RestoreReport, _key(image, key_file, key_command, timeout))

    def close(self) -> None:
        """End the program if `gcr.run` started it: SIGTERM, and SIGKILL after a grace. Idempotent."""
        if self._parent is None:
            return
        if self._parent.poll() is None:
            self._end(self._parent)
        for pipe in (self._parent.stdout, self._parent.stderr):
            if pipe:
                pipe.close()

    def _end(self, parent: "subprocess.Popen[bytes]") -> None:
        parent.send_signal(signal.SIGTERM)
        try:
            parent.wait(CLOSE_GRACE)
        except subprocess.TimeoutExpired:
            log.warning("job %s: still running %g s after SIGTERM, killing it", self.name, CLOSE_GRACE)
            os.kill(self.pid, signal.SIGKILL)
            parent.wait(CLOSE_GRACE)

    def _ask(self, request: ImageRequest, kind: type[Told], key: KeySource) -> Told:
        began = time.monotonic()
        # Without a timeout the daemon's own deadlines end a transaction long before.
        wait = MOST_SECONDS if request.timeout is None else request.timeout + GRACE
        with key.lent() as fds, Client.connect() as client:
            asked = replace(request, encrypted=bool(fds))
            report = client.ask(asked, kind, fds, timeout=wait)
        log.info("job %s: %s took %.3f s", self.name, request.op, time.monotonic() - began)
        return report.timed(time.monotonic() - began)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _store(image: str | None, chosen: "str | os.PathLike[str] | None") -> str | None:
    return store_of(image, None if chosen is None else os.fspath(chosen))


def _key(
    image: str | None, file: "str | os.PathLike[str] | None", command: str | None, timeout: float | None
) -> KeySource:
    if not image:
        return KeySource()
    return KeySource.chosen(None if file is None else os.fspath(file), command, timeout)


def _wait_for_end(pid: int, timeout: float | None) -> None:
    """Wait for a process that is not our child."""
    identity = processes.identify(pid)
    watched = processes.pidfd_open(identity) if identity else None
    if watched is None:
        return
    try:
        if not select.select([watched], [], [], timeout)[0]:
            raise DeadlinePassed(f"process {pid} still runs after {timeout:g} s", state="running")
    finally:
        os.close(watched)


def _noted_code(job: str, pid: int) -> int:
    """Returns the exit code that the record of a job has of an ended program. Raises EndUnknown."""
    end = time.monotonic() + NOTED_S
    run = next((run for run in runs.runs_of(job) if run.pid == pid), None)
    while run and run.end is None and time.monotonic() < end:
        time.sleep(_POLL)
        run = runs.again(run)
    if run is None or run.end is None or run.end.code is None:
        raise EndUnknown(f"process {pid} has ended, and its exit code is not known", state="exited")
    return run.end.code
