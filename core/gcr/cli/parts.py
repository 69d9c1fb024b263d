"""The shim that a job is started under, and the simulated driver that it sees: a backend's own, where it brings one.

Plugins are loaded only for a job that names a backend. A plugin's module loads no vendor library.
"""

from functools import cache
from pathlib import Path

from gcr.backend import Backend, BringsShim, BringsSimulator, Simulator
from gcr.errors import BackendMissing, GcrError, UsageError
from gcr.native import NativeMissing
from gcr.plugins import Plugins, asked, load_backend, load_plugins


def shim_of(name: str | None) -> Path | None:
    """The interposer for a job of this backend; None: gcr's own. Raises BackendMissing, NativeMissing."""
    backend = load_backend(name) if name else None
    own = asked(backend.name, backend.shim) if isinstance(backend, BringsShim) else None
    if own is not None and not own.is_file():
        raise NativeMissing(f"the shim of backend {name} is not at {own}", hint="reinstall its plugin")
    return own


def simulator_of(name: str) -> Simulator:
    """A backend's simulated driver. Raises UsageError for a name that has none, BackendMissing for a broken plugin."""
    backend = _found(name)
    found = asked(backend.name, backend.simulator) if isinstance(backend, BringsSimulator) else None
    if found is None:
        known = ", ".join(sorted(simulated_vendors())) or "none"
        raise UsageError(f"there is no simulated {name}; there is: {known}", hint="gcr backends")
    return found


def _found(name: str) -> Backend | None:
    """Raises BackendMissing for a broken plugin of that name."""
    try:
        return load_backend(name)
    except BackendMissing:
        if any(each.name == name for each in _plugins().broken):
            raise
        return None


def simulated_vendors() -> list[str]:
    """Backends that bring a simulated driver; whether it was built is not asked."""
    return [name for name, backend in _plugins().backends.items() if isinstance(backend, BringsSimulator)]


def simulators_built() -> list[str]:
    """Returns those vendors with a simulated driver that is built here."""
    return [name for name in simulated_vendors() if _built(name)]


def _built(name: str) -> bool:
    try:
        simulator_of(name)
    except GcrError:
        return False
    return True


@cache
def _plugins() -> Plugins:
    return load_plugins()
