"""The library: start a job or find one, checkpoint it, restore it; list jobs and images. docs/library.md shows it.

Every call is synchronous and may be made from any thread: each has a connection of its own. Nothing is printed; the
logger is `gcr`.
"""

import contextlib
import logging
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial

from gcr import processes
from gcr.api.checks import MOST_SECONDS, check_backend, check_image_name, check_name, check_seconds, checked_target
from gcr.api.listings import ImageInfo, ImageList, JobInfo
from gcr.api.reports import SwapReport
from gcr.api.requests import SwapRequest
from gcr.errors import DaemonUnavailable, DeadlinePassed, GcrError, NoSuchJob
from gcr.image.store.location import store_path
from gcr.library.answers import asked
from gcr.library.arguments import (
    Environment,
    Folder,
    Stream,
    check_stream,
    checked_environment,
    checked_folder,
    words_of,
)
from gcr.library.job import CLOSE_GRACE, Job
from gcr.names import meant
from gcr.protocol.begun import Begun, Surroundings
from gcr.rendezvous.client import GRACE, Client, all_jobs

log = logging.getLogger(__name__)

REGISTER_TIMEOUT = 30.0  # seconds from spawning `gcr run` to its word that the program runs
LOOK_TIMEOUT = 600.0  # seconds for a list of images; a store that is silent is given up long before


def run(
    program: Sequence[str | os.PathLike[str]],
    *,
    name: str | None = None,
    simulate: str | None = None,
    backend: str | None = None,
    env: Environment | None = None,
    cwd: Folder | None = None,
    stdout: Stream = None,
    stderr: Stream = None,
) -> Job:
    """Start `program`, a list of words, as a job, and return once it runs. Its stdin is empty.

    `env` is the program's whole environment, `cwd` its folder, `stdout` and `stderr` as of subprocess.Popen; None: the
    caller's. `simulate` names a vendor whose SIMULATED device the program shall see.
    Raises UsageError, NameTaken, CannotStart and others of Refused; DeadlinePassed.
    """
    check_name(name)
    check_backend(backend)
    check_backend(simulate)
    check_stream("stdout", stdout)
    check_stream("stderr", stderr, is_error=True)
    words, first = words_of(program), Surroundings(checked_environment(env), checked_folder(cwd))
    options = {"--name": name, "--simulate": simulate, "--backend": backend}
    flags = [word for flag, value in options.items() if value is not None for word in (flag, value)]
    _check_daemon()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "gcr", "run", *flags, "--on-behalf", str(theirs.fileno()), "--", *words]
        parent = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, pass_fds=[theirs.fileno()]
        )
        theirs.close()
        return _started(parent, ours, first)


def attach(target: str | int) -> Job:
    """A job by name, or any process of this user by pid. Raises NoSuchJob for what is neither."""
    checked_target(target)
    with Client.connect() as client:
        known = client.jobs().jobs
    for job in known:
        if target in (job.job, job.pid):
            return Job(job.job, job.pid)
    if isinstance(target, int) and processes.identify(target):
        return Job(target, target)
    near = meant(str(target), [job.job for job in known])
    raise NoSuchJob(f"no job or process {target}{near}", hint="gcr ps")


def swap(
    out: Job | str | int,
    back: Job | str | int,
    *,
    timeout: float | None = None,
    data_only: bool = False,
    devices: Mapping[str | int, str | int] | None = None,
) -> SwapReport:
    """Suspend `out` and bring back `back`, which is suspended, in its place: both happen, or neither.

    `timeout` in seconds, for both together; `data_only` is about the one, `devices` about the other, as of `checkpoint`
    and `restore`. Raises SwapFailed where `back` did not come back and `out` did; its `state` is that of `out`.
    """
    began = time.monotonic()
    moves = {str(old): str(new) for old, new in (devices or {}).items()}
    one, other = _target_of(out), _target_of(back)
    request = SwapRequest(out=one, back=other, timeout=timeout, data_only=data_only, devices=moves)
    with Client.connect() as client:
        wait = MOST_SECONDS if timeout is None else timeout + GRACE
        report = client.ask(request, SwapReport, timeout=wait)
    return report.timed(time.monotonic() - began)


def _target_of(job: Job | str | int) -> str | int:
    return job.target if isinstance(job, Job) else job


def jobs() -> tuple[JobInfo, ...]:
    """The jobs of this user. Starts no daemon where nothing says that there is a job.

    Raises NotAllKnown where jobs are still awaited and none is known yet, DaemonUnavailable.
    """
    return all_jobs(partial(log.warning, "%s"))


def restore(
    image: str,
    *,
    store: str | os.PathLike[str] | None = None,
    key_file: str | os.PathLike[str] | None = None,
    key_command: str | None = None,
    devices: Mapping[str | int, str | int] | None = None,
    timeout: float | None = None,
) -> Job:
    """Brings the job of an image back, its processes as well if it was stopped into it. Returns the job, which runs.

    `store` and its key as of `Job.checkpoint`, `devices` as of `Job.restore`; `timeout` in seconds.
    Raises as `Job.restore`; CriuUnusable, FilesChanged, NotRestored.
    """
    check_image_name(image)
    moves = [word for old, new in (devices or {}).items() for word in ("--device", f"{old}={new}")]
    answer = asked(["restore", "--image", image, *moves, *_at(store, key_file, key_command, timeout)], MOST_SECONDS)
    return attach(str(answer["job"]))


def images(
    *,
    store: str | os.PathLike[str] | None = None,
    key_file: str | os.PathLike[str] | None = None,
    key_command: str | None = None,
    timeout: float | None = None,
) -> tuple[ImageInfo, ...]:
    """The images of a store, by name; the store and its key as of `Job.checkpoint`. `timeout` in seconds.

    A process of its own looks, so a disk that hangs does not hang the caller. Raises StoreUnusable, WrongKey,
    KeyUnusable, UsageError, DeadlinePassed.
    """
    words = _at(store, key_file, key_command, timeout)
    return ImageList.from_json(asked(["images", *words], LOOK_TIMEOUT)).images


def _at(
    store: "str | os.PathLike[str] | None",
    key_file: "str | os.PathLike[str] | None",
    key_command: str | None,
    timeout: float | None,
) -> Sequence[str]:
    """Returns the options of a command about a store. Raises UsageError."""
    check_seconds(timeout)
    given = {"--store": str(store_path(os.fspath(store))) if store is not None else None}
    given |= {"--key-file": None if key_file is None else os.fspath(key_file), "--key-command": key_command}
    given |= {"--timeout": None if timeout is None else str(timeout)}
    return [word for flag, value in given.items() if value is not None for word in (flag, value)]


def _check_daemon() -> None:
    """Raises what is wrong with a running daemon, with its type; `gcr run` starts one where none runs."""
    with contextlib.suppress(DaemonUnavailable):
        Client.connect(autostart=False).close()


def _started(parent: "subprocess.Popen[bytes]", line: socket.socket, first: Surroundings) -> Job:
    """Ends `parent` where the program was not started."""
    try:
        begun = _answer(line, first, parent)
    except BaseException:
        parent.terminate()
        parent.wait(CLOSE_GRACE)
        for pipe in (parent.stdout, parent.stderr):
            if pipe:
                pipe.close()
        raise
    return Job(begun.job, begun.pid, parent)


def _answer(line: socket.socket, first: Surroundings, parent: "subprocess.Popen[bytes]") -> Begun:
    """Returns what `gcr run` says of the start. Raises the refusal, DeadlinePassed, GcrError."""
    end = time.monotonic() + REGISTER_TIMEOUT
    line.settimeout(REGISTER_TIMEOUT)
    with contextlib.suppress(OSError):  # it ended; what it said is read all the same
        line.sendall(first.to_line())
    said = bytearray()
    while not said.endswith(b"\n"):
        if not select.select([line], [], [], max(0.0, end - time.monotonic()))[0]:
            raise DeadlinePassed(f"the job did not start within {REGISTER_TIMEOUT:g} s", hint="gcr daemon logs")
        if not (data := _received(line)):
            code = parent.wait(CLOSE_GRACE)
            raise GcrError(f"gcr run ended with code {code} before it said whether the program runs", hint="gcr doctor")
        said += data
    return Begun.from_line(bytes(said)).checked()


def _received(line: socket.socket) -> bytes:
    """Returns the bytes received; none once the other end is gone, whether or not it had read ours."""
    with contextlib.suppress(ConnectionError):
        return line.recv(1 << 16)
    return b""
