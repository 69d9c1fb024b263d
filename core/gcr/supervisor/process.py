"""`gcr run`: start the program, be its parent like any other, and return its code.

Signals sent to us go on to the program. Those the terminal sends reach the whole foreground group by themselves and
are not sent twice: the kernel says which is which (si_code). The descriptor limit is raised for us after the program
was started, never for it.
"""

import json
import logging
import os
import select
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from gcr import descriptors
from gcr.backend import Simulator
from gcr.config import load
from gcr.declarations import settings_of_programs
from gcr.errors import CannotStart, GcrError, Interrupted
from gcr.memory.escrow import Escrow
from gcr.native import shim_path, sim_dir
from gcr.protocol.begun import Begun
from gcr.protocol.operations.daemon import Finished, LastFacts, Register, Started
from gcr.protocol.operations.operation import A, Operation
from gcr.protocol.seqpacket import close_all
from gcr.runtime import socket_path
from gcr.supervisor.diary import Diary
from gcr.supervisor.link import DaemonLink
from gcr.supervisor.parking import AWAITED, FORWARDED, Parking, keep
from gcr.supervisor.spec import JobSpec, Outcome

log = logging.getLogger("gcr.supervisor")

FAILED_BEFORE_START = 125
_GO, _STOP = b"g", b"s"  # the starter's words to the half that stays


class Child(Protocol):
    """The program: `subprocess.Popen`, or one that came back."""

    @property
    def pid(self) -> int: ...

    returncode: int | Any

    def poll(self) -> int | None: ...

    def send_signal(self, sig: int) -> None: ...


@dataclass(slots=True)
class Supervisor:
    spec: JobSpec
    token: str = ""
    name: str | None = None
    child: "Child | None" = None
    image: str | None = None  # the one that it was stopped into
    store: str | None = None  # of that image
    escrow: Escrow = field(default_factory=Escrow)
    diary: Diary = field(init=False)
    link: DaemonLink = field(init=False)
    parking: Parking = field(init=False)

    def __post_init__(self) -> None:
        revival = self.spec.revival
        self.token = revival.stopped.token if revival else os.urandom(16).hex()
        self.name = self.spec.name
        self.parking = Parking(self.spec.reviver)
        self.link = DaemonLink(self.describe, self.escrow, self.parking)
        self.diary = Diary(self.token)

    def describe(self) -> Register:
        coming = None if self.child else self.spec.revival
        return Register(
            token=self.token,
            argv=self.spec.argv,
            name=self.name,
            pid=self.child.pid if self.child else None,
            backend=self.spec.backend,
            simulate=self.spec.simulate,
            sim_environment=self.simulated_world() if self.spec.simulate else None,
            parks=self.spec.reviver is not None,
            parked=self.parking.parked,
            leaves=True,
            revives=coming.device_bytes if coming else None,
            fills=coming.fills if coming else None,
        )

    def simulated_world(self) -> dict[str, str]:
        assert self.spec.simulate
        return simulated_environment(self.spec.simulate, self.spec.simulator, self.own_environment())

    def register(self) -> None:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)  # the link's threads inherit it: `wait` misses nothing
        try:
            self.name = self.link.open().name
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def start(self, may_start: Callable[[], object], meanwhile: Callable[[], object] = lambda: None) -> None:
        """Starts the program, or makes it again, once `may_start` has returned. Raises what that does, OSError …

        meanwhile: called before that, once CRIU is started
        """
        self.child = self._child(partial(self._await_start, may_start), meanwhile)
        self.parking.root = self.child.pid
        signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
        self._send_kept(self.child)
        descriptors.raise_limit()
        self.diary.begin(str(self.name), self.spec.argv, self.child.pid)
        self._tell(Started(self.child.pid))

    def _await_start(self, may_start: Callable[[], object]) -> None:
        may_start()
        keep(self.parking, FORWARDED)

    def _child(self, may_start: Callable[[], object], meanwhile: Callable[[], object]) -> "Child":
        if self.spec.revival:
            return self.spec.revival.bring_back(self.diary.place(str(self.name)), self.link.tell, may_start, meanwhile)
        meanwhile()
        may_start()
        return subprocess.Popen(
            self.spec.argv,
            env=self.environment(),
            cwd=self.spec.folder,
            close_fds=False,  # ours are all CLOEXEC
        )

    def running(self) -> tuple[str, int]:
        """The job's name, and its program's pid."""
        assert self.child
        return str(self.name), self.child.pid

    def wait(self) -> int:
        """The program's code; 128+n if a signal ended it, or its job while that was parked."""
        assert self.child
        self._await_end(self.child)
        while not self.parking.has_ended():
            back = self.parking.await_return(self.diary.log, self.link.tell)
            if isinstance(back, int):
                self.child.returncode = -back
            else:
                self._go_on_with(back)
        code = self.child.returncode
        return 128 - code if code < 0 else code

    def _await_end(self, child: Child) -> None:
        while child.poll() is None:
            told = signal.sigtimedwait(AWAITED, 0.5)
            self.diary.bound()
            if told and told.si_signo in FORWARDED and told.si_code <= 0:
                self.parking.forward(told.si_signo, child.send_signal)

    def _go_on_with(self, back: Child) -> None:
        """Supervises a program that has come back."""
        self.child = back
        self.diary.again(back.pid)
        self._send_kept(back)
        self._await_end(back)

    def _send_kept(self, child: Child) -> None:
        kept, self.parking.kept = self.parking.kept, []
        for number in kept:
            child.send_signal(number)

    def finish(self, code: int) -> str:
        """Why the report that was asked for was not written; empty if nothing is missing."""
        assert self.child
        self.diary.end(self.child.returncode)  # first: the daemon may be gone, or silent
        answer = self._tell(Finished(code))
        if answer and answer.was:
            self.diary.add(answer.was, answer.image, answer.store)
            self.image, self.store = answer.image, answer.store
        self.link.close()
        self.escrow.close()
        return _unreported(self.spec.report, answer) if self.spec.report else ""

    def give_up(self) -> None:
        """Tells the daemon that there is no program. It forgets the job before the caller hears of the error."""
        if self.link.is_open:
            self._tell(Finished(FAILED_BEFORE_START))
        self.link.close()

    def environment(self) -> dict[str, str]:
        """The program's environment: its own, our shim first among its preloads, and where to find the daemon."""
        env = dict(self.own_environment())
        chained, shim = env.get("LD_PRELOAD"), self.spec.shim or shim_path()
        env["LD_PRELOAD"] = f"{shim}:{chained}" if chained else str(shim)
        config = load()
        if config.daemon_uid >= 0:
            env["GCR_DAEMON_UID"] = str(config.daemon_uid)
        env.setdefault("GCR_SHARE", config.share)
        env.update(GCR_SOCKET=str(socket_path()), GCR_JOB=str(self.name), GCR_TOKEN=self.token)
        for name, value in self._settings().items():
            if name not in env:
                env[name] = value
                log.info("%s=%s set, as the backend asks; set it yourself to keep another value", name, value)
        if self.spec.simulate:
            env.update(self.simulated_world())
        return env

    def _settings(self) -> Mapping[str, str]:
        return settings_of_programs(self.spec.backend or self.spec.simulate, own_shim=self.spec.shim is None)

    def own_environment(self) -> Mapping[str, str]:
        return os.environ if self.spec.environment is None else self.spec.environment

    def _tell(self, operation: Operation[A]) -> A | None:
        """Returns the daemon's answer; None where it gave none."""
        try:
            return self.link.tell(operation)
        except GcrError as error:
            log.warning("gcrd did not hear %s: %s", operation.op, error)
            return None


def simulated_environment(
    vendor: str, simulator: Simulator | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Returns what to add to `environ` for a process to find a vendor's simulated driver, by default gcr's own."""
    simulator = simulator or Simulator(sim_dir(vendor))
    libraries = str(simulator.folder)
    rest = environ.get("LD_LIBRARY_PATH")
    ours = {k: v for k, v in environ.items() if k.startswith("GCR_SIM_")}
    state = environ.get("GCR_SIM_STATE", f"/dev/shm/gcr-sim-{os.getuid()}")
    path = libraries if not rest or rest.startswith(libraries) else f"{libraries}:{rest}"
    world = {"GCR_SIMULATE": vendor, "GCR_SIM_STATE": state, "LD_LIBRARY_PATH": path}
    return {**ours, **simulator.environment, **world}


def _unreported(file: str, answer: LastFacts | None) -> str:
    """Write the job's last report. Returns why it was not written: the program has ended, so nothing may be raised."""
    if answer is None:
        return "the daemon did not answer"
    if answer.report is None:
        return "the job was neither checkpointed nor restored"
    try:
        Path(file).write_text(json.dumps(answer.report) + "\n")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def supervise(spec: JobSpec, told: Callable[[str, int], object]) -> Outcome:
    """See gcr.supervisor.run."""
    if not spec.detach:
        prepare = spec.revival.prepare if spec.revival else lambda: None
        return _run(spec, started=lambda job: told(*job.running()), may_start=prepare)
    answer, tell = os.pipe()
    stopped, stop = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # both halves know what a Ctrl-C means first
    if os.fork():
        close_all([tell, stopped])
        with os.fdopen(answer, "rb") as stream:
            if spec.revival:
                _prepared(spec.revival.prepare, stream, stop, before)
            return _await_detached(stream, stop, before)
    close_all([answer, stop])
    if spec.revival:
        spec.revival.let_go()
    os.setsid()
    os._exit(_run_detached(spec, tell, stopped, before))


def _run(
    spec: JobSpec, started: Callable[[Supervisor], object], may_start: Callable[[], object] = lambda: None
) -> Outcome:
    supervisor = Supervisor(spec)
    descriptors.make_room()  # before the link's threads
    later = bool(spec.detach and spec.revival and not spec.revival.fills)  # else the devices are filled from then on
    try:
        if not later:
            supervisor.register()
        if spec.detach:
            supervisor.diary.leave_terminal(str(supervisor.name))
        if spec.revival:
            spec.revival.get_ready()
        supervisor.start(may_start, supervisor.register if later else lambda: None)
    except OSError as error:
        supervisor.give_up()
        raise CannotStart(f"{spec.argv[0]}: {error.strerror or error}") from error
    except GcrError:
        supervisor.give_up()
        raise
    started(supervisor)
    supervisor.diary.tidy()
    code = supervisor.wait()
    unreported = supervisor.finish(code)
    log_path = supervisor.diary.log
    return Outcome(code, str(supervisor.name), log_path, supervisor.image, supervisor.store, unreported)


def _run_detached(spec: JobSpec, tell: int, stopped: int, before: Collection[int] = ()) -> int:
    """The half that stays. stopped: the end of a pipe on which its starter says whether the program is wanted."""

    def announce(word: Begun) -> None:
        with suppress(BrokenPipeError):  # the caller has left; the program is supervised all the same
            os.write(tell, word.to_line())
        close_all([tell, stopped])

    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        job = partial(_run, spec, may_start=lambda: _refuse_unwanted(stopped, spec.revival is not None))
        return job(started=lambda job: announce(Begun(str(job.name), log=job.diary.log))).code
    except GcrError as error:
        announce(Begun.refused(error))
    except KeyboardInterrupt:  # it came before this process had a session of its own
        announce(Begun.refused(_not_started()))
    return FAILED_BEFORE_START


def _refuse_unwanted(stopped: int, prepared: bool = False) -> None:
    """Raises Interrupted where the starter wrote so. One that was killed has written nothing: the program starts.

    prepared: by the starter. It is waited for, and the program does not start if it was killed.
    """
    if prepared and os.read(stopped, 1) != _GO:
        raise _not_started()
    if select.select([stopped], [], [], 0)[0] and os.read(stopped, 1):
        raise _not_started()


def _not_started() -> Interrupted:
    return Interrupted("interrupted; the program was not started")


def _prepared(prepare: Callable[[], object], stream: BinaryIO, stop: int, before: Collection[int]) -> None:
    """Prepares the program that the other half then starts. Raises what `prepare` does; the other half has ended then.

    stream: for its answer · stop: for our word
    """
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        prepare()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    except BaseException:
        _say(stop, _STOP)
        os.close(stop)
        stream.read()
        raise
    _say(stop, _GO)


def _say(pipe: int, word: bytes) -> None:
    with suppress(BrokenPipeError):  # the other half has ended
        os.write(pipe, word)


def _await_detached(stream: BinaryIO, stop: int, before: Collection[int] = ()) -> Outcome:
    """Raises Interrupted after a Ctrl-C, which tells whether the job runs; a second one is not answered."""
    with _stopping(stop) as pressed:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        begun = Begun.from_line(stream.read() or "{}").checked()
    if pressed:
        text = f"interrupted, but job {begun.job} had started: it runs"
        raise Interrupted(text, state="running", hint=f"gcr ps {begun.job}")
    return Outcome(0, begun.job, begun.log)


@contextmanager
def _stopping(pipe: int) -> Iterator[Sequence[int]]:
    """Within it the first Ctrl-C is written to the pipe, for the half that stays, and is in what is yielded."""
    pressed: list[int] = []

    def stop(number: int, _frame: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        _say(pipe, _STOP)

    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else stop)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, handler)
        os.close(pipe)
