"""The policies that gcr brings, and those of plugins (the hook `gcr_policies`)."""

import logging
from collections.abc import Callable, Mapping, Sequence

from gcr import plugins
from gcr.names import meant
from gcr.policy import Candidate, Policy
from gcr.serveerrors import BadServeConfig

log = logging.getLogger(__name__)


class Lru:
    """The model that was used least recently gives up its room; the request that waits longest is served first."""

    name = "lru"

    def leaves(self, candidates: Sequence[Candidate], demand: Candidate, now: float) -> Sequence[str]:
        return _names(candidates, lambda each: each.last_used)

    def comes(self, waiting: Sequence[Candidate], now: float) -> Sequence[str]:
        return _names(waiting, lambda each: now if each.since is None else each.since)


class Priority(Lru):
    """Lower priorities give up their room first, higher ones get it first; among equals as `lru`.

    A model with requests keeps its room from one of a lower priority.
    """

    name = "priority"

    def leaves(self, candidates: Sequence[Candidate], demand: Candidate, now: float) -> Sequence[str]:
        may = [each for each in candidates if not each.active or each.priority <= demand.priority]
        return _names(may, lambda each: (each.priority, each.last_used))

    def comes(self, waiting: Sequence[Candidate], now: float) -> Sequence[str]:
        return _names(waiting, lambda each: (-each.priority, now if each.since is None else each.since))


class Cost(Lru):
    """The model that is cheapest to be without leaves: uses, times seconds to bring it back, a byte that it frees.

    Uses count less the longer ago the last one was.
    """

    name = "cost"

    def leaves(self, candidates: Sequence[Candidate], demand: Candidate, now: float) -> Sequence[str]:
        return _names(candidates, lambda each: (_cost(each, now), each.last_used))


BUILT_IN: Sequence[Policy] = (Lru(), Priority(), Cost())


def _cost(model: Candidate, now: float) -> float:
    rate = model.uses / (1.0 + max(0.0, now - model.last_used))
    return rate * max(model.wake_s, 1e-3) / max(model.bytes or 1, 1)


def _names(models: Sequence[Candidate], key: Callable[[Candidate], object]) -> Sequence[str]:
    return [each.name for each in sorted(models, key=key)]  # type: ignore[arg-type]


def chosen(name: str) -> Policy:
    """The policy of that name, gcr's own or a plugin's. Raises BadServeConfig."""
    own = {each.name: each for each in BUILT_IN}
    if name in own:
        return own[name]
    found = _of_plugins()
    if name in found:
        return found[name]
    known = sorted({*own, *found})
    raise BadServeConfig(f"serve.policy: there is no policy {name!r}{meant(name, known)}", hint=", ".join(known))


def _of_plugins() -> Mapping[str, Policy]:
    """Each plugin in its own `try`: a broken one harms no other."""
    found: dict[str, Policy] = {}
    for name, origin, load in plugins.candidates():
        try:
            for policy in (each for answer in plugins.registered(load()).hook.gcr_policies() for each in answer):
                found.setdefault(policy.name, policy)
        except Exception:  # a third party's module may raise anything
            log.warning("plugin %s (%s) is broken", name, origin, exc_info=True)
    return found
