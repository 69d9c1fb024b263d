"""Operations of one process of gcr that another one asks for: how each is declared, asked for and served.

An operation is a frozen struct, declared once for both ends: its fields are those of the request's JSON, and its base
names the answer. `gcr run` outlives a daemon, so either end may be of another version: a field that only the other one
knows is ignored, and names never change. `takes` and `gives` say which descriptors come with request and answer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar, get_args

from msgspec import Meta, Struct, ValidationError, to_builtins

from gcr.converting import convert
from gcr.errors import RolledBack, UsageError
from gcr.protocol.channel import Channel, Request
from gcr.protocol.seqpacket import close_all

Count = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(gt=0)]


class Nothing(Struct, frozen=True):
    """An answer without fields."""


class Done(Struct, frozen=True, omit_defaults=True):
    """The progress of an operation under way: the bytes that are done so far.

    total_bytes: None where the caller knows the total; 0 where `bytes` counts answers of a store instead
    link_bytes_per_s: the speed of the device's link, once it is measured
    """

    bytes: int
    total_bytes: int | None = None
    link_bytes_per_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = to_builtins(self)
        return found


Progress = Callable[[Done], object]
"""A receiver of progress."""


A = TypeVar("A", bound=Struct)


class Operation(Struct, Generic[A], frozen=True):
    """A request of one operation; its answer is an `A`."""

    op: ClassVar[str]
    takes: ClassVar[str] = ""
    gives: ClassVar[str] = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the body of the frame, without the operation's name."""
        found: dict[str, Any] = to_builtins(self, str_keys=True)
        return found

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Raises UsageError for a field that is missing or of the wrong type."""
        try:
            return convert(body, cls, str_keys=True)
        except ValidationError as error:
            raise UsageError(f"{cls.op}: {error}") from error

    @classmethod
    def answered(cls, body: Mapping[str, Any]) -> A:
        """Returns the answer. Raises RolledBack for one that is of another shape."""
        try:
            found: A = convert(body, get_args(cls.__orig_bases__[0])[0], str_keys=True)  # type: ignore[attr-defined]
            return found
        except ValidationError as error:
            raise RolledBack(f"the answer of {cls.op}: {error}") from error

    @classmethod
    def told(cls, body: Mapping[str, Any]) -> Done:
        """Returns the progress that was told. Raises RolledBack for one that is of another shape."""
        try:
            return convert(body, Done)
        except ValidationError as error:
            raise RolledBack(f"the progress of {cls.op}: {error}") from error


class Ready(Operation[Nothing], frozen=True):
    """Waits until the helper can serve; the daemon asks it of a helper that was silent, too."""

    op = "ready"


def ask(
    channel: Channel,
    operation: Operation[A],
    fds: Sequence[int] = (),
    *,
    timeout: float,
    on_progress: Progress | None = None,
    on_silence: Callable[[], object] | None = None,
) -> tuple[A, list[int]]:
    """Returns the answer and its descriptors, the caller's. Raises as `Channel.call_json`, and RolledBack."""
    heard = (lambda body: on_progress(operation.told(body))) if on_progress else None
    body, given = channel.call_json(
        operation.op, operation.to_json(), fds, timeout=timeout, on_progress=heard, on_silence=on_silence
    )
    try:
        return operation.answered(body), given
    except BaseException:
        close_all(given)
        raise


class Answer(Struct, frozen=True):
    """`fds` go along, and are closed once sent unless they are `kept`.

    later: the handler answers the request by itself, from another thread
    """

    fields: Struct | None = None
    fds: Sequence[int] = ()
    kept: bool = False
    later: bool = False


Handler = Callable[[Any, list[int], Request], Answer | None]
"""Carries out an operation. The descriptors of the request are closed after it, unless it clears the list."""


Handlers = dict[type[Operation[Any]], Handler]


class Dispatcher(Struct, frozen=True):
    """Serves requests for operations. `who`: the name of the process that serves them, in errors."""

    who: str
    handlers: Mapping[type[Operation[Any]], Handler]

    def serve(self, request: Request) -> None:
        """Raises UsageError, PeerGone if the caller has left, and as the operation does."""
        body, fds = request.json(), request.take_fds()
        try:
            answer = self._carried_out(body, fds, request) or Answer()
        finally:
            close_all(fds)
        if answer.later:
            return
        try:
            request.reply_json(to_builtins(answer.fields, str_keys=True) if answer.fields else None, answer.fds)
        finally:
            close_all(() if answer.kept else answer.fds)

    def _carried_out(self, body: Mapping[str, Any], fds: list[int], request: Request) -> Answer | None:
        name = body.get("op")
        operation = next((each for each in self.handlers if each.op == name), None)
        if operation is None:
            raise UsageError(f"{self.who} knows no {name!r}")
        return self.handlers[operation](operation.from_json(body), fds, request)
