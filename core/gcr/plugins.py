"""Finds plugins. Each is loaded, registered, checked and asked in its own `try`: a broken one harms no other."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TypeVar

import pluggy
from msgspec import Struct, field

from gcr import hookspecs
from gcr.backend import INTERFACE_VERSION, Backend
from gcr.entrypoints import ENVIRONMENT, EntryPoint, entry_points, modules_in_environment
from gcr.errors import BackendMissing, GcrError

Answer = TypeVar("Answer")
Candidate = tuple[str, str, Callable[[], object]]  # name, origin, what loads it

log = logging.getLogger(__name__)

_METHODS = ("probe", "devices", "drain", "control")


class BrokenPlugin(Struct, frozen=True):
    """A plugin that could not be used; `origin` is where it was found, `error` what it raised."""

    name: str
    origin: str
    error: str


class FoundBackend(Struct, frozen=True):
    backend: Backend
    origin: str


class Plugins(Struct):
    """The plugins that were found. `found`: by the backend's name."""

    found: dict[str, FoundBackend] = field(default_factory=dict)
    broken: list[BrokenPlugin] = field(default_factory=list)

    @property
    def backends(self) -> Mapping[str, Backend]:
        return {name: each.backend for name, each in self.found.items()}

    def backend(self, name: str) -> Backend:
        """Raises BackendMissing, saying why when a plugin of that name is broken."""
        if name in self.found:
            return self.found[name].backend
        for each in self.broken:
            if each.name == name:
                raise BackendMissing(f"backend {name} is broken: {each.error}", hint=f"found as {each.origin}")
        known = ", ".join(sorted(self.found)) or "none"
        raise BackendMissing(f"there is no backend {name}; found: {known}", hint="gcr backends")


def load_plugins() -> Plugins:
    """Load every plugin. Never raises for one of them."""
    return _loaded(candidates())


def load_backend(name: str) -> Backend:
    """The backend of that name, without the other plugins if one plugin has that name. Raises BackendMissing."""
    known = candidates()
    alone = _loaded([each for each in known if each[0] == name])
    return alone.backend(name) if name in alone.found else _loaded(known).backend(name)


def _loaded(known: Sequence[Candidate]) -> Plugins:
    plugins = Plugins()
    for name, origin, load in known:
        try:
            _add(plugins, load(), origin)
        except Exception as error:  # a third party's module may raise anything
            log.warning("plugin %s (%s) is broken", name, origin, exc_info=True)
            plugins.broken.append(BrokenPlugin(name, origin, f"{type(error).__name__}: {error}"))
    return plugins


def asked(name: str, question: Callable[[], Answer]) -> Answer:
    """A backend's answer. Raises the errors of gcr that it raises, and BackendMissing for any other of a stranger's."""
    try:
        return question()
    except GcrError:
        raise
    except Exception as error:
        log.warning("backend %s is broken", name, exc_info=True)
        told = f"backend {name} is broken: {type(error).__name__}: {error}"
        raise BackendMissing(told, hint="report this to its author") from error


def candidates() -> Sequence[Candidate]:
    """Name, origin and loader of each, those of the environment last; a module is taken once."""
    entries = sorted(entry_points(hookspecs.PROJECT), key=lambda entry: (entry.name, entry.value))
    found = {entry.value: (entry.name, _origin(entry), entry.load) for entry in entries}
    for module in modules_in_environment():
        name = module.rpartition(".")[2].removeprefix("gcr_")
        found.setdefault(module, (name, f"{ENVIRONMENT}={module}", partial(import_module, module)))
    return list(found.values())


def registered(module: object) -> pluggy.PluginManager:
    """Registers one plugin alone, so that what is wrong with it is known to be its fault. Raises what it raises."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(module)
    manager.check_pending()
    return manager


def _add(plugins: Plugins, module: object, origin: str) -> None:
    offered = [backend for answer in registered(module).hook.gcr_backends() for backend in answer]
    for backend in offered:
        _check_interface(backend)
    fresh = {backend.name: FoundBackend(backend, origin) for backend in offered}
    if taken := sorted(fresh.keys() & plugins.found.keys()):
        raise ValueError(f"backend {taken[0]} is already there, from {plugins.found[taken[0]].origin}")
    plugins.found.update(fresh)


def _check_interface(backend: Backend) -> None:
    """Raises ValueError, saying which side is to be upgraded, or TypeError for what is no backend at all."""
    written_for = getattr(backend, "interface", None)
    if not isinstance(written_for, int):
        raise TypeError(f"backend {backend.name} does not say which interface it was written for (`interface`)")
    if written_for != INTERFACE_VERSION:
        older = "the plugin" if written_for < INTERFACE_VERSION else "gcr"
        raise ValueError(
            f"backend {backend.name} was written for interface {written_for}, this gcr has {INTERFACE_VERSION}: "
            f"upgrade {older}"
        )
    lacking = [name for name in _METHODS if not callable(getattr(backend, name, None))]
    if lacking:
        raise TypeError(f"backend {backend.name} lacks {', '.join(lacking)}")


def _origin(entry: EntryPoint) -> str:
    distribution = f"{entry.distribution} {entry.version}" if entry.distribution else "an unknown distribution"
    return f"{entry.value} of {distribution}"
