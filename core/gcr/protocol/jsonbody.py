"""JSON bodies of frames, and errors that cross a socket inside them.

A body too large for a frame travels in a sealed memfd, the frame's first descriptor, and the payload is only
`{"in_descriptor": <bytes>}`. A failure is `{"ok": false, "error": {"code", "exit", "message", "state", "hint", …}}`.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from typing import Any

from gcr.errorcodes import all_errors
from gcr.errors import GcrError, Interrupted, Lost, Refused, RolledBack, UsageError
from gcr.protocol.record import BadFrame
from gcr.protocol.wire import MAX_FRAME, FrameHeader

MAX_BODY = 256 << 20
_MARK = "in_descriptor"
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_MORE = ("missing", "device")
_BASE_OF_EXIT: Mapping[int, type[GcrError]] = {2: UsageError, 3: Refused, 4: RolledBack, 5: Lost, 130: Interrupted}


def dump(body: Mapping[str, Any]) -> tuple[bytes, int | None]:
    """Payload, and the memfd that must go first when the body is large; the caller closes it after sending.

    Raises ValueError beyond MAX_BODY bytes, TypeError for what JSON cannot say.
    """
    text = json.dumps(body, separators=(",", ":")).encode()
    if len(text) <= MAX_FRAME - FrameHeader.SIZE:
        return text, None
    if len(text) > MAX_BODY:
        raise ValueError(f"a JSON body of {len(text)} bytes; {MAX_BODY} are allowed")
    return json.dumps({_MARK: len(text)}).encode(), sealed_memfd("gcr-json", text)


def load(payload: bytes, fds: list[int]) -> dict[str, Any]:
    """The body of a frame. Takes and closes the first of `fds` when the body lies there. Raises BadFrame."""
    body = _parse(payload)
    if set(body) != {_MARK}:
        return body
    if not fds:
        raise BadFrame("a JSON body in a descriptor, and no descriptor")
    fd = fds.pop(0)
    try:
        return _parse(_read_sealed(fd, body[_MARK]))
    finally:
        os.close(fd)


def answer(payload: bytes, fds: list[int]) -> dict[str, Any]:
    """The body of an answer, as `load`. Raises what the peer raised, BadFrame."""
    body = load(payload, fds)
    if body.get("ok") is not True:
        raise error_from_json(body.get("error"))
    return body


def sealed_memfd(name: str, content: bytes) -> int:
    """Returns a memfd that no process can change any more. The caller owns it. Raises OSError."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def error_to_json(error: GcrError) -> dict[str, Any]:
    """The `error` object of docs/contract.md §4, with the fields that only some types have."""
    body = {"code": error.code, "exit": error.exit, "message": error.message, "state": error.state, "hint": error.hint}
    more = {name: getattr(error, name, None) for name in _MORE}
    return body | {name: value for name, value in more.items() if value is not None}


def error_from_json(body: object) -> GcrError:
    """The error again, of its own type. A code only a newer peer knows becomes the base class of its exit code."""
    if not isinstance(body, dict) or not isinstance(body.get("code"), str) or not isinstance(body.get("exit"), int):
        return GcrError(f"an error that does not parse: {body!r:.200}")
    kind = all_errors().get(body["code"]) or _BASE_OF_EXIT.get(body["exit"], GcrError)
    error = kind.__new__(kind)
    # Not the type's own constructor: it may ask for more than crossed the socket.
    GcrError.__init__(error, str(body.get("message", "")), state=body.get("state"), hint=str(body.get("hint", "")))
    vars(error).update({name: body[name] for name in ("code", "exit", *_MORE) if name in body})
    return error


def _parse(text: bytes) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadFrame("not a JSON object")
    return body


def _read_sealed(fd: int, size: object) -> bytes:
    """Reads a sealed memfd. The sender of an unsealed one could cut it short under our read."""
    if not isinstance(size, int) or not 0 <= size <= MAX_BODY:
        raise BadFrame(f"a JSON body of {size!r:.40} bytes")
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:  # EINVAL: not a memfd
        raise BadFrame("a JSON body in something that is not a memfd") from error
    if seals & _SEALS != _SEALS or os.fstat(fd).st_size != size:
        raise BadFrame("a JSON body in a memfd that is not sealed or not of the stated size")
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return file.read(size)
