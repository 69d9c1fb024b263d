"""A backend's drain with typed errors: a fault of a plugin is not reported as a bug of the worker."""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, TypeGuard, cast

from gcr.drain import CopiesWithin, DataDrain, HasLanes, Paces, PreparesHash, Span, Transfer
from gcr.plugins import asked


class GuardedDrain:
    """Passes each call on. Raises BackendMissing for an error that is not one of gcr's."""

    def __init__(self, backend: str, drain: DataDrain) -> None:
        self._backend = backend
        self._drain = drain

    @property
    def inner(self) -> DataDrain:
        return self._drain

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._drain, name)
        return self._guard(found) if callable(found) else found

    def _guard(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            return asked(self._backend, partial(method, *arguments, **named))

        return call


def guarded(backend: str, drain: DataDrain) -> DataDrain:
    return cast(DataDrain, GuardedDrain(backend, drain))  # it has all attributes of the drain


def copies_within(drain: DataDrain) -> TypeGuard[CopiesWithin]:
    return isinstance(_behind_guard(drain), CopiesWithin)


def prepares_hash(drain: DataDrain) -> TypeGuard[PreparesHash]:
    return isinstance(_behind_guard(drain), PreparesHash)


def paces(drain: DataDrain) -> TypeGuard[Paces]:
    return isinstance(_behind_guard(drain), Paces)


def has_lanes(drain: DataDrain) -> TypeGuard[HasLanes]:
    return isinstance(_behind_guard(drain), HasLanes)


def read_beside(drain: DataDrain, spans: Sequence[Span]) -> Transfer:
    """Starts copying to the host beside a program that runs: its own copies are to find the queue short."""
    return drain.read_paced(spans, lambda: True) if paces(drain) else drain.read(spans)


def _behind_guard(drain: DataDrain) -> DataDrain:
    """From Python 3.12 on `isinstance` with a protocol does not see what `__getattr__` gives."""
    return drain.inner if isinstance(drain, GuardedDrain) else drain
