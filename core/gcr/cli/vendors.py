"""Backends as the command line looks at them: each asked in its own try, so that a broken one harms nobody."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from gcr.backend import Backend, Capability, Device
from gcr.errors import BackendMissing
from gcr.plugins import Plugins, load_plugins

Answer = TypeVar("Answer")


def chosen(wanted: str | None) -> tuple[Plugins, list[Backend]]:
    """All plugins, and the backends to show: the one asked for, or all. Raises BackendMissing for an unknown one."""
    plugins = load_plugins()
    if wanted is not None:
        return plugins, [plugins.backend(wanted)]
    return plugins, [plugins.backends[name] for name in sorted(plugins.backends)]


def capabilities(backend: Backend) -> Sequence[Capability]:
    """What it says of itself; what it raised instead, against its contract, as a capability that is not there."""
    found, error = _ask(backend.probe)
    return found or [Capability("probe", False, error, "report this to the backend's author")]


def devices(backend: Backend, *, insist: bool = False) -> Sequence[Device]:
    """None of a broken one. With `insist`, for who asked for this very backend: raises BackendMissing instead."""
    found, error = _ask(backend.devices)
    if found is None and insist:
        raise BackendMissing(f"backend {backend.name} is broken: {error}", hint="report this to its author")
    return found or []


def _ask(question: Callable[[], Answer]) -> tuple[Answer | None, str]:
    try:
        return question(), "no answer"
    except Exception as error:  # a stranger's code
        return None, f"{type(error).__name__}: {error}"
