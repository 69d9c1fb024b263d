"""The library: start a job or find one, checkpoint it, restore it.

Every call is synchronous and may be made from any thread: each has a connection of its own. Nothing is printed; the
logger is `gcr`.
"""

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from gcr import processes
from gcr.client import GRACE, Client
from gcr.errors import DaemonUnavailable, DeadlinePassed, NoSuchJob, Refused, UsageError
from gcr.image.key import KeySource
from gcr.image.place import store_path
from gcr.names import JOB_NAME
from gcr.report import CheckpointReport, RestoreReport, SwapReport

log = logging.getLogger(__name__)

REGISTER_TIMEOUT = 30.0  # seconds from spawning `gcr run` to the daemon knowing the job
CLOSE_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
NO_TIMEOUT = 86400.0  # the daemon's own deadlines end a transaction long before
_POLL = 0.02
_FAILED_BEFORE_START = 125


class Job:
    """A job, or a single process that gcr did not start. Leaving its context closes it."""

    def __init__(self, target: str | int, pid: int | None, parent: "subprocess.Popen[bytes] | None" = None) -> None:
        self._target = target
        self._pid = pid
        self._parent = parent

    @property
    def name(self) -> str:
        """What every command line may call it: the job's name, or the pid."""
        return str(self._target)

    @property
    def target(self) -> str | int:
        """The same for the daemon: a pid is a number."""
        return self._target

    @property
    def pid(self) -> int:
        """The program's. Raises NoSuchJob for one that ended before the daemon could name it."""
        if self._pid is None:
            raise NoSuchJob(f"{self.name} ended before its process could be named")
        return self._pid

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the program to end: its exit code, 128+n for signal n; None when somebody else started it.

        Raises DeadlinePassed after `timeout` seconds; None waits for ever.
        """
        if self._parent is None:
            _wait_for_end(self.pid, timeout)
            return None
        try:
            return self._parent.wait(timeout)
        except subprocess.TimeoutExpired:
            raise DeadlinePassed(f"{self.name} still runs after {timeout:g} s", state="running") from None

    def checkpoint(
        self,
        *,
        timeout: float | None = None,
        data_only: bool = False,
        image: str | None = None,
        wait: Literal["vram", "durable"] = "vram",
        live: bool = False,
        leave_running: bool = False,
        paranoid: bool = False,
        max_bytes_per_s: float | None = None,
        store: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        key_command: str | None = None,
    ) -> CheckpointReport:
        """Suspend it and free its device memory. `timeout` in seconds; past it everything is undone.

        `data_only` leaves the driver's context on the device. `image`: a name under which its device memory is written
        to disk as well, in the background unless `wait` is "durable"; into `store`, else where images are kept. `live`
        copies while it runs, `leave_running` does not take it off the device, `paranoid` compares bytes and not hashes
        alone: for an image, as the rate is. The key of an encrypted store is in `key_file`, or printed by
        `key_command`, else where the settings say.
        Raises GcrError; `state` says what became of the job.
        """
        body: dict[str, Any] = {"data_only": data_only}
        _check_seconds(timeout)
        if image is not None:
            _check_image(image, wait, max_bytes_per_s)
            body |= {"image": image, "wait": wait, "live": live, "leave_running": leave_running}
            body |= {"paranoid": paranoid, "max_bytes_per_s": max_bytes_per_s, "store": _store(store)}
        elif live or leave_running or paranoid or wait != "vram":
            raise UsageError("live, leave_running, paranoid and waiting for a disk are for a checkpoint with an image")
        key = _key(image, key_file, key_command, timeout)
        return CheckpointReport.from_json(self._ask("checkpoint", timeout, body, key))

    def restore(
        self,
        *,
        timeout: float | None = None,
        devices: Mapping[str | int, str | int] | None = None,
        image: str | None = None,
        store: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        key_command: str | None = None,
    ) -> RestoreReport:
        """Bring it back in place. `devices`: other ones to come back on, old to new, as `gcr devices` names them.

        `image`: with the bytes of this one, made at the checkpoint where it is still suspended; its store and key as
        of `checkpoint`. Raises GcrError; `state` says what became of the job.
        """
        _check_seconds(timeout)
        if image is not None:
            _check_image(image)
        body: dict[str, Any] = {"image": image, "store": _store(store)} if image else {}
        if devices:
            body["devices"] = {str(old): str(new) for old, new in devices.items()}
        key = _key(image, key_file, key_command, timeout)
        return RestoreReport.from_json(self._ask("restore", timeout, body, key))

    def close(self) -> None:
        """End the program if `gcr.run` started it: SIGTERM, and SIGKILL after a grace. Idempotent."""
        if self._parent is None or self._parent.poll() is not None:
            return
        self._parent.send_signal(signal.SIGTERM)
        try:
            self._parent.wait(CLOSE_GRACE)
        except subprocess.TimeoutExpired:
            log.warning("job %s: still running %g s after SIGTERM, killing it", self.name, CLOSE_GRACE)
            os.kill(self.pid, signal.SIGKILL)
            self._parent.wait(CLOSE_GRACE)

    def _ask(self, command: str, timeout: float | None, body: Mapping[str, Any], key: KeySource) -> dict[str, Any]:
        began = time.monotonic()
        wait = NO_TIMEOUT if timeout is None else timeout + GRACE
        with key.lent() as fds, Client.connect() as client:
            asked = {**body, "target": self._target, "timeout": timeout, **({"encrypted": True} if fds else {})}
            answer = client.request(command, asked, fds, timeout=wait)
        log.info("job %s: %s took %.3f s", self.name, command, time.monotonic() - began)
        return {**answer, "wall_s": time.monotonic() - began}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run(
    program: Sequence[str], *, name: str | None = None, simulate: str | None = None, backend: str | None = None
) -> Job:
    """Start `program` as a job, with our stdout and stderr, and return once the daemon knows it.

    `simulate` names a vendor whose SIMULATED device the program shall see. Raises UsageError, Refused.
    """
    _check_name(name)
    options = {"--name": name, "--simulate": simulate, "--backend": backend}
    flags = [word for flag, value in options.items() if value is not None for word in (flag, value)]
    _check_daemon()
    parent = subprocess.Popen([sys.executable, "-m", "gcr", "run", *flags, "--", *program], stdin=subprocess.DEVNULL)
    try:
        return _await_registration(parent, name)
    except BaseException:
        parent.terminate()
        parent.wait(CLOSE_GRACE)
        raise


def attach(target: str | int) -> Job:
    """A job by name, or any process of ours by pid. Raises NoSuchJob, UsageError for what is neither."""
    if isinstance(target, str):
        _check_name(target)
    with Client.connect() as client:
        jobs = client.request("ps")["jobs"]
    for job in jobs:
        if target in (job["job"], job["pid"]):
            return Job(job["job"], job["pid"])
    if isinstance(target, int) and processes.identify(target):
        return Job(target, target)
    raise NoSuchJob(f"no job or process {target}", hint="gcr ps")


def swap(
    out: "Job | str | int",
    back: "Job | str | int",
    *,
    timeout: float | None = None,
    data_only: bool = False,
    devices: Mapping[str | int, str | int] | None = None,
) -> SwapReport:
    """Suspend `out` and bring back `back`, which is suspended, in its place: both happen, or neither.

    `timeout` in seconds, for both together; `data_only` is about the one, `devices` about the other, as of `checkpoint`
    and `restore`. Raises SwapFailed where `back` did not come back and `out` did; its `state` is that of `out`.
    """
    _check_seconds(timeout)
    began = time.monotonic()
    moves = {str(old): str(new) for old, new in (devices or {}).items()}
    body = {"out": _target_of(out), "in": _target_of(back), "timeout": timeout, "data_only": data_only}
    with Client.connect() as client:
        wait = NO_TIMEOUT if timeout is None else timeout + GRACE
        answer = client.request("swap", {**body, "devices": moves}, timeout=wait)
    return SwapReport.from_json({**answer, "wall_s": time.monotonic() - began})


def _target_of(job: "Job | str | int") -> str | int:
    if isinstance(job, Job):
        return job.target
    if isinstance(job, str):
        _check_name(job)
    return job


def _store(chosen: "str | os.PathLike[str] | None") -> str:
    return str(store_path(None if chosen is None else os.fspath(chosen)))


def _key(
    image: str | None, file: "str | os.PathLike[str] | None", command: str | None, timeout: float | None
) -> KeySource:
    if not image:
        return KeySource()
    return KeySource.chosen(None if file is None else os.fspath(file), command, timeout)


def _check_seconds(timeout: float | None) -> None:
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout <= NO_TIMEOUT):
        raise UsageError(f"{timeout!r} is no time in seconds, of a day at most")


def _check_image(name: str, wait: str = "vram", max_bytes_per_s: float | None = None) -> None:
    if not isinstance(name, str) or not JOB_NAME.match(name):
        raise UsageError(f"{name!r} is no name of an image: {JOB_NAME.pattern}")
    if wait not in ("vram", "durable"):
        raise UsageError(f'{wait!r} is nothing that can be waited for: "vram" or "durable"')
    if max_bytes_per_s is not None and not (isinstance(max_bytes_per_s, int | float) and max_bytes_per_s >= 1):
        raise UsageError(f"{max_bytes_per_s!r} is no rate in bytes a second")


def _check_name(name: str | None) -> None:
    if name is not None and not JOB_NAME.match(name):
        raise UsageError(f"{name!r} is no job name: {JOB_NAME.pattern}")


def _check_daemon() -> None:
    """What is wrong with a daemon that runs is raised here, with its type; `gcr run` starts one where none does."""
    with contextlib.suppress(DaemonUnavailable):
        Client.connect(autostart=False).close()


def _await_registration(parent: "subprocess.Popen[bytes]", name: str | None) -> Job:
    end = time.monotonic() + REGISTER_TIMEOUT
    while time.monotonic() < end:
        code = parent.poll()  # before looking for the job: one that ended meanwhile may have been there
        for job in _known_jobs():
            if job["pid"] and processes.parent_pid(job["pid"]) == parent.pid:
                return Job(job["job"], job["pid"], parent)
        if code == _FAILED_BEFORE_START:
            raise Refused("the program was not started; stderr says why", hint="gcr doctor")
        if code is not None:
            return Job(name or "job", None, parent)
        time.sleep(_POLL)
    raise DeadlinePassed(f"the job did not register within {REGISTER_TIMEOUT:g} s", hint="gcr daemon logs")


def _known_jobs() -> list[dict[str, Any]]:
    """What the daemon knows; nothing while it is being started."""
    try:
        with Client.connect(autostart=False) as client:
            jobs: list[dict[str, Any]] = client.request("ps")["jobs"]
            return jobs
    except DaemonUnavailable:
        return []


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
