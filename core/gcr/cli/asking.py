"""Work of a command on a store, done by a child process: a disk or a server that hangs holds up the child alone.

A thread would not do: a process does not end while the kernel cannot wake one of its threads. The child is forked,
which costs some milliseconds, and reports progress now and then. A command that hears nothing for `store_s` seconds, or
is interrupted, kills the child and goes on. The child ends as soon as the kernel lets it, which is safe at any instant.
"""

import logging
import os
import pickle
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from msgspec import Struct, field

from gcr import config
from gcr.cli.options import Options
from gcr.errors import DeadlinePassed, GcrError, PeerGone
from gcr.image.store.location import opened, silent, store_path, without_store
from gcr.imageerrors import NoSuchImage
from gcr.protocol.jsonbody import error_from_json, error_to_json

if TYPE_CHECKING:
    from gcr.image.store.store import Store

T = TypeVar("T")

Messages = Iterator[tuple[str, Any]]  # kind and value of each

PULSE_S = 0.2
_LOOKS = 20  # within the patience
_LENGTH = 8  # bytes, before each message
_PR_SET_PDEATHSIG = 1


def asked(
    options: Options,
    chosen: str | None,
    look: "Callable[[Store | None], T]",
    meanwhile: Callable[[], object] = lambda: None,
) -> T:
    """Returns the result of `look`, which gets the store, or None where no image was written to it yet.

    meanwhile: called while `look` is at work
    Raises what either raises; StoreUnusable, DeadlinePassed, WrongKey, KeyUnusable, UnsafeRuntime, UsageError.
    """
    return asking(options, chosen, lambda store, _line: look(store), meanwhile).answer()


def asking(
    options: Options,
    chosen: str | None,
    look: "Callable[[Store | None, Line], T]",
    meanwhile: Callable[[], object] = lambda: None,
) -> "Asking[T]":
    """Returns the work of `look` on a store, which begins later. `look` gets the child's end of the line, too.

    Raises WrongKey, KeyUnusable, UnsafeRuntime, UsageError.
    """
    path, key = store_path(chosen), options.key()
    key.key()  # here: its command may ask its owner, for longer than a store may be silent

    def work(line: Line) -> T:
        from gcr.image.disk.failing import usable

        with usable(path):
            store = opened(path, key, line.pulse)
            try:
                return look(store, line)
            except NoSuchImage as error:
                if store is None:
                    raise without_store(error, path) from error
                raise

    return Asking(str(path), work, options.timeout, meanwhile=meanwhile)


class Line:
    """The child's end; thread-safe."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._told_at = time.monotonic()
        self._lock = threading.Lock()

    def pulse(self) -> None:
        """We get on. Costs nothing where that was just said."""
        if time.monotonic() > self._told_at + PULSE_S:
            self._told_at = time.monotonic()
            self.tell("pulse", None)

    def tell(self, kind: str, value: object) -> None:
        data = pickle.dumps((kind, value))
        rest = memoryview(len(data).to_bytes(_LENGTH, "little") + data)
        with self._lock:
            while rest:
                rest = rest[os.write(self.fd, rest) :]


class Talk(Struct, frozen=True):
    """The messages of a child that is at work. `fd`: the descriptor from which they come."""

    fd: int
    messages: Messages


class Asking(Struct, Generic[T]):
    """Waits for a child's work. `whom`: the disk or server that may be silent, as messages call it.

    timeout: seconds in all, None: no limit. grace: seconds for the child to end when told to. meanwhile: called once,
    while the child works."""

    whom: str
    work: Callable[[Line], T]
    timeout: float | None = None
    grace: float = 0.0
    on_progress: Callable[[Any], object] = lambda now: None
    meanwhile: Callable[[], object] = lambda: None
    _patience: float = field(default_factory=lambda: config.load().store_s)
    _began: float = field(default_factory=time.monotonic)

    def answer(self) -> T:
        """Raises what `work` or `meanwhile` raises; StoreUnusable, DeadlinePassed, PeerGone."""
        with self.under_way() as talk:
            self.meanwhile()
            found: T = self.awaited(talk)
            return found

    @contextmanager
    def under_way(self) -> Iterator[Talk]:
        """Does the work within the block, which it ends with, done or not."""
        ours, theirs = os.pipe()
        child, owner = 0, os.getpid()
        try:
            with _interrupted_later():
                child = self._begun(ours, theirs)
            yield Talk(ours, self._messages(ours))
        except KeyboardInterrupt:
            if child:
                os.kill(child, signal.SIGTERM)
                _await_end(ours, self.grace)
            raise
        finally:
            if child and owner == os.getpid():  # and not in a process that was forked within the block
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, os.WNOHANG)
            os.close(ours)

    def _begun(self, ours: int, theirs: int) -> int:
        """The child's pid."""
        parent, child = os.getpid(), os.fork()
        if not child:
            os.close(ours)
            _serve(parent, Line(theirs), self.work)
        os.close(theirs)
        return child

    def begin_anew(self) -> None:
        """Counts the timeout from now on."""
        self._began = time.monotonic()

    def awaited(self, talk: Talk, until: str = "answer") -> Any:
        """Returns the answer, or an earlier message of this kind. Raises as `answer`."""
        for kind, value in talk.messages:
            if kind == until:
                return value
            match kind:
                case "refused":
                    raise _again(*value)
                case "failed":
                    raise _bug(*value)
                case "progress":
                    self.on_progress(value)
                case "log":
                    logging.getLogger(value[0]).log(*value[1:])
        raise PeerGone(f"the process that looked at {self.whom} died")

    def _messages(self, fd: int) -> Messages:
        came = bytearray()
        while data := self._some(fd):
            came += data
            while len(came) >= (end := _LENGTH + int.from_bytes(came[:_LENGTH], "little")) and len(came) > _LENGTH:
                yield pickle.loads(came[_LENGTH:end])
                del came[:end]

    def _some(self, fd: int) -> bytes:
        """Reads some bytes. Counts seconds of waiting, not the clock, since Ctrl-Z stops command and child together."""
        end = None if self.timeout is None else self._began + self.timeout
        for _ in range(_LOOKS):
            wait = self._patience / _LOOKS
            if select.select([fd], [], [], wait if end is None else max(0.0, min(wait, end - time.monotonic())))[0]:
                return os.read(fd, 1 << 20)
            if end is not None and time.monotonic() >= end:
                raise DeadlinePassed(f"it took longer than {self.timeout:g} s, and was given up")
        raise silent(self.whom, self._patience)


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Ctrl-C is raised at its end: what is raised in the hooks of a fork, the interpreter prints and forgets."""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def _await_end(fd: int, grace: float) -> None:
    end = time.monotonic() + grace
    while select.select([fd], [], [], max(0.0, end - time.monotonic()))[0] and os.read(fd, 1 << 20):
        pass


def _again(body: Mapping[str, Any], notes: list[str]) -> GcrError:
    error = error_from_json(body)
    for note in notes:
        error.add_note(note)
    return error


def _bug(said: str, trace: str) -> RuntimeError:
    error = RuntimeError(said)
    error.add_note(trace)
    return error


def _serve(parent: int, line: Line, work: Callable[[Line], object]) -> NoReturn:
    """Runs in the child. A child that stays for ever holds nothing that others need, such as pipes of the output."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the parent decides
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        _end_with(parent)
        _let_go_of_output(line)
        line.tell(*_outcome(line, work))
    finally:
        os._exit(0)


def _outcome(line: Line, work: Callable[[Line], object]) -> tuple[str, object]:
    try:
        return "answer", work(line)
    except GcrError as error:
        return "refused", (error_to_json(error), getattr(error, "__notes__", []))
    except Exception as error:  # a bug: its traceback is the parent's to write down
        return "failed", (repr(error), traceback.format_exc())


def _end_with(parent: int) -> None:
    """Has this child end with its parent, also if the parent is killed."""
    import ctypes  # takes some milliseconds, which the parent need not

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def outlive() -> None:
    """Has this child go on after its parent's end from here on."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)


def _let_go_of_output(line: Line) -> None:
    for handler in [*logging.getLogger().handlers]:
        logging.getLogger().removeHandler(handler)
        logging.getLogger().addHandler(_Telling(line))
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in {0, 1, 2} - {line.fd}:  # a caller that had closed them has pipes there
        os.dup2(nothing, fd)


class _Telling(logging.Handler):
    """Sends the child's log lines to its parent, which prints them on stderr."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        self._line.tell("log", (record.name, record.levelno, "%s", record.getMessage()))
