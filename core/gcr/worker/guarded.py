"""A backend's drain, with every error it raises typed: what a stranger does wrong is not the worker's own bug."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, cast

from gcr.drain import DataDrain
from gcr.plugins import asked


class GuardedDrain:
    """Passes everything on. Raises BackendMissing for what the drain raises that is no error of gcr's."""

    def __init__(self, backend: str, drain: DataDrain) -> None:
        self._backend = backend
        self._drain = drain

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._drain, name)
        return self._guard(found) if callable(found) else found

    def _guard(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            return asked(self._backend, partial(method, *arguments, **named))

        return call


def guarded(backend: str, drain: DataDrain) -> DataDrain:
    return cast(DataDrain, GuardedDrain(backend, drain))  # it has whatever the drain has
