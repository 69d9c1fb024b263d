"""Backends as the command line asks them: each in its own `try`, so the others work beside a broken one."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from gcr.backend import Backend, Capability, Device
from gcr.declarations import FILE, broken_declarations
from gcr.errors import BackendMissing
from gcr.plugins import BrokenPlugin, Plugins, load_plugins

Answer = TypeVar("Answer")


def chosen(wanted: str | None) -> tuple[Plugins, list[Backend]]:
    """All plugins, and the backends to show: the one asked for, or all. Raises BackendMissing for an unknown one."""
    plugins = load_plugins()
    plugins.broken += [BrokenPlugin(name, f"{FILE} of {name}", why) for name, why in broken_declarations().items()]
    if wanted is not None:
        return plugins, [plugins.backend(wanted)]
    return plugins, [plugins.backends[name] for name in sorted(plugins.backends)]


def capabilities(backend: Backend) -> Sequence[Capability]:
    """Returns a backend's capabilities; an exception, against its contract, becomes a capability that is not there."""
    found, error = _ask(backend.probe)
    return found or [Capability("probe", False, error, "report this to the backend's author")]


def devices(backend: Backend, *, insist: bool = False) -> Sequence[Device]:
    """Returns the devices of a backend; of a broken one none, or with `insist` raises BackendMissing."""
    found, error = _ask(backend.devices)
    if found is None and insist:
        raise BackendMissing(f"backend {backend.name} is broken: {error}", hint="report this to its author")
    return found or []


def _ask(question: Callable[[], Answer]) -> tuple[Answer | None, str]:
    try:
        return question(), "no answer"
    except Exception as error:  # a stranger's code
        return None, f"{type(error).__name__}: {error}"
