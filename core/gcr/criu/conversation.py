"""One conversation with CRIU: `criu swrk FD` answers requests on a socket, and ends with it.

While it dumps or restores, CRIU tells of its stages and waits for our consent to each: without it, it takes back what
it did.
"""

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from msgspec import Struct

from gcr.criu import messages
from gcr.criu.messages import RequestType
from gcr.errors import CriuUnusable
from gcr.runtime import own_directory, runtime_dir

MOST_BYTES = 1 << 16  # a response has a text of CRIU's at most
LAST_BYTES, LAST_SECONDS = 500, 2.0  # of the last line that CRIU wrote
END_SECONDS = 5.0  # in which CRIU ends once its socket is closed
_PLUGINS = "CRIU_LIBS_DIR"

Stage = Callable[[str, int], object]
"""Called with the name of a stage and the root's pid, 0 where CRIU names none. Raises to refuse it."""


class Conversation(Struct, frozen=True):
    """`process` is CRIU; what it writes is kept for an error's message. `ended`: readable once it has ended.

    Its socket does not tell: a child that it has stopped, and can end no more, has that socket, too.
    """

    sock: socket.socket
    process: "subprocess.Popen[bytes]"
    ended: int
    beside: bool

    def ask(
        self,
        type: RequestType,
        timeout: float,
        stage: Stage | None = None,
        meanwhile: Callable[[], object] = lambda: None,
        **fields: Any,
    ) -> Any:
        """Returns CRIU's response, a success or not, once all stages were told.

        meanwhile: called once CRIU was asked, before it is told that a stage may begin
        Raises CriuUnusable where none comes in `timeout` seconds, what `meanwhile` raises, and what `stage` raised,
        after CRIU's response. The time that the two take does not count.
        """
        unanswered = f"CRIU did not answer {type.name} in {timeout:g} s"
        self._send(type, messages.request(type, **fields))
        meanwhile()
        end = time.monotonic() + timeout
        refusal: BaseException | None = None
        while (found := self._response(type, end, unanswered)).type == RequestType.NOTIFY:
            began = time.monotonic()
            refusal = _refusal(stage, found.notify) or refusal
            end += time.monotonic() - began
            self._send(type, messages.request(RequestType.NOTIFY, notify_success=refusal is None))
        if refusal:
            raise refusal
        if found.type != type:
            raise CriuUnusable(f"CRIU answered {found.type} and not {type.name}")
        return found

    def _send(self, type: RequestType, request: bytes) -> None:
        try:
            self.sock.send(request)
        except ConnectionError as error:
            raise self._ended(type) from error

    def _response(self, type: RequestType, end: float, unanswered: str) -> Any:
        waiting = select.poll()
        waiting.register(self.sock, select.POLLIN)
        waiting.register(self.ended, select.POLLIN)
        if not waiting.poll(1000 * max(end - time.monotonic(), 0.001)):
            raise CriuUnusable(unanswered)
        try:
            payload = self.sock.recv(MOST_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionError):
            payload = b""
        if not payload:
            raise self._ended(type)
        try:
            return messages.response(payload)
        except ValueError as error:
            raise CriuUnusable(f"CRIU did not answer {type.name}: {error}") from error

    def _ended(self, type: RequestType) -> CriuUnusable:
        words = self.last_words()
        return CriuUnusable(f"CRIU ended before it answered {type.name}{': ' if words else ''}{words}")

    def last_words(self) -> str:
        """Ends CRIU, and returns the last line that it wrote. Nothing can be asked any more."""
        with suppress(OSError):  # it has ended already
            self.sock.shutdown(socket.SHUT_RDWR)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(LAST_SECONDS)
        _kill(self.process, self.beside)  # those that it has left behind have its output open
        try:
            text = self.process.communicate(timeout=LAST_SECONDS)[0].decode(errors="replace").strip()
        except subprocess.TimeoutExpired:
            return ""
        return text.splitlines()[-1][:LAST_BYTES] if text else ""


def _refusal(stage: Stage | None, told: Any) -> BaseException | None:
    """Returns what the stage raised: CRIU must hear of it before anyone else does."""
    try:
        if stage:
            stage(told.script, told.pid)
    except BaseException as error:
        return error
    return None


@contextmanager
def conversation(
    program: Path, beside: bool = False, given: Collection[int] = (), plugins: Sequence[Path] = ()
) -> Iterator[Conversation]:
    """Starts CRIU for the block, and lets it end afterwards. Raises CriuUnusable.

    beside: in our session and process group, not in its own; processes that it restores may join them
    given: descriptors that it has as well, under the same numbers; none of them is a standard stream
    plugins: shared objects that CRIU loads. It loads none that is merely installed: its plugin for CUDA would restore
    and unlock a process behind our back. Raises UnsafeRuntime where no folder can have links to them.
    After an error CRIU and its children are killed; where it is `beside` us, CRIU alone. Processes that it restored are
    no children of its any more.
    """
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        process = _started(program, [its.fileno(), *given], beside, plugin_folder(plugins))
        its.close()
        ended = _watched(process)
        try:
            yield Conversation(ours, process, ended, beside)
            ours.close()
            if not _has_ended(ended, END_SECONDS):
                _kill(process, beside)
        except BaseException:
            _kill(process, beside)
            raise
        finally:
            os.close(ended)
            _reap(process)


def criu_folder() -> Path:
    """Returns gcr's folder for CRIU in the runtime directory. Raises UnsafeRuntime."""
    return own_directory(runtime_dir() / "criu")


def plugin_folder(plugins: Sequence[Path]) -> Path:
    """Returns a folder with links to the plugins, and no others. Raises UnsafeRuntime, CriuUnusable.

    There is one for each choice of plugins, and it stays: a process that is killed leaves no other one behind.
    """
    key = blake2b(b"\0".join(map(os.fsencode, plugins)), digest_size=8).hexdigest()
    folder = own_directory(criu_folder() / f"plugins-{key}")
    for plugin in plugins:
        with suppress(FileExistsError):
            (folder / plugin.name).symlink_to(plugin)
    if {each.readlink() if each.is_symlink() else each for each in folder.iterdir()} != {*plugins}:
        raise CriuUnusable(
            f"{folder} has other plugins than {', '.join(map(str, plugins)) or 'none'}", hint=f"remove {folder}"
        )
    return folder


def _started(program: Path, fds: Sequence[int], beside: bool, plugins: Path) -> "subprocess.Popen[bytes]":
    """Starts CRIU. `fds`: the socket first · `plugins`: the folder from which it loads them."""
    try:
        return subprocess.Popen(
            [program, "swrk", str(fds[0])],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=not beside,
            cwd="/",
            env={**os.environ, _PLUGINS: str(plugins)},
        )
    except OSError as error:
        raise CriuUnusable(f"{program} cannot be started: {error.strerror}") from error


def _watched(process: "subprocess.Popen[bytes]") -> int:
    """Returns a descriptor that is readable once the process has ended. Raises CriuUnusable."""
    try:
        return os.pidfd_open(process.pid)
    except OSError as error:
        process.kill()
        _reap(process)
        raise CriuUnusable(f"the end of CRIU cannot be watched: {error.strerror}") from error


def _has_ended(watched: int, seconds: float) -> bool:
    """Returns whether the process of `_watched` ends within so many seconds. `Popen.wait` would look now and then."""
    waiting = select.poll()
    waiting.register(watched, select.POLLIN)
    return bool(waiting.poll(1000 * seconds))


def _kill(process: "subprocess.Popen[bytes]", beside: bool) -> None:
    with suppress(ProcessLookupError):
        if beside:
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)


def _reap(process: "subprocess.Popen[bytes]") -> None:
    """Comes after its end. Other processes may still have its output open: they are not waited for."""
    assert process.stdout
    process.wait()
    process.stdout.close()
