"""Frames as they come off a socket: descriptors with an owner, and ERROR frames as exceptions and back."""

from collections.abc import Sequence

from gcr.errors import GcrError, NoDescriptors, NoRoom, NotOurs, Refused, RolledBack, WrongVersion
from gcr.protocol.record import BadFrame
from gcr.protocol.seqpacket import close_all
from gcr.protocol.wire import ErrorCode, ErrorRecord, Frame, StuckError, StuckRecord

_CODES: Sequence[tuple[type[GcrError], ErrorCode]] = (
    (BadFrame, ErrorCode.BAD_FRAME),
    (WrongVersion, ErrorCode.WRONG_VERSION),
    (NotOurs, ErrorCode.NOT_PERMITTED),
    (NoRoom, ErrorCode.NO_MEMORY),
    (NoDescriptors, ErrorCode.NO_DESCRIPTORS),
    (Refused, ErrorCode.REFUSED),
)


class AgentError(RolledBack):
    """The agent in the target refused; the message says why.

    `agent_code` is an ErrorCode (a plain number from a newer peer).
    """

    code = "agent_error"

    def __init__(
        self, message: str, *, agent_code: int, vendor_error: int = 0, stuck: Sequence[StuckRecord] = ()
    ) -> None:
        super().__init__(message)
        self.agent_code = agent_code
        self.vendor_error = vendor_error
        self.stuck = tuple(stuck)


class Received(Frame):
    """A frame from the socket; it owns its descriptors until they are taken."""

    __slots__ = ()

    def take_fds(self) -> list[int]:
        """The descriptors, CLOEXEC, in the order sent; from now on the caller's to close."""
        taken, self.fds = list(self.fds), ()
        return taken

    def close(self) -> None:
        close_all(self.take_fds())

    def __del__(self) -> None:
        if self.fds:
            self.close()


def agent_error(frame: Received) -> AgentError:
    """The exception of an ERROR frame. Raises BadFrame."""
    failure = StuckError.unpack(frame.payload)
    known = ErrorCode._value2member_map_
    code = failure.error.code
    name = ErrorCode(code).name.lower() if code in known else f"error {code}"
    return AgentError(
        failure.error.message or name,
        agent_code=ErrorCode(code) if code in known else code,
        vendor_error=failure.error.vendor_error,
        stuck=failure.streams,
    )


def refused_greeting(refusal: AgentError) -> GcrError:
    """Why a daemon does not let us in, as the error its user shall see."""
    kinds = {code: kind for kind, code in _CODES if kind in (NotOurs, WrongVersion)}
    kind = kinds.get(ErrorCode(refusal.agent_code)) if refusal.agent_code in ErrorCode._value2member_map_ else None
    return kind(refusal.message) if kind else refusal


def error_payload(error: GcrError | ErrorRecord | StuckError) -> bytes:
    """The payload of an ERROR frame; a message longer than its 112 bytes is cut."""
    if isinstance(error, GcrError):
        code = next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.DRIVER)
        text = error.message.replace("\0", " ").encode()[:112].decode(errors="ignore")
        error = ErrorRecord(code, message=text)
    return error.pack()
